"""Random numbers as functions of a key and a counter: the same bits on every device.

Here: random_bits and the distributions made of them. A key and a counter are host scalars of dtype uint64; `words_for`
says by how many words a draw of some size moves on.
Not here: seeds, the global counter, shuffling.

A 64-bit word is made of word i of the first half of a draw (high) and word i of the second half (low), so that both are
read in order.
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops import softmath
from polygrad.ops.internal import cast
from polygrad.ops.table import composite

# Bits of a uniform number: as many as keep it exact and below 1.
_BITS = {dtypes.float16: 11, dtypes.bfloat16: 8, dtypes.float32: 24, dtypes.float64: 53}


def words_for(name: str, count: int, dtype: dtypes.DType) -> int:
    """Return how many 32-bit words a draw of *count* numbers takes.

    >>> [words_for(name, 3, dtypes.float32) for name in ("uniform", "normal", "randint")]
    [3, 4, 6]
    """
    double = name == "randint" or (name != "random_bits" and dtype is dtypes.float64)
    pairs = count + count % 2 if name == "normal" else count
    return pairs * 2 if double else pairs


def _words(xp: Any, key: Any, counter: Any, n: int) -> Any:
    return xp.random_bits_(key, counter, n)


def _slice(xp: Any, words: Any, start: int, n: int) -> Any:
    return xp.slice_(words, (start,), (1,), (n,))


def _doubles(xp: Any, key: Any, counter: Any, n: int) -> Any:
    """Return n words of 64 bits."""
    words = _words(xp, key, counter, 2 * n)
    high, low = (cast(xp, _slice(xp, words, start, n), dtypes.uint64) for start in (0, n))
    return xp.bitwise_or(xp.bitwise_left_shift(high, 32), low)


def _float_dtype(name: str, dtype: Any) -> dtypes.DType:
    wanted = dtypes.float64 if dtype is None else dtypes.as_dtype(dtype)
    if wanted not in dtypes.FLOATS:
        raise DTypeError(f"cannot draw {name} numbers of {wanted.name}: ask for a float dtype")
    return wanted


def _working(dtype: dtypes.DType) -> dtypes.DType:
    """Return the dtype in which a distribution is computed."""
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32


def _fraction(xp: Any, key: Any, counter: Any, n: int, dtype: dtypes.DType) -> Any:
    """Return n numbers k / 2**bits with k below 2**bits, in the working dtype."""
    bits = _BITS[dtype]
    words = _doubles(xp, key, counter, n) if bits > 32 else _words(xp, key, counter, n)
    kept = xp.bitwise_right_shift(words, words.dtype.itemsize * 8 - bits)
    return xp.astype(kept, _working(dtype)) * 2.0**-bits


@composite(reference=None, dtypes="int", differentiable=False)
def random_bits(xp: Any, shape: Any, key: Any, counter: Any) -> Any:
    """Uniform uint32 words of Philox-4x32-10 under a key, from a counter on."""
    shape = shapes.as_shape("draw", shape)
    return xp.reshape(_words(xp, key, counter, shapes.size(shape)), shape)


def _is_unit(low: Any, high: Any) -> bool:
    return isinstance(low, (int, float)) and isinstance(high, (int, float)) and (low, high) == (0, 1)


@composite(reference=None, differentiable=False)
def uniform(xp: Any, shape: Any, key: Any, counter: Any, *, dtype: Any = None, low: Any = 0.0, high: Any = 1.0) -> Any:
    """Uniform numbers in [low, high).

    They are multiples of a part of the range: 2**-53 (float64), 2**-24 (float32), 2**-11 (float16) or 2**-8 (bfloat16).
    """
    wanted, shape = _float_dtype("uniform", dtype), shapes.as_shape("draw", shape)
    value = xp.reshape(_fraction(xp, key, counter, shapes.size(shape), wanted), shape)
    if not _is_unit(low, high):
        value = value * (high - low) + low
    value = cast(xp, value, wanted)
    # The last step may round up to the end, which does not belong to the range.
    return (
        value
        if _is_unit(low, high)
        else xp.where(xp.less(value, high), value, xp.full_of(low, value) if isinstance(low, (int, float)) else low)
    )


@composite(reference=None, differentiable=False)
def normal(xp: Any, shape: Any, key: Any, counter: Any, *, dtype: Any = None, mean: Any = 0.0, std: Any = 1.0) -> Any:
    """Normal numbers, by the method of Box and Muller: two from two uniform ones."""
    wanted, shape = _float_dtype("normal", dtype), shapes.as_shape("draw", shape)
    n = shapes.size(shape)
    half = (n + 1) // 2
    work = _working(wanted)
    words = _doubles(xp, key, counter, 2 * half) if work is dtypes.float64 else _words(xp, key, counter, 2 * half)
    # Element i of the result is the cosine (first half) or the sine (second half) of pair i mod half: a view, not a
    # joining.
    radius, turn = (xp.broadcast_to(_slice(xp, words, start, half), (2, half)) for start in (0, half))
    value = _radius(xp, radius, work) * _turned(xp, turn, work)
    flat = xp.reshape(value, (2 * half,))
    drawn = xp.reshape(_slice(xp, flat, 0, n) if n < 2 * half else flat, shape)
    if not (isinstance(std, (int, float)) and std == 1):
        drawn = drawn * std
    if not (isinstance(mean, (int, float)) and mean == 0):
        drawn = drawn + mean
    return cast(xp, drawn, wanted)


def _radius(xp: Any, words: Any, work: dtypes.DType) -> Any:
    """Return sqrt(-2 log(u)) for u in (0, 1] of all bits of a word (float32: rounded to 24) or of 53."""
    if work is dtypes.float32:
        u = (xp.astype(words, work) + 1.0) * 2.0**-32
    else:
        u = (xp.astype(xp.bitwise_right_shift(words, 11), work) + 1.0) * 2.0**-53
    return softmath.sqrt(xp, softmath.log(xp, u) * -2.0)


def _turned(xp: Any, words: Any, work: dtypes.DType) -> Any:
    """Return the cosine, in row 0, and the sine, in row 1, of an angle whose top two bits are its quarter.

    The bits after them are the place in the quarter.
    """
    signed, width, bits = (dtypes.int32, 32, 24) if work is dtypes.float32 else (dtypes.int64, 64, 53)
    quarter = xp.bitcast(xp.bitwise_right_shift(words, width - 2), signed)
    place = xp.bitwise_right_shift(xp.bitcast(xp.bitwise_left_shift(words, 2), signed), width - bits)
    row = cast(xp, xp.reshape_(xp.iota(2, signed), (2, 1)), signed)
    return softmath.cos_of_quarters(xp, quarter - row, xp.astype(place, work) * 2.0**-bits)


@composite(reference=None, dtypes="int", differentiable=False)
def randint(xp: Any, shape: Any, key: Any, counter: Any, low: Any, high: Any, *, dtype: Any = None) -> Any:
    """Integers in [low, high), each as likely as any other but for one part in 2**64 of the range."""
    wanted, shape = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype), shapes.as_shape("draw", shape)
    if wanted not in dtypes.INTEGERS:
        raise DTypeError(f"cannot draw integers of {wanted.name}: ask for an integer dtype")
    if high <= low:
        raise ShapeError(f"cannot draw integers in [{low}, {high}): there are none")
    for end in (low, high - 1):
        xp.constant(end, wanted)  # refuses an end that the dtype cannot hold
    words = _doubles(xp, key, counter, shapes.size(shape))
    offset = words if high - low == 2**64 else _high_product(xp, words, high - low)
    value = offset + xp.constant(low % 2**64, dtypes.uint64) if low else offset  # modulo 2**64, so a negative low works
    return cast(xp, xp.reshape(value, shape), wanted)


def _high_product(xp: Any, words: Any, factor: int) -> Any:
    """Return words * factor / 2**64, rounded down.

    This is the upper half of a product of 64-bit numbers, made from products of 32-bit ones.
    """
    high, low = xp.bitwise_right_shift(words, 32), xp.bitwise_and(words, 0xFFFFFFFF)
    top, bottom = factor >> 32, factor & 0xFFFFFFFF
    whole = xp.constant(bottom, dtypes.uint64)
    carried = high * whole + xp.bitwise_right_shift(low * whole, 32)
    if top == 0:
        return xp.bitwise_right_shift(carried, 32)
    upper = xp.constant(top, dtypes.uint64)
    middle = low * upper + xp.bitwise_and(carried, 0xFFFFFFFF)
    return high * upper + xp.bitwise_right_shift(carried, 32) + xp.bitwise_right_shift(middle, 32)


@composite(reference=None, dtypes="bool", differentiable=False)
def bernoulli(xp: Any, shape: Any, key: Any, counter: Any, p: Any = 0.5) -> Any:
    """Bools that are true with probability p, to 2**-24; p is a number, or an array that broadcasts to the shape."""
    shape = shapes.as_shape("draw", shape)
    if isinstance(p, (int, float)) and not 0 <= p <= 1:
        raise ShapeError(f"cannot draw with probability {p}: it must be in [0, 1]")
    u = xp.reshape(_fraction(xp, key, counter, shapes.size(shape), dtypes.float32), shape)
    return xp.less(u, p)


@composite(reference=None, differentiable=False)
def exponential(xp: Any, shape: Any, key: Any, counter: Any, *, dtype: Any = None, scale: Any = 1.0) -> Any:
    """Exponential numbers of mean *scale*."""
    wanted, shape = _float_dtype("exponential", dtype), shapes.as_shape("draw", shape)
    work = _working(wanted)
    u = _fraction(xp, key, counter, shapes.size(shape), work) + 2.0 ** -(
        _BITS[work] + 1
    )  # the middle of its step, so not 0
    value = softmath.log(xp, u) * -1.0
    value = value if isinstance(scale, (int, float)) and scale == 1 else value * scale
    return cast(xp, xp.reshape(value, shape), wanted)
