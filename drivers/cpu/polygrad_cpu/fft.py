"""Fourier transforms through NumPy's pocketfft, in the precision of the operand.

Here: the ops fft, rfft, irfft. Not here: any transform.

Complex operands have (real, imaginary) along their last axis, which is how NumPy keeps complex numbers: their memory is
read and written as it is.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from polygrad.driver import Ref
from polygrad_cpu.transfer import array
from polygrad_cpu.workers import quiet_context

Array = np.ndarray[Any, Any]
WHOLE = {"float32": np.complex64, "float64": np.complex128}


def numbers(ref: Ref) -> Array:
    """Return a contiguous operand with (real, imaginary) along its last axis as complex numbers."""
    return array(ref).view(WHOLE[ref.dtype])[..., 0]


def _into(function: Callable[..., Any], out: Array, x: Array, **keywords: Any) -> None:
    quiet_context()(function, x, out=out, **keywords)


def fft(out: Ref, x: Ref, inverse: bool) -> None:
    """Transform complex numbers along the last axis, without a factor."""
    if inverse:
        _into(np.fft.ifft, numbers(out), numbers(x), norm="forward")
    else:
        _into(np.fft.fft, numbers(out), numbers(x))


def rfft(out: Ref, x: Ref) -> None:
    """Transform real numbers along the last axis into half a spectrum."""
    _into(np.fft.rfft, numbers(out), array(x))


def irfft(out: Ref, x: Ref, n: int) -> None:
    """Transform half a spectrum into n real numbers, without a factor."""
    _into(np.fft.irfft, array(out), numbers(x), n=n, norm="forward")
