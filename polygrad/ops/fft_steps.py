"""Discrete Fourier transforms along the last axis as library ops, without factors.

Here: complex to complex, real to half a spectrum, half a spectrum to real, and their derivatives, which are each other.
Not here: functions that users call (`fourier.py`).

Complex values stand as one real operand with (real, imaginary) along its last axis.
"""

from typing import Any

from polygrad import dtypes
from polygrad.ops.fft_fallback import of_real, to_real, transformed
from polygrad.ops.table import library


def _numbers(np: Any, x: Any) -> Any:
    return x[..., 0] + 1j * x[..., 1]


def _parts(np: Any, x: Any) -> Any:
    return np.stack([x.real, x.imag], -1)


@library(
    results=lambda x, inverse: [(x.shape, x.dtype)],
    fallback=transformed,
    vjp=(lambda xp, g, out, x, _index, inverse: xp.fft_(g, not inverse),),
    jvp=(lambda xp, t, out, x, _index, inverse: xp.fft_(t, inverse),),
    params=lambda inverse: {"inverse": inverse},
    verb="transform",
)
def fft_(np: Any, x: Any, inverse: Any) -> Any:
    """The sums over j of x[j] exp(-2 pi i j k / n), with exp(+...) if *inverse*."""
    z = _numbers(np, x)
    return _parts(np, np.fft.ifft(z, norm="forward") if inverse else np.fft.fft(z)).astype(x.dtype)


def _weighted(xp: Any, x: Any, n: int, inner: float) -> Any:
    """Return a half spectrum with all but the frequencies 0 and n / 2 times *inner*: each of these stands for two."""
    m = x.shape[-2]
    at = xp.iota(m, dtypes.int64)
    ends = xp.logical_or(xp.equal(at, 0), xp.equal(at * 2, n))
    one = xp.constant(1.0, x.dtype)
    weight = xp.where(ends, one, xp.constant(inner, x.dtype))
    return x * xp.reshape(weight, (m, 1))


@library(
    results=lambda x: [((*x.shape[:-1], x.shape[-1] // 2 + 1, 2), x.dtype)],
    fallback=of_real,
    vjp=(lambda xp, g, out, x, _index: xp.irfft_(_weighted(xp, g, x.shape[-1], 0.5), x.shape[-1]),),
    jvp=(lambda xp, t, out, x, _index: xp.rfft_(t),),
    verb="transform",
)
def rfft_(np: Any, x: Any) -> Any:
    """The first n // 2 + 1 frequencies of the transform of real values."""
    return _parts(np, np.fft.rfft(x)).astype(x.dtype)


@library(
    results=lambda x, n: [((*x.shape[:-2], n), x.dtype)],
    fallback=to_real,
    vjp=(lambda xp, g, out, x, _index, n: _weighted(xp, xp.rfft_(g), n, 2.0),),
    jvp=(lambda xp, t, out, x, _index, n: xp.irfft_(t, n),),
    params=lambda n: {"n": n},
    verb="transform",
)
def irfft_(np: Any, x: Any, n: Any) -> Any:
    """The n real values whose transform begins with x, times n; frequencies 0 and n / 2 count as real."""
    return np.fft.irfft(_numbers(np, x), n, norm="forward").astype(x.dtype)
