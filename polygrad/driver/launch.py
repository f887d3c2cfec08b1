"""The launch ints of a kernel, given names and places.

Here: `decode`, from the flat tuple that a driver is handed to extents, strides, windows, gathers and parts.
Not here: whether they are sensible (`verify.py`), what they mean for values (`oracle.py`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from polygrad.driver.ir import Kernel


class BoundView(NamedTuple):
    """A view with every launch int filled in; offsets and strides count elements.

    `window` holds (axis, lo, hi), `gathers` holds (stride, size); without `partial` the parts are 0.
    """

    offset: int
    strides: tuple[int, ...]
    window: tuple[tuple[int, int, int], ...]
    gathers: tuple[tuple[int, int], ...]
    parts: int
    part_stride: int


class Launch(NamedTuple):
    """The ints of one launch: the extents of all axes, a `BoundView` for each view, the tag (0 without status)."""

    extents: tuple[int, ...]
    views: tuple[BoundView, ...]
    tag: int


def decode(kernel: Kernel, ints: Sequence[int]) -> Launch:
    """Return *ints* by meaning.

    Raises
    ------
    ValueError
        If there are not as many as `kernel.int_names` asks for.

    Examples
    --------
    >>> from polygrad.driver.ir import View
    >>> kernel = Kernel(1, 0, ("float32",), (View(0, "float32", (None,)),), (), (), ())
    >>> decode(kernel, (5, 2, -1)).views[0].strides
    (-1,)
    """
    if len(ints) != len(kernel.int_names):
        raise ValueError(f"the kernel takes {len(kernel.int_names)} launch ints {kernel.int_names}, not {len(ints)}")
    rest = iter(ints)
    extents = tuple(next(rest) for _ in range(kernel.rank))
    views = tuple(
        BoundView(
            offset=next(rest),
            strides=tuple(next(rest) if stride is None else stride for stride in view.strides),
            window=tuple((axis, next(rest), next(rest)) for axis in view.window),
            gathers=tuple((next(rest), next(rest)) for _ in range(view.gathers)),
            parts=next(rest) if view.partial else 0,
            part_stride=next(rest) if view.partial else 0,
        )
        for view in kernel.views
    )
    return Launch(extents, views, next(rest) if kernel.status >= 0 else 0)
