"""What was launched, built and allocated between two moments, over all devices.

Here: `launch_counter`.
Not here: times; the tracer of `polygrad.driver` has them.
"""

import contextlib
from collections.abc import Iterator

from polygrad.driver import counters
from polygrad.runtime.devices import states


class Counts:
    """Launches (fused kernels, library ops, both), programs built and driver allocations.

    Readable during and after the block.
    """

    def __init__(self) -> None:
        self._start = self._now()
        self._end: tuple[int, int, int, int, int] | None = None

    @staticmethod
    def _now() -> tuple[int, int, int, int, int]:
        found = states()
        return (
            sum(s.fused for s in found),
            sum(s.ops for s in found),
            counters.builds(),
            sum(s.pool.allocations for s in found),
            sum(s.fallbacks for s in found),
        )

    def stop(self) -> None:
        """Keep the counts as they are now."""
        self._end = self._now()

    def _count(self, k: int) -> int:
        return (self._end or self._now())[k] - self._start[k]

    @property
    def fused(self) -> int:
        """Launches of fused kernels."""
        return self._count(0)

    @property
    def ops(self) -> int:
        """Launches of the driver's own ops; transfers are not counted."""
        return self._count(1)

    @property
    def total(self) -> int:
        """All launches."""
        return self.fused + self.ops

    @property
    def builds(self) -> int:
        """Programs that drivers have compiled."""
        return self._count(2)

    @property
    def allocations(self) -> int:
        """Blocks that pools have asked drivers for."""
        return self._count(3)

    @property
    def fallbacks(self) -> int:
        """Calls of library ops that the host's device has run for a device without them."""
        return self._count(4)

    def __repr__(self) -> str:
        return (
            f"Counts(total={self.total}, fused={self.fused}, ops={self.ops}, builds={self.builds}, "
            f"allocations={self.allocations})"
        )


@contextlib.contextmanager
def launch_counter() -> Iterator[Counts]:
    """Count launches, builds and allocations in a block.

    >>> with launch_counter() as c:
    ...     pass
    >>> c.total
    0
    """
    counts = Counts()
    try:
        yield counts
    finally:
        counts.stop()
