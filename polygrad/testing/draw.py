"""Operands for tests of ops.

Here: `Draw`, from which an op's `samples` takes NumPy arrays of one dtype.
Not here: what is done with them.
"""

from typing import Any

import numpy as np

from polygrad import dtypes

# Shapes of one, two or more operands: no axes, one, two, axes that broadcast from both sides, none of any size.
_SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((),),
    ((5,),),
    ((3, 4),),
    ((3, 1), (4,)),
    ((0, 3), (3,)),
    ((2, 3, 2), (), (3, 1)),
)


class Draw:
    """Random operands of one dtype; the same generator gives the same operands.

    >>> Draw(np.random.default_rng(0), dtypes.float32).array((2,), 0, 1).dtype
    dtype('float32')
    """

    def __init__(self, rng: np.random.Generator, dtype: dtypes.DType) -> None:
        self.rng = rng
        self.dtype = dtype
        self.kind = dtypes.KINDS[dtype]

    def array(self, shape: tuple[int, ...], low: float, high: float) -> Any:
        """Return an array of the dtype in [low, high].

        Floats and ints are uniform (unsigned ones from 0), bools fair; of complex numbers so is the real part, and the
        imaginary one in [-1, 1].
        """
        if self.kind == "bool":
            return np.asarray(self.rng.integers(0, 2, shape), bool)
        if self.kind == "int":
            least, greatest = dtypes.integer_range(self.dtype)
            first, last = max(int(low), least), min(max(int(high), int(low)), greatest)
            return np.asarray(self.rng.integers(first, max(first, last) + 1, shape), self.dtype)
        if self.kind == "complex":
            turned = self.rng.uniform(low, high, shape) + 1j * self.rng.uniform(-1.0, 1.0, shape)
            return np.asarray(turned).astype(self.dtype)
        return np.asarray(self.rng.uniform(low, high, shape)).astype(self.dtype)

    def matrices(self, kind: str, *shape: int) -> Any:
        """Return matrices that are "regular", "positive" definite, "hermitian", or have singular values "apart".

        Their eigenvalues, or singular values, are well apart and not small, so that derivatives are of moderate size.
        """
        x = self.array(shape, -0.5, 0.5)
        wide = x.astype(np.complex128 if self.kind == "complex" else np.float64)
        *_, m, n = shape
        turned = wide.conj().swapaxes(-1, -2)
        steps = np.eye(m, n) * np.arange(1, n + 1)
        made = {
            "regular": lambda: wide + 2 * np.eye(m, n) + steps,
            "positive": lambda: wide @ turned + np.eye(m) + steps,
            "hermitian": lambda: (wide + turned) / 2 + 2 * steps - np.eye(m, n),
            "apart": lambda: wide + 2 * steps,
        }[kind]()
        return made.astype(self.dtype)

    def ints(self, shape: tuple[int, ...], low: int, high: int, dtype: dtypes.DType = dtypes.int64) -> Any:
        """Return indices or labels in [low, high], int64 unless another dtype is given."""
        return np.asarray(self.rng.integers(low, high + 1, shape), dtype)

    def bools(self, shape: tuple[int, ...]) -> Any:
        """Return fair bools."""
        return np.asarray(self.rng.integers(0, 2, shape), bool)

    def elementwise(self, pairs: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return calls with one operand for each (low, high) of *pairs*, in shapes that broadcast."""
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        for shapes in _SHAPES:
            chosen = [shapes[k % len(shapes)] for k in range(len(pairs))]
            calls.append((tuple(self.array(s, low, high) for s, (low, high) in zip(chosen, pairs, strict=True)), {}))
        return calls
