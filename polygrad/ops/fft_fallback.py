"""Discrete Fourier transforms written over other ops, for devices whose driver has no library for them.

Here: transforms along the last axis of any length, in O(n log n).
Not here: when they are used, which the declarations in `fft_steps.py` say.

A length is split into factors of at most RADIX. With n = r m, positions j = j1 m + j2 and frequencies k = k1 + r k2:

    exp(-2 pi i j k / n) = exp(-2 pi i j1 k1 / r)  exp(-2 pi i j2 k1 / n)  exp(-2 pi i j2 k2 / m)

so a transform is one product with the matrix of a small one (a library's matrix product), one multiplication by
"twiddle factors" and transforms of length m (J. Cooley, J. Tukey, 1965; the result is in order without a bit reversal,
as in Stockham's form). A prime factor above RADIX is a convolution with a chirp, done by transforms of a power of two
(L. Bluestein, 1970). Angles are reduced with integers to at most pi / 4 before cos and sin see them, so the factors are
right to a unit in the last place in any precision.
"""

from typing import Any

from polygrad import dtypes
from polygrad.ops.internal import cast, places

RADIX = 32  # the greatest length that is one product with its matrix


def factors(n: int) -> list[int]:
    """Return lengths whose product is n: as few as possible of at most RADIX, and the prime factors above it.

    >>> factors(1024), factors(97), factors(12), factors(2 * 97)
    ([32, 32], [97], [12], [2, 97])
    """
    primes, rest, p = [], n, 2
    while p * p <= rest:
        while rest % p == 0:
            primes.append(p)
            rest //= p
        p += 1
    if rest > 1:
        primes.append(rest)
    out: list[int] = []
    for prime in sorted(primes, reverse=True):
        fits = [k for k, size in enumerate(out) if size * prime <= RADIX]
        if fits:
            out[fits[0]] *= prime
        else:
            out.append(prime)
    return sorted(out) or [1]


def turned(xp: Any, steps: Any, n: int, dtype: Any) -> tuple[Any, Any]:
    """Return the cosine and sine of 2 pi steps / n, for int64 steps of any size."""
    four = xp.remainder(steps, n) * 4
    quarter = xp.floor_divide(four * 2 + n, 2 * n)  # the nearest quarter turn
    rest = cast(xp, four - quarter * n, dtype) * (1.0 / n)  # in [-1/2, 1/2] quarter turns
    angle = rest * 1.5707963267948966
    cosine, sine = xp.cos(angle), xp.sin(angle)
    quarter = xp.remainder(quarter, 4)
    odd = xp.equal(xp.remainder(quarter, 2), 1)
    c, s = xp.where(odd, -sine, cosine), xp.where(odd, cosine, sine)
    back = xp.greater_equal(quarter, 2)
    return xp.where(back, -c, c), xp.where(back, -s, s)


def transformed(xp: Any, x: Any, inverse: bool) -> Any:
    """Return the transform, without a factor, along the last axis but one of x; the last one is (real, imaginary)."""
    *batch, n, _ = x.shape
    rows = 1
    for size in batch:
        rows *= size
    planes = xp.permute_dims(xp.reshape(x, (rows, n, 2)), (0, 2, 1))  # [rows, part, position]
    out = _transform(xp, planes, factors(n), -1 if inverse else 1)
    return xp.reshape(xp.permute_dims(out, (0, 2, 1)), x.shape)


def _transform(xp: Any, x: Any, sizes: list[int], sign: int) -> Any:
    """Return the transform along the last axis of [rows, part, position], whose length is the product of *sizes*."""
    rows, _, n = x.shape
    first, rest = sizes[0], sizes[1:]
    m = n // first
    if first > RADIX:
        columns = xp.reshape(x, (rows, 2, first, m))
        columns = xp.reshape(xp.permute_dims(columns, (0, 3, 1, 2)), (rows * m, 2, first))
        done = xp.reshape(_chirped(xp, columns, sign), (rows, m, 2, first))
        y = xp.permute_dims(done, (0, 2, 3, 1))
    else:
        y = xp.matmul_(_matrix(xp, first, sign, x.dtype, rows), xp.reshape(x, (rows, 2 * first, m)))
        y = xp.reshape(y, (rows, 2, first, m))
    if not rest:
        return xp.reshape(y, (rows, 2, n))
    steps = places(xp, first, 0, 2) * places(xp, m, 1, 2)
    c, s = turned(xp, steps, n, x.dtype)
    y = _multiplied(xp, y, c, -s if sign > 0 else s, 1)
    inner = xp.reshape(xp.permute_dims(y, (0, 2, 1, 3)), (rows * first, 2, m))
    inner = xp.reshape(_transform(xp, inner, rest, sign), (rows, first, 2, m))
    return xp.reshape(xp.permute_dims(inner, (0, 2, 3, 1)), (rows, 2, n))


