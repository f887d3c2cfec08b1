"""What the strict driver prepares: a kernel that makes one launch, or many that do not wait for each other.

Here: `Prepared`, which refuses what the core must not ask for. Not here: the driver (`strict.py`).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polygrad.driver import DriverError, Kernel, oracle
from polygrad.driver.ir import ITEMSIZE

if TYPE_CHECKING:
    from polygrad_conformance.strict import StrictDriver

Array = np.ndarray[Any, Any]


class Prepared:
    """A kernel of the strict driver."""

    def __init__(self, driver: "StrictDriver", kernel: Kernel) -> None:
        self.driver, self.kernel = driver, kernel
        self.written = {kernel.views[store.view].buffer for store in kernel.stores}

    def __call__(self, buffers: Sequence[int], ints: tuple[int, ...], scalars: Sequence[Any]) -> None:
        """Queue one launch."""
        self.driver.launch(dict.fromkeys(buffers), self._work(buffers, ints, scalars))

    def many(
        self, buffers: Sequence[Sequence[int]], ints: tuple[tuple[int, ...], ...], scalars: Sequence[Sequence[Any]]
    ) -> None:
        """Queue launches as one, the last of them first."""
        self._check(buffers, ints)
        works = [self._work(*one) for one in zip(buffers, ints, scalars, strict=True)]

        def work() -> None:
            for each in reversed(works):
                each()

        self.driver.launch(dict.fromkeys(handle for own in buffers for handle in own), work)

    def _check(self, buffers: Sequence[Sequence[int]], ints: tuple[tuple[int, ...], ...]) -> None:
        """Raise DriverError if these are not launches that can be made in any order."""
        if len(ints) < 2 or self.kernel.status >= 0:
            raise DriverError("what is made together are two launches or more, of a kernel without a status word")
        users: dict[int, set[int]] = {}
        for n, own in enumerate(buffers):
            for handle in own:
                users.setdefault(handle, set()).add(n)
        if any(len(users[own[k]]) > 1 for own in buffers for k in self.written):
            raise DriverError("a launch writes what another one that is made together with it uses")

    def _work(self, buffers: Sequence[int], ints: tuple[int, ...], scalars: Sequence[Any]) -> Callable[[], None]:
        kernel = self.kernel
        arrays = [typed(self.driver.block(h), d) for h, d in zip(buffers, kernel.buffers, strict=True)]
        values = tuple(scalars)
        return lambda: oracle.run(kernel, arrays, ints, values)


def typed(block: Array, dtype: str) -> Array:
    """Return the whole elements of *dtype* that fit a block of bytes."""
    return block[: len(block) // ITEMSIZE[dtype] * ITEMSIZE[dtype]].view(oracle.compute_dtype(dtype))
