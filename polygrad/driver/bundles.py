"""What a driver offers if it can write launches down and make them again all at once, as CUDA's graphs do.

Here: the interface.
Not here: any implementation; which launches of a compiled function go together (`polygrad.runtime.bundles`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from polygrad.driver.types import Ref


class Bundle(Protocol):
    """Launches that were written down, in their order: same kernels, same memory, same numbers."""

    def launch(self) -> None:
        """Make all launches, after those made before; return without waiting."""

    def change(self, number: int, launch: Callable[[], None], scalars: Sequence[Any] | None) -> None:
        """Give other numbers to the launch that came after call *number* (from 0) of `Capturing.varies`.

        *launch* makes it once more, to the same memory: the driver takes its scalars, or the numbers among its attrs,
        and launches nothing. The *scalars* of a kernel are given too, for a driver that needs no more than these: of
        many launches (`PreparedMany`) those of each, of an op None. What was launched before keeps the numbers it had.
        """

    def close(self) -> None:
        """Give back what it took; launches under way finish."""


class Capturing(Protocol):
    """Writes launches of one open device down, from `polygrad_capture`.

    What is launched between `begin` and `end` is written down and not made: by prepared kernels, `launch_fused`, and
    `launch_op` of what `takes` answers with true; a mark of `notices.py` is written down as well. The core has made
    every one of these launches before, with the same shapes, so all is compiled; nothing is allocated, freed or read in
    between, and no other thread launches. The memory that the launches name stays allocated for as long as the bundle
    is launched.
    """

    def takes(self, op: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> bool:
        """Whether a launch of an op can be written down; if in doubt, no."""

    def begin(self) -> None:
        """Begin to write down."""

    def varies(self) -> None:
        """Hear that the numbers of the next launch, its scalars or those among its attrs, will change."""

    def end(self) -> Bundle:
        """Return what was written down."""

    def abandon(self) -> None:
        """Forget what was written down since `begin`, after something failed; what is launched is made again."""
