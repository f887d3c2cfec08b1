"""Random data and random memory layouts for kernels under test.

Here: draws that know dtypes and strides, and where ops are well conditioned.
Not here: kernels, instructions, what results should be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygrad.driver import oracle
from polygrad.driver.ir import View, kind

Array = np.ndarray[Any, Any]


# Where the ops that are picky about their operands are well conditioned: one range an operand.
DOMAINS: dict[str, tuple[tuple[float, float], ...]] = {
    "log": ((0.05, 8),), "log2": ((0.05, 8),), "log10": ((0.05, 8),), "sqrt": ((0, 16),), "rsqrt": ((0.05, 16),),
    "acos": ((-0.97, 0.97),), "asin": ((-0.97, 0.97),), "atanh": ((-0.97, 0.97),), "acosh": ((1.05, 8),),
    "log1p": ((-0.9, 8),), "exp": ((-8, 8),), "exp2": ((-8, 8),), "expm1": ((-4, 4),), "sinh": ((-4, 4),),
    "cosh": ((-4, 4),), "tan": ((-1.4, 1.4),), "pow": ((0.1, 4), (-3, 3)), "divide": ((-1e9, 1e9), (0.1, 1e9)),
    "fmod": ((-1e3, 1e3), (0.25, 100)), "sin": ((-40, 40),), "cos": ((-40, 40),),
}  # fmt: skip


@dataclass
class Placed:
    """A view under construction, with its launch ints."""

    view: View
    offset: int
    strides: tuple[int, ...]
    window: tuple[tuple[int, int], ...] = ()
    gathers: tuple[tuple[int, int], ...] = ()
    parts: tuple[int, ...] = ()

    def ints(self) -> list[int]:
        dynamic = [n for n, s in zip(self.strides, self.view.strides, strict=True) if s is None]
        pairs = [n for pair in (*self.window, *self.gathers) for n in pair]
        return [self.offset, *dynamic, *pairs, *self.parts]


@dataclass
class Draws:
    """Draws from one generator."""

    rng: np.random.Generator

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def data(self, dtype: str, count: int, domain: tuple[float, float] | None = None, awkward: float = 0.3) -> Array:
        """Return *count* values of *dtype* in *domain*; without one, with the chance *awkward*, NaN or extremes too."""
        target = oracle.compute_dtype(dtype)
        if dtype == "bool":
            return self.rng.integers(0, 2, count).astype(np.bool_)
        if kind(dtype) == "int":
            limits = np.iinfo(target)
            small = self.rng.integers(0 if limits.min == 0 else -9, 10, count).astype(target)
            if domain is not None or not self.chance(awkward):
                return small
            whole = self.rng.integers(limits.min, limits.max, count, dtype=target, endpoint=True)
            edge = self.rng.choice(np.array([limits.min, limits.max, 0, 1], dtype=target), count)
            roll = self.rng.random(count)
            return np.where(roll < 0.15, edge, np.where(roll < 0.5, whole, small)).astype(target)
        if domain is not None:
            low, high = max(domain[0], -8), min(domain[1], 8)
            return self.rng.uniform(low, high, count).astype(target)
        style = self.pick(("normal", "quarters", "positive", "wide", "negative"))
        if style == "quarters":
            values = self.rng.integers(-8, 9, count) / 4
        elif style == "positive":
            values = self.rng.uniform(0.25, 4, count)
        elif style == "negative":
            values = self.rng.uniform(-4, -0.25, count)
        else:
            values = self.rng.standard_normal(count) * (8 if style == "wide" else 1)
        if self.chance(awkward):
            odd = self.rng.choice([np.nan, np.inf, -np.inf, -0.0, 0.0], count)
            values = np.where(self.rng.random(count) < 0.08, odd, values)
        return values.astype(target)

    def layout(self, axes: Sequence[tuple[int, int, int]], *, overlap: bool = False) -> tuple[dict[int, int], int, int]:
        """Lay (key, least index, extent) axes out in memory; return strides by key, the offset and the size needed."""
        order = [axes[int(k)] for k in self.rng.permutation(len(axes))]
        if self.chance(0.5):
            order = list(reversed(axes))  # row major, as most memory is
        strides, stride = {}, int(self.pick((1, 1, 1, 1, 2, 3)))
        for key, _, extent in order:
            strides[key] = -stride if self.chance(0.15) else stride
            stride *= extent + (int(self.rng.integers(1, 4)) if self.chance(0.2) else 0)
        if overlap and len(order) > 1 and self.chance(0.12):
            strides[order[1][0]] = strides[order[0][0]]  # sliding windows
        lowest = sum(min(s * lo, s * (lo + n - 1)) for key, lo, n in axes for s in (strides[key],))
        highest = sum(max(s * lo, s * (lo + n - 1)) for key, lo, n in axes for s in (strides[key],))
        ahead = self.below(6) if self.chance(0.5) else 0
        return strides, ahead - lowest, ahead + highest - lowest + 1

    def structural(self, strides: Sequence[int], constant: Sequence[int]) -> tuple[int | None, ...]:
        """Return for each axis what the structure knows of its stride; *constant* axes have a structural 0."""
        known: list[int | None] = []
        for axis, stride in enumerate(strides):
            if axis in constant:
                known.append(0)
            else:
                known.append(1 if stride == 1 and self.chance(0.7) else None)
        return tuple(known)
