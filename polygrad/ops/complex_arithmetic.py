"""Arithmetic of complex numbers: what add, multiply, divide, abs, sqrt, sign, pow and the comparisons make of them.

Here: their `complex` rules and slopes.
Not here: exponentials, logarithms and angles.

Products and quotients follow the textbook, part by part, as NumPy's do; infinities are not recovered from NaN. A
quotient is scaled by powers of two first, so that nothing between overflows or underflows which the result does not.
"""

from typing import Any

from polygrad.ops.complex_parts import and_, both, is_complex, limits, on_parts, or_, pick


def add(xp: Any, x: Any, y: Any) -> Any:
    """x + y; a real operand leaves the imaginary part as it is."""
    if not is_complex(x):
        c, d = y.parents
        return xp.pair_(x + c, d)
    a, b = x.parents
    if not is_complex(y):
        return xp.pair_(a + y, b)
    c, d = y.parents
    return xp.pair_(a + c, b + d)


def subtract(xp: Any, x: Any, y: Any) -> Any:
    """x - y; a real operand leaves the imaginary part as it is, or changes its sign."""
    if not is_complex(x):
        c, d = y.parents
        return xp.pair_(x - c, -d)
    a, b = x.parents
    if not is_complex(y):
        return xp.pair_(a - y, b)
    c, d = y.parents
    return xp.pair_(a - c, b - d)


def multiply(xp: Any, x: Any, y: Any) -> Any:
    """x * y; a real operand multiplies both parts."""
    if not is_complex(x):
        c, d = y.parents
        return xp.pair_(x * c, x * d)
    a, b = x.parents
    if not is_complex(y):
        return xp.pair_(a * y, b * y)
    c, d = y.parents
    return xp.pair_(a * c - b * d, a * d + b * c)


def multiply_no_nan(xp: Any, x: Any, g: Any) -> Any:
    """x * g, but 0 wherever g is."""
    if not is_complex(g):
        return xp.pair_(*[xp.multiply_no_nan(p, g) for p in both(xp, x)])
    product = xp.multiply(x, g)
    gone = and_(xp, *[xp.equal(p, 0.0) for p in both(xp, g)])
    return xp.pair_(*[xp.where(gone, 0.0, p) for p in both(xp, product)])


def divide(xp: Any, x: Any, y: Any) -> Any:
    """x / y without undue overflow or underflow.

    Notes
    -----
    Baudin and Smith, "A robust complex division in Scilab" (2012), arXiv:1210.4539.
    """
    if not is_complex(y):
        return xp.pair_(xp.part_(x, 0) / y, xp.part_(x, 1) / y)
    a, b = both(xp, x)
    c, d = both(xp, y)
    above, below = xp.maximum(xp.abs(a), xp.abs(b)), xp.maximum(xp.abs(c), xp.abs(d))
    up, down = _scales(xp, above), _scales(xp, below)
    a, b, c, d = a * up, b * up, c * down, d * down
    flat = xp.abs(d) <= xp.abs(c)
    big, small = xp.where(flat, c, d), xp.where(flat, d, c)
    ratio = small / big
    whole = big + small * ratio
    re = (xp.where(flat, a, b) + xp.where(flat, b, a) * ratio) / whole
    im = (xp.where(flat, b, -a) + xp.where(flat, -a, b) * ratio) / whole
    # Division by zero gives infinities and NaN as that of reals does; Smith's way would give NaN alone.
    nothing = xp.equal(below, 0.0)
    zero = xp.abs(c)
    # The scales are undone one after the other: their quotient may be out of range where the result is not.
    re, im = (v / up * down for v in (re, im))
    return xp.pair_(xp.where(nothing, a / zero, re), xp.where(nothing, b / zero, im))


def _scales(xp: Any, size: Any) -> Any:
    """Return a power of two that brings numbers of a magnitude into the middle of the range; 1 for most."""
    eps, greatest, _, smallest = limits(size)
    power = 4.0 / (eps * eps)
    up = pick(xp, size <= 2.0 * smallest / eps, power, 1.0, size)
    return pick(xp, size >= 0.25 * greatest, 0.125, up, size)


