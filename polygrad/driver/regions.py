"""Sets of addresses that a view reaches, and what can be proved of them without listing them.

Here: arithmetic on strides and extents: bounds, injectivity, disjointness.
Not here: kernels; which proof is wanted.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Region(NamedTuple):
    """The addresses ``base + sum(stride * index)``, index below extent, of (stride > 0, extent > 1) in `axes`.

    Examples
    --------
    >>> Region.of(9, [(-3, 4), (1, 2), (0, 5)])
    Region(base=0, axes=((3, 4), (1, 2)))
    """

    base: int
    axes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, offset: int, axes: Iterable[tuple[int, int]]) -> "Region":
        """Return the region of (stride, extent) axes; a negative stride runs upwards from the other end."""
        moving = [(stride, extent) for stride, extent in axes if stride and extent > 1]
        base = offset + sum(stride * (extent - 1) for stride, extent in moving if stride < 0)
        return cls(base, tuple((abs(stride), extent) for stride, extent in moving))

    @property
    def top(self) -> int:
        """The greatest address."""
        return self.base + sum(stride * (extent - 1) for stride, extent in self.axes)


def injective(axes: Sequence[tuple[int, int]]) -> bool:
    """Say whether each stride exceeds what all smaller ones span together, which no two indices then share.

    >>> injective([(1, 4), (4, 3)]), injective([(1, 4), (3, 3)])
    (True, False)
    """
    span = 0
    for stride, extent in sorted(axes):
        if stride <= span:
            return False
        span += stride * (extent - 1)
    return True


def disjoint(a: Region, b: Region) -> bool:
    """Say whether two regions provably share no address: apart, in different residue classes, or interleaved.

    >>> left, right = Region.of(0, [(8, 3), (1, 4)]), Region.of(4, [(8, 3), (1, 4)])
    >>> disjoint(left, right), disjoint(left, Region.of(3, [(8, 3)]))
    (True, False)
    """
    if a.top < b.base or b.top < a.base:
        return True
    common = math.gcd(*(stride for stride, _ in (*a.axes, *b.axes)))
    if common and (a.base - b.base) % common:
        return True
    # Give every stride its larger extent, and the distance of the bases an axis of its own: if that is injective,
    # even the larger regions are disjoint.
    extents: dict[int, int] = {}
    for axes in (a.axes, b.axes):
        counts: dict[int, int] = {}
        for stride, extent in axes:
            counts[stride] = counts.get(stride, 0) + extent - 1
        for stride, steps in counts.items():
            extents[stride] = max(extents.get(stride, 0), steps)
    axes_of_both = [(stride, steps + 1) for stride, steps in extents.items()]
    return a.base != b.base and injective([*axes_of_both, (abs(a.base - b.base), 2)])
