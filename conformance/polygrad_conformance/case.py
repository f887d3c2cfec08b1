"""One launch of one kernel with its answer, and the judgement of a driver's results.

Here: `Case` and `compare`. Not here: how cases are made (`random_kernels.py`), how bounds are found (`error_model.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygrad.driver.ir import Kernel

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Case:
    """A complete launch and its answer.

    Attributes
    ----------
    kernel : Kernel
    buffers : tuple of 1-D ndarray
        The contents before the launch; use `fresh` for copies to launch on.
    ints, scalars : tuple
        The launch arguments.
    outputs : tuple of int
        The buffers that the launch writes.
    expected : tuple of ndarray
        The contents of all buffers after the launch, by the oracle.
    allowed : tuple of ndarray
        The absolute error that each element may have; 0 means bit for bit (but for the sign of a zero).
    """

    seed: int
    kernel: Kernel
    buffers: tuple[Array, ...]
    ints: tuple[int, ...]
    scalars: tuple[bool | int | float, ...]
    outputs: tuple[int, ...]
    expected: tuple[Array, ...]
    allowed: tuple[Array, ...]

    def fresh(self) -> list[Array]:
        """Return a copy of each buffer, for one launch."""
        return [b.copy() for b in self.buffers]


class Mismatch(AssertionError):
    """A driver's results are not what the kernel means."""


def compare(case: Case, got: Sequence[Array], exact: bool = False) -> None:
    """Raise unless *got*, the contents of all buffers after a launch of *case*, is right.

    Integers and bools, guard bands, inputs, and floats that IEEE 754 decides must be equal (equal zeros may differ in
    sign, NaN equals NaN); other floats may differ by `Case.allowed`.

    Parameters
    ----------
    case : Case
    got : sequence of ndarray
        As many as ``case.kernel.buffers``, of their dtypes and lengths.
    exact : bool
        Demand equality everywhere: for two ways of running the same arithmetic.

    Raises
    ------
    Mismatch
        Naming the worst element.

    Examples
    --------
    >>> from polygrad.driver import oracle
    >>> from polygrad_conformance.random_kernels import random_case
    >>> case = random_case(1)
    >>> got = case.fresh()
    >>> oracle.run(case.kernel, got, case.ints, case.scalars)
    >>> compare(case, got)
    """
    for number, (mine, want, allowed) in enumerate(zip(got, case.expected, case.allowed, strict=True)):
        if mine.dtype != want.dtype or mine.shape != want.shape:
            raise Mismatch(f"buffer {number} is {mine.dtype} {mine.shape}; it must stay {want.dtype} {want.shape}")
        wrong, distance = _differences(mine, want, np.zeros_like(allowed) if exact else allowed)
        if wrong.any():
            worst = int(np.argmax(np.where(wrong, np.nan_to_num(distance, nan=np.inf), -1)))
            before = case.buffers[number]
            untouched = before[worst : worst + 1].tobytes() == want[worst : worst + 1].tobytes()
            raise Mismatch(
                f"seed {case.seed}, buffer {number} ({case.kernel.buffers[number]}): {int(wrong.sum())} of {len(want)} "
                f"elements are wrong; element {worst} is {mine[worst]}, expected {want[worst]} within "
                f"{allowed[worst]:.3g}{', as it was before the launch' if untouched else ''}"
            )


def _differences(mine: Array, want: Array, allowed: Array) -> tuple[Array, Array]:
    if want.dtype.kind in "fV":
        wide = np.longdouble if want.dtype == np.float64 else np.float64
        a: Array = mine.astype(wide)
        b: Array = want.astype(wide)
        with np.errstate(all="ignore"):
            distance = np.abs(a - b)
            right = (a == b) | (np.isnan(a) & np.isnan(b)) | (distance <= allowed)
        return ~right, distance.astype(np.float64)
    if want.dtype == np.bool_:  # guard bytes are no bools
        mine, want = mine.view(np.uint8), want.view(np.uint8)
    return mine != want, np.abs(mine.astype(np.float64) - want.astype(np.float64))