def _matrix(xp: Any, r: int, sign: int, dtype: Any, rows: int) -> Any:
    """Return the real matrix of a transform of length r: it takes r real parts and then r imaginary parts."""
    c, s = turned(xp, places(xp, r, 0, 2) * places(xp, r, 1, 2), r, dtype)
    s = s if sign > 0 else -s
    whole = xp.concat([xp.concat([c, s], axis=1), xp.concat([-s, c], axis=1)], axis=0)
    return xp.broadcast_to(whole, (rows, 2 * r, 2 * r))


def _multiplied(xp: Any, x: Any, c: Any, s: Any, axis: int) -> Any:
    """Return x times c + i s, with parts along *axis*."""
    lead = (0,) * x.ndim
    shape = tuple(1 if k == axis else n for k, n in enumerate(x.shape))
    ones = (1,) * x.ndim
    re = xp.slice_(x, lead, ones, shape)
    im = xp.slice_(x, tuple(int(k == axis) for k in range(x.ndim)), ones, shape)
    return xp.concat([re * c - im * s, re * s + im * c], axis=axis)


def _chirped(xp: Any, x: Any, sign: int) -> Any:
    """Return the transform of a long prime length: j k = (j**2 + k**2 - (k - j)**2) / 2 makes it a convolution."""
    rows, _, n = x.shape
    wide = 1 << (2 * n - 2).bit_length()
    j = xp.iota(n, dtypes.int64)
    c, s = turned(xp, j * j, 2 * n, x.dtype)
    s = s if sign > 0 else -s  # the chirp is c - i s
    start = _padded(xp, _multiplied(xp, x, c, -s, 1), wide - n)
    # c + i s at distances 0, 1, ..., and at -1, -2, ... from the end
    kernel = xp.stack([c, s], axis=0)
    tail = xp.flip(xp.slice_(kernel, (0, 1), (1, 1), (2, n - 1)), axis=1)
    gap = xp.zeros((2, wide - 2 * n + 1), dtype=x.dtype)
    kernel = xp.reshape(xp.concat([kernel, gap, tail], axis=1), (1, 2, wide))
    sizes = factors(wide)
    k = _transform(xp, kernel, sizes, 1)
    a = _transform(xp, start, sizes, 1)
    kr, ki = (xp.slice_(k, (0, p, 0), (1, 1, 1), (1, 1, wide)) for p in range(2))
    back = _transform(xp, _multiplied(xp, a, kr, ki, 1), sizes, -1) * (1.0 / wide)
    kept = xp.slice_(back, (0, 0, 0), (1, 1, 1), (rows, 2, n))
    return _multiplied(xp, kept, c, -s, 1)


def _padded(xp: Any, x: Any, by: int) -> Any:
    return xp.pad_(x, (0, 0, 0), (0, 0, by), 0)


def of_real(xp: Any, x: Any) -> Any:
    """Return the first half of the transform of real values, parts along a new last axis."""
    n = x.shape[-1]
    whole = transformed(xp, xp.stack([x, xp.zeros_like(x)], axis=-1), False)
    sizes = (*x.shape[:-1], n // 2 + 1, 2)
    return xp.slice_(whole, (0,) * whole.ndim, (1,) * whole.ndim, sizes)


def to_real(xp: Any, x: Any, n: int) -> Any:
    """Return the real inverse transform, without a factor, of length n: x holds its first half, the rest mirrors it."""
    lead = (0,) * (x.ndim - 2)
    m = x.shape[-2]
    mirrored = n - m
    re, im = (
        xp.reshape(xp.slice_(x, (*lead, 0, p), (1,) * x.ndim, (*x.shape[:-1], 1)), x.shape[:-1]) for p in range(2)
    )
    at = xp.iota(m, dtypes.int64)
    ends = xp.logical_or(xp.equal(at, 0), xp.equal(at * 2, n))
    im = xp.where(ends, xp.zeros_like(im), im)  # those of a real signal are real
    if mirrored:
        starts = (*lead, mirrored)
        back = (*(1,) * len(lead), -1)
        size = (*x.shape[:-2], mirrored)
        re = xp.concat([re, xp.slice_(re, starts, back, size)], axis=-1)
        im = xp.concat([im, -xp.slice_(im, starts, back, size)], axis=-1)
    whole = transformed(xp, xp.stack([re, im], axis=-1), True)
    real = xp.slice_(whole, (0,) * whole.ndim, (1,) * whole.ndim, (*whole.shape[:-1], 1))
    return xp.reshape(real, whole.shape[:-1])
