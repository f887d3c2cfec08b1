"""The checks of ops over windows: convolutions, their gradients, maxima and theirs, by definition, in float64.

Here: operands, attrs and judgement of each op, for `library_checks.py`, which registers them.
Not here: what each op is, which `polygrad.driver.ACCELERATED_OPS` says.

Every element of a window is looked up where the definition says that it is; what is outside of the array is masked.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from polygrad_conformance.case import Array

ALL_FLOATS = ("float32", "float64", "float16", "bfloat16")
EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
Sizes = tuple[int, ...]
Index = tuple[Any, ...]
Case = tuple[Sequence[Array], dict[str, Any], tuple[int, ...], Array]  # operands, attrs, result's shape, its value


class Windows(NamedTuple):
    """Where windows lie; every fact has one int an axis."""

    kernel: Sizes
    stride: Sizes
    before: Sizes
    after: Sizes
    dilation: Sizes

    def attrs(self) -> dict[str, Any]:
        """Return the facts as attrs that all these ops have."""
        return {key: getattr(self, key) for key in ("stride", "before", "after", "dilation")}

    def places(self, sizes: Sizes) -> Sizes:
        """Return how many windows there are along each axis."""
        facts = zip(sizes, self.kernel, self.stride, self.before, self.after, self.dilation, strict=True)
        return tuple((n + b + a - d * (k - 1) - 1) // s + 1 for n, k, s, b, a, d in facts)

    def lookup(self, sizes: Sizes) -> Iterator[tuple[Sizes, tuple[Array, ...], Array]]:
        """Yield each place of the kernel, the indices of its elements in all windows, and where these are inside."""
        places = self.places(sizes)
        for at in np.ndindex(*self.kernel):
            lines = [
                np.arange(p) * s + k * d - b
                for p, s, k, d, b in zip(places, self.stride, at, self.dilation, self.before, strict=True)
            ]
            index = np.meshgrid(*lines, indexing="ij")
            inside = np.logical_and.reduce([(i >= 0) & (i < n) for i, n in zip(index, sizes, strict=True)])
            yield at, tuple(np.clip(i, 0, n - 1) for i, n in zip(index, sizes, strict=True)), inside


CONVOLVED = (  # images' shape, outputs, groups, windows
    ((2, 4, 7, 6), 6, 2, Windows((3, 2), (2, 1), (1, 0), (0, 2), (1, 2))),
    ((1, 3, 5, 5), 4, 1, Windows((1, 1), (1, 1), (0, 0), (0, 0), (1, 1))),
    ((3, 5, 9), 10, 5, Windows((3,), (3,), (2,), (1,), (2,))),
    ((2, 2, 3, 4, 3), 3, 1, Windows((2, 3, 2), (1, 1, 2), (1, 2, 0), (1, 0, 1), (1, 1, 1))),
    ((40, 8, 12, 12), 16, 1, Windows((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))),
    ((1, 1, 2, 2), 1, 1, Windows((5, 5), (4, 4), (4, 4), (4, 4), (1, 1))),
)  # fmt: skip
POOLED = (
    ((3, 2, 8, 6), Windows((2, 2), (2, 2), (0, 0), (0, 0), (1, 1))),
    ((2, 9, 7), Windows((3, 3), (2, 1), (1, 1), (1, 2), (1, 2))),
    ((4, 11), Windows((3,), (4,), (1,), (1,), (1,))),
    ((2, 4, 5, 4), Windows((2, 2, 2), (1, 2, 2), (1, 0, 1), (0, 1, 1), (2, 1, 1))),
)


def _drawn(rng: np.random.Generator, dtype: str, *shape: int) -> Array:
    return rng.uniform(-1, 1, shape).astype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)


def _convolution(x: Array, w: Array, y: Array, groups: int, windows: Windows, wanted: str) -> Array:
    """Return y from x and w, or one of these from the others: whichever is *wanted*."""
    n, sizes = x.shape[0], x.shape[2:]
    images: Any = x.astype(np.float64).reshape(n, groups, -1, *sizes)
    kernels: Any = w.astype(np.float64).reshape(groups, w.shape[0] // groups, *w.shape[1:])
    results: Any = y.astype(np.float64).reshape(n, groups, -1, *y.shape[2:])
    made: Any = {"x": images, "w": kernels, "y": results}[wanted]
    made[...] = 0
    for at, index, inside in windows.lookup(sizes):
        tap: Index = (..., *at)
        here: Index = (slice(None), slice(None), slice(None), *index)
        seen: Any = images[here] * inside
        if wanted == "y":
            results += np.einsum("ngc...,goc->ngo...", seen, kernels[tap])
        elif wanted == "x":
            np.add.at(images, here, np.einsum("ngo...,goc->ngc...", results, kernels[tap]) * inside)
        else:
            flat = (*seen.shape[:3], -1)
            kernels[tap] += np.einsum("ngcp,ngop->goc", seen.reshape(flat), results.reshape(*results.shape[:3], -1))
    return np.asarray(made.reshape({"x": x, "w": w, "y": y}[wanted].shape))


def convolutions(rng: np.random.Generator, dtype: str, wanted: str) -> Iterator[Case]:
    """Yield cases of the op whose result is *wanted*: y of x and w, x of y and w, or w of x and y."""
    for shape, outputs, groups, windows in CONVOLVED:
        given = {
            "x": _drawn(rng, dtype, *shape),
            "w": _drawn(rng, dtype, outputs, shape[1] // groups, *windows.kernel),
            "y": _drawn(rng, dtype, shape[0], outputs, *windows.places(shape[2:])),
        }
        want = _convolution(**given, groups=groups, windows=windows, wanted=wanted)
        ins = [given[name] for name in {"y": "xw", "x": "yw", "w": "xy"}[wanted]]
        yield ins, windows.attrs() | {"groups": groups}, want.shape, want


def _pooled(x: Array, windows: Windows) -> Array:
    rank = len(windows.kernel)
    sizes = x.shape[-rank:]
    out = np.full((*x.shape[:-rank], *windows.places(sizes)), -np.inf)
    for _, index, inside in windows.lookup(sizes):
        here: Index = (..., *index)
        out = np.maximum(out, np.where(inside, x[here].astype(np.float64), -np.inf))
    return out


def maxima(rng: np.random.Generator, dtype: str) -> Iterator[Case]:
    """Yield cases of max_pool, with equal elements, and with NaN."""
    for number, (shape, windows) in enumerate(POOLED):
        x = np.round(_drawn(rng, dtype, *shape) * 4).astype(_drawn(rng, dtype, 1).dtype)
        if number % 2:
            x.reshape(-1)[:: x.size // 3] = np.nan
        want = _pooled(x, windows)
        yield [x], windows.attrs() | {"kernel": windows.kernel}, want.shape, want


def shares(rng: np.random.Generator, dtype: str) -> Iterator[Case]:
    """Yield cases of max_pool_gradient: many windows have several greatest elements."""
    for shape, windows in POOLED:
        x = np.round(_drawn(rng, dtype, *shape) * 4).astype(_drawn(rng, dtype, 1).dtype)
        rank = len(windows.kernel)
        y = _pooled(x, windows).astype(x.dtype)
        g = _drawn(rng, dtype, *y.shape)
        wins: list[tuple[Array, Index]] = []
        for _, index, inside in windows.lookup(shape[-rank:]):
            here: Index = (..., *index)
            wins.append((inside & (x[here] == y), (*[slice(None)] * (len(shape) - rank), *index)))
        part = g.astype(np.float64) / np.maximum(np.sum([won for won, _ in wins], axis=0), 1)
        want = np.zeros(shape)
        for won, there in wins:
            np.add.at(want, there, part * won)
        yield [g, x, y], windows.attrs() | {"kernel": windows.kernel}, shape, want