def length(xp: Any, a: Any, b: Any) -> Any:
    """Return |a + ib| without overflow or underflow; infinite if either part is, be the other NaN."""
    x, y = xp.abs(a), xp.abs(b)
    big, small = xp.maximum(x, y), xp.minimum(x, y)
    ratio = small / pick(xp, xp.equal(big, 0.0), 1.0, big, big)
    infinite = xp.bitwise_or(xp.equal(x, float("inf")), xp.equal(y, float("inf")))
    return xp.where(infinite, float("inf"), big * xp.sqrt(1.0 + ratio * ratio))


def absolute(xp: Any, z: Any) -> Any:
    """|z|."""
    return length(xp, xp.part_(z, 0), xp.part_(z, 1))


def sqrt_parts(xp: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Return the parts of the square root of a + ib, without cancellation, overflow or underflow.

    Notes
    -----
    Hull, Fairgrieve and Tang, "Implementing complex elementary functions using exception handling", ACM Transactions on
    Mathematical Software 20 (1994). Special values as in C99, annex G.6.4.2.
    """
    eps, greatest, _, smallest = limits(a)
    left, right = xp.abs(a), xp.abs(b)
    size = xp.maximum(left, right)
    lift = 4.0 / (eps * eps)  # an even power of two, as is 1/16
    huge, tiny = size >= 0.25 * greatest, size <= smallest / eps
    scale = pick(xp, huge, 0.0625, pick(xp, tiny, lift, 1.0, a), a)
    root = pick(xp, huge, 4.0, pick(xp, tiny, 0.5 * eps, 1.0, a), a)  # of 1 / scale
    x, y = left * scale, right * scale
    long = xp.sqrt(0.5 * (x + length(xp, x, y)))
    short = xp.where(xp.equal(long, 0.0), y, 0.5 * (y / long))
    long, short = long * root, short * root
    forward = xp.bitwise_or(a >= 0.0, xp.equal(size, 0.0))
    re, im = xp.where(forward, long, short), xp.where(forward, short, long)
    infinite, beyond = xp.equal(right, float("inf")), xp.equal(left, float("inf"))
    re = xp.where(infinite, float("inf"), re)
    im = xp.where(infinite, float("inf"), im)
    aligned = and_(xp, beyond, right < float("inf"))
    re = xp.where(aligned, pick(xp, forward, float("inf"), 0.0, a), re)
    im = xp.where(aligned, pick(xp, forward, 0.0, float("inf"), a), im)
    lost = and_(xp, beyond, xp.not_equal(b, b))
    re = xp.where(lost, xp.where(forward, float("inf"), b), re)
    im = xp.where(lost, xp.where(forward, b, float("inf")), im)
    return re, xp.copysign(im, b)


sqrt = on_parts(sqrt_parts)


def sign(xp: Any, z: Any) -> Any:
    """z / |z|, and 0 at 0."""
    zero = and_(xp, *[xp.equal(p, 0.0) for p in both(xp, z)])
    safe = xp.where(zero, 1.0, z)
    return xp.where(zero, 0.0, safe / xp.abs(safe))


def where(xp: Any, condition: Any, x: Any, y: Any) -> Any:
    """Select both parts; a real operand has an imaginary part of zero."""
    (a, b), (c, d) = both(xp, x), both(xp, y)
    return xp.pair_(xp.where(condition, a, c), xp.where(condition, b, d))


def equal(xp: Any, x: Any, y: Any) -> Any:
    """Whether both parts are equal."""
    return and_(xp, *[xp.equal(p, q) for p, q in zip(both(xp, x), both(xp, y), strict=True)])


def not_equal(xp: Any, x: Any, y: Any) -> Any:
    """Whether a part differs."""
    return or_(xp, *[xp.not_equal(p, q) for p, q in zip(both(xp, x), both(xp, y), strict=True)])


def isfinite(xp: Any, z: Any) -> Any:
    """Whether both parts are finite."""
    return and_(xp, *[xp.isfinite(p) for p in both(xp, z)])


def isinf(xp: Any, z: Any) -> Any:
    """Whether a part is infinite, be the other NaN."""
    return or_(xp, *[xp.isinf(p) for p in both(xp, z)])


def power(xp: Any, x: Any, y: Any) -> Any:
    """x ** y as exp(y log x); with a real exponent the length of the result is taken from real powers, more exactly.

    0 to a power with a positive real part is 0, anything to 0 is 1.
    """
    a, b = both(xp, x)
    c, d = both(xp, y)
    size, angle = length(xp, a, b) if is_complex(x) else xp.abs(a), xp.atan2(b + xp.zeros_like(a), a)
    if not is_complex(y):
        value = _polar(xp, xp.power_(size, y), angle * y)
    else:
        value = xp.exp(xp.multiply(y, xp.log(x if is_complex(x) else xp.pair_(a, b))))
    nothing = and_(xp, xp.equal(size, 0.0), c > 0.0)
    one = and_(xp, xp.equal(c, 0.0), xp.equal(d, 0.0))
    return xp.where(one, 1.0, xp.where(nothing, 0.0, value))


def integer_power(xp: Any, x: Any, n: int) -> Any:
    """Return x ** n by squaring, for a small n >= 0."""
    result: Any = None
    while n:
        if n & 1:
            result = x if result is None else result * x
        n >>= 1
        if n:
            x = x * x
    return xp.ones_like(x) if result is None else result


SMALL_POWER = 16


def pow_of_any(xp: Any, x1: Any, x2: Any) -> Any:
    """x1 ** x2 of nodes or Python numbers, at least one of them complex: multiplications for a small whole exponent."""
    if isinstance(x2, (int, float)) and not isinstance(x2, bool):
        if x2 == int(x2) if abs(x2) <= SMALL_POWER else False:
            power = integer_power(xp, x1, abs(int(x2)))
            return power if x2 >= 0 else 1.0 / power
        if x2 == 0.5:
            return xp.sqrt(x1)
    return xp.power_(*xp.as_nodes(x1, x2))


def _polar(xp: Any, size: Any, angle: Any) -> Any:
    """Return the number of a length and an angle; on the real axis without a NaN from infinity times zero."""
    straight = xp.equal(angle, 0.0)
    return xp.pair_(size * xp.cos(angle), xp.where(straight, angle, size * xp.sin(angle)))


def matmul(xp: Any, a: Any, b: Any) -> Any:
    """The product of complex matrices, as products of real ones."""
    if not is_complex(a):
        return xp.pair_(xp.matmul_(a, xp.part_(b, 0)), xp.matmul_(a, xp.part_(b, 1)))
    p, q = xp.part_(a, 0), xp.part_(a, 1)
    if not is_complex(b):
        return xp.pair_(xp.matmul_(p, b), xp.matmul_(q, b))
    r, s = xp.part_(b, 0), xp.part_(b, 1)
    return xp.pair_(xp.matmul_(p, r) - xp.matmul_(q, s), xp.matmul_(p, s) + xp.matmul_(q, r))


def prod(xp: Any, z: Any, axes: Any) -> Any:
    """The product over axes, which stay as size 1: halves multiplied until one element is left."""
    for k in axes:
        while z.shape[k] > 1:
            n = z.shape[k]
            halves = [_cut(xp, z, k, start, n // 2) for start in (0, n // 2)]
            product = xp.multiply(*halves)
            z = xp.concat([product, _cut(xp, z, k, n - 1, 1)], axis=k) if n % 2 else product
    return z


def _cut(xp: Any, z: Any, axis: int, start: int, size: int) -> Any:
    starts = tuple(start if k == axis else 0 for k in range(z.ndim))
    return xp.slice_(z, starts, (1,) * z.ndim, tuple(size if k == axis else n for k, n in enumerate(z.shape)))


def pad(xp: Any, z: Any, before: Any, after: Any, fill: Any) -> Any:
    """Both parts padded, each with its part of the fill."""
    number = complex(fill)
    return xp.pair_(
        xp.pad_(xp.part_(z, 0), before, after, number.real), xp.pad_(xp.part_(z, 1), before, after, number.imag)
    )


def power_by_base(xp: Any, x: Any, y: Any) -> Any:
    """Return y * x ** (y - 1)."""
    return xp.multiply_no_nan(xp.power_(x, y - 1.0), y)


def power_by_exponent(xp: Any, x: Any, y: Any) -> Any:
    """Return x ** y * log(x), 0 where the base is."""
    base = x if is_complex(x) else xp.pair_(x, xp.zeros_like(x))
    return xp.multiply_no_nan(xp.log(base), xp.power_(base, y))
