"""Arrays as sets.

Here: unique_all, unique_counts, unique_inverse, unique_values, isin.
Not here: sorting, on which they stand.

Unique values come in ascending order. Each NaN is unique, for it equals nothing; -0.0 and 0.0 are one value, shown as
the first of them. The results' sizes depend on values: the host waits for the device to count.
"""

from typing import Any, NamedTuple

from polygrad import dtypes, shapes
from polygrad.ops.internal import cast
from polygrad.ops.manipulation import ALL
from polygrad.ops.ordering import sorted_pair
from polygrad.ops.table import composite

FEW = 32  # elements of a set that are looked at one after the other


class UniqueAll(NamedTuple):
    """What `unique_all` returns."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """What `unique_counts` returns."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """What `unique_inverse` returns."""

    values: Any
    inverse_indices: Any


class _Runs:
    """The elements in order, cut into runs of equal ones."""

    def __init__(self, xp: Any, x: Any) -> None:
        self.xp = xp
        self.shape = x.shape
        self.flat = flat = xp.flatten(x)
        self.count = n = flat.shape[0]
        self.positions = _order(xp, flat)
        ordered = self.pick(flat, self.positions)
        self.fresh = _fresh(xp, ordered) if n > 1 else xp.equal(self.positions, 0)
        self.starts = xp.true_positions_(self.fresh)

    def pick(self, x: Any, at: Any) -> Any:
        return self.xp.gather_(x, at, at.shape, (-1,)) if at.shape[0] else self.xp.slice_(x, (0,), (1,), (0,))

    @property
    def indices(self) -> Any:
        """Where each unique value is first met."""
        return self.pick(self.positions, self.starts)

    @property
    def values(self) -> Any:
        return self.pick(self.flat, self.indices)

    @property
    def counts(self) -> Any:
        ends = self.xp.concat(
            [
                self.starts,
                self.xp.full_of(self.count, self.xp.slice_(self.positions, (0,), (1,), (min(1, self.count),))),
            ]
        )
        return self.xp.diff(ends) if self.count else self.starts

    @property
    def inverse(self) -> Any:
        """Return for each element the number of its value."""
        if self.count == 0:
            return self.xp.reshape(self.positions, self.shape)
        number = self.xp.cumulative_sum(self.fresh) - 1
        return self.xp.reshape(self.xp.scatter_add_(number, self.positions, (self.count,), (-1,)), self.shape)


def _fresh(xp: Any, ordered: Any) -> Any:
    """Return which elements, of at least two in order, differ from the one before; the first one does."""
    rest = ordered.shape[0] - 1
    fresh = xp.not_equal(xp.slice_(ordered, (1,), (1,), (rest,)), xp.slice_(ordered, (0,), (1,), (rest,)))
    return xp.pad_(fresh, (1,), (0,), True)


def _order(xp: Any, flat: Any) -> Any:
    """Return the positions that put equal elements side by side; complex numbers go by real, then imaginary part."""
    if dtypes.KINDS[flat.dtype] != "complex":
        return sorted_pair(xp, flat, False)[1]
    second = sorted_pair(xp, xp.imag(flat), False)[1]
    if flat.shape[0] < 2:
        return second
    real = xp.real(flat)
    first = sorted_pair(xp, xp.gather_(real, second, real.shape, (-1,)), False)[1]
    return xp.gather_(second, first, first.shape, (-1,))


def _unique_samples(draw: Any) -> Any:
    return [((draw.array(s, -3, 3),), {}) for s in ((9,), (3, 4), (1,), (0, 2), ())]


@composite(
    reference=lambda np, x: UniqueAll(
        *np.unique(x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
    ),
    samples=_unique_samples,
    dtypes=ALL,
)
def unique_all(xp: Any, x: Any, /) -> Any:
    """The different elements, where each is first met, for each element the number of its value, and how many of each.

    A named tuple (values, indices, inverse_indices, counts); indices count in the flattened array, inverse_indices has
    x's shape.
    """
    runs = _Runs(xp, x)
    return UniqueAll(runs.values, runs.indices, runs.inverse, runs.counts)


@composite(
    reference=lambda np, x: UniqueCounts(*np.unique(x, return_counts=True, equal_nan=False)),
    samples=_unique_samples,
    dtypes=ALL,
)
def unique_counts(xp: Any, x: Any, /) -> Any:
    """The different elements, and how many there are of each: a named tuple (values, counts)."""
    runs = _Runs(xp, x)
    return UniqueCounts(runs.values, runs.counts)


@composite(
    reference=lambda np, x: UniqueInverse(*np.unique(x, return_inverse=True, equal_nan=False)),
    samples=_unique_samples,
    dtypes=ALL,
)
def unique_inverse(xp: Any, x: Any, /) -> Any:
    """The different elements, and for each element the number of its value: a named tuple (values, inverse_indices)."""
    runs = _Runs(xp, x)
    return UniqueInverse(runs.values, runs.inverse)


@composite(reference=lambda np, x: np.unique(x, equal_nan=False), samples=_unique_samples, dtypes=ALL)
def unique_values(xp: Any, x: Any, /) -> Any:
    """The different elements, in ascending order."""
    if shapes.size(x.shape) < 2 or dtypes.KINDS[x.dtype] == "complex" or xp.recorded_(x):
        return _Runs(xp, x).values
    ordered = xp.sort_values_(xp.flatten(x))
    starts = xp.true_positions_(_fresh(xp, ordered))
    return xp.gather_(ordered, starts, starts.shape, (-1,))


def _isin_samples(draw: Any) -> Any:
    pairs = (((4, 3), (5,)), ((6,), (2, 2)), ((50,), (70,)), ((), (3,)), ((3,), (0,)), ((0,), (3,)))
    out: list[Any] = [((draw.array(a, -6, 6), draw.array(b, -6, 6)), {}) for a, b in pairs]
    return [*out, ((draw.array((9,), -3, 3), draw.array((4,), -3, 3)), {"invert": True})]


@composite(
    reference=lambda np, x1, x2, *, invert=False: np.isin(x1, x2, invert=invert),
    samples=_isin_samples,
    dtypes=ALL,
    differentiable=False,
)
def isin(xp: Any, x1: Any, x2: Any, /, *, invert: Any = False) -> Any:
    """Whether each element of x1 equals one of x2; *invert* asks whether it equals none. NaN equals nothing."""
    x1, x2 = xp.as_nodes(x1, x2)
    dtype = dtypes.promote(x1.dtype, x2.dtype)
    x1, among = cast(xp, x1, dtype), xp.flatten(cast(xp, x2, dtype))
    m = among.shape[0]
    if m == 0 or shapes.size(x1.shape) == 0:
        return xp.full_of(bool(invert), x1, dtypes.bool_)
    if m <= FEW or dtypes.KINDS[dtype] == "complex":
        wide = xp.reshape(x1, (*x1.shape, 1))
        found = xp.any(xp.equal(wide, among), axis=-1)
    else:
        ordered = xp.sort_values_(among)
        at = xp.minimum(xp.searchsorted_(ordered, xp.flatten(x1), False), m - 1)
        found = xp.equal(xp.gather_(ordered, xp.reshape_(at, x1.shape), x1.shape, (-1,)), x1)
    return xp.bitwise_invert(found) if invert else found
