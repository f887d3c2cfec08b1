"""How the strict driver writes launches down: as a list of what would be put into its queues.

Here: `Capturing` and `Bundle`. Not here: the driver (`strict.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polygrad.driver import DriverError, Ref
from polygrad_conformance.strict_notices import Notices

if TYPE_CHECKING:
    from polygrad_conformance.strict import StrictDriver

Page = tuple[list[int], Callable[[], None]]  # the blocks that a launch touches, and its work


class Bundle:
    """Launches that were written down."""

    def __init__(self, driver: "StrictDriver", pages: list[Page], places: list[int]) -> None:
        self.driver, self.pages, self.places = driver, pages, places
        self.closed = False

    def launch(self) -> None:
        """Put them all into queues."""
        if self.closed:
            raise DriverError("a bundle was launched after it was closed")
        for handles, work in self.pages:
            job = self.driver.enqueue(handles, work)
            if isinstance(work, Notices):
                work.job = job

    def change(self, number: int, launch: Callable[[], None], scalars: Sequence[Any] | None) -> None:  # noqa: ARG002  the launch has them
        """Put what *launch* launches in the place of one of them."""
        pages: list[Page] = []
        self.driver.pages = pages
        try:
            launch()
        finally:
            self.driver.pages = None
        place = self.places[number]
        if [handles for handles, _ in pages] != [self.pages[place][0]]:
            raise DriverError("a launch was changed into one of other memory")
        self.pages[place] = pages[0]

    def close(self) -> None:
        """Forget them."""
        if self.closed:
            raise DriverError("a bundle was closed twice")
        self.closed, self.pages = True, []


class Capturing:
    """Writes launches of one device down."""

    def __init__(self, driver: "StrictDriver") -> None:
        self.driver = driver
        self.places: list[int] = []

    def takes(self, op: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> bool:  # noqa: ARG002  of any memory
        """All but transfers."""
        return op not in ("write", "read")

    def begin(self) -> None:
        """Begin."""
        if self.driver.pages is not None:
            raise DriverError("launches are being written down already")
        self.driver.pages, self.places = [], []

    def varies(self) -> None:
        """Note the place of the next launch."""
        assert self.driver.pages is not None
        self.places.append(len(self.driver.pages))

    def end(self) -> Bundle:
        """Return what was written down."""
        pages, self.driver.pages = self.driver.pages, None
        assert pages is not None
        return Bundle(self.driver, pages, self.places)

    def abandon(self) -> None:
        """Forget it."""
        self.driver.pages = None
