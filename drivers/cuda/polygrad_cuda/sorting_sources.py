"""CUDA text of what surrounds a sort: keys in the order of elements, one NaN for all, elements in their new places.

Here: text. Not here: launching (`ordering.py`); the sort itself, which is the vendor's radix sort.
"""

import functools

from polygrad_cuda.sources import UNSIGNED

_INFINITIES = {"float16": "0x7C00", "bfloat16": "0x7F80", "float32": "0x7F800000u", "float64": "0x7FF0000000000000ull"}


def keys(dtype: str, itemsize: int) -> str:
    """Return the type WORD of an element's bits, and `key_of`, which makes of them an integer of the same order.

    Equal elements, -0.0 and 0.0 among them, have equal keys, and every NaN the greatest.

    >>> print(keys("uint8", 1))
    typedef unsigned char WORD;
    static __device__ WORD key_of(WORD b)
    {
        return b;
    }
    <BLANKLINE>
    """
    word = UNSIGNED[itemsize]
    sign = f"(({word})1 << {8 * itemsize - 1})"
    if dtype in _INFINITIES:
        body = (
            f"    if ((WORD)(b & (WORD)~{sign}) > (WORD){_INFINITIES[dtype]}) return (WORD)~(WORD)0;\n"
            f"    if (b == (WORD){sign}) b = 0;\n"
            f"    return b & {sign} ? (WORD)~b : (WORD)(b | {sign});\n"
        )
    else:
        body = f"    return (WORD)(b ^ {sign});\n" if dtype.startswith("int") else "    return b;\n"
    return f"typedef {word} WORD;\nstatic __device__ WORD key_of(WORD b)\n{{\n{body}}}\n"


# The vendor's sort takes floats as they are, -0.0 equal to 0.0, but tells one NaN from another: so all become the
# greatest before it, and afterwards each is put back from where it stood.
_ONE_NAN = """
extern "C" __global__ void __launch_bounds__(256) one_nan(
    const FLOAT* __restrict__ x, FLOAT* __restrict__ out, long long count)
{
    for (long long g = (long long)blockIdx.x * 256 + threadIdx.x; g < count; g += (long long)gridDim.x * 256) {
        const FLOAT v = x[g];
        out[g] = v != v ? GREATEST_NAN : v;
    }
}
extern "C" __global__ void __launch_bounds__(256) each_nan(
    const FLOAT* __restrict__ x, const long long* __restrict__ places, FLOAT* __restrict__ values, long long count)
{
    for (long long g = (long long)blockIdx.x * 256 + threadIdx.x; g < count; g += (long long)gridDim.x * 256)
        if (values[g] != values[g]) values[g] = x[places[g]];
}
"""
_GREATEST_NAN = {"float": "__int_as_float(0x7fffffff)", "double": "__longlong_as_double(0x7fffffffffffffffll)"}


@functools.cache
def nan_last(dtype: str) -> str:
    """Return the text with kernels one_nan and each_nan.

    >>> "typedef double FLOAT" in nan_last("float64")
    True
    """
    name = {"float32": "float", "float64": "double"}[dtype]
    return f"typedef {name} FLOAT;\n#define GREATEST_NAN {_GREATEST_NAN[name]}\n" + _ONE_NAN


_SORT = """
extern "C" __global__ void __launch_bounds__(256) keys(
    const WORD* __restrict__ x, KEY* __restrict__ out, INDEX count, INDEX n)
{
    for (INDEX g = blockIdx.x * 256 + threadIdx.x; g < count; g += gridDim.x * 256)
        out[g] = ROW(g / n) | (KEY)key_of(x[g]);
}
extern "C" __global__ void __launch_bounds__(256) row_numbers(
    const long long* __restrict__ order, unsigned int* __restrict__ out, INDEX count, INDEX n)
{
    for (INDEX g = blockIdx.x * 256 + threadIdx.x; g < count; g += gridDim.x * 256)
        out[g] = (unsigned int)((INDEX)order[g] / n);
}
extern "C" __global__ void __launch_bounds__(256) followed(
    const long long* __restrict__ order, const long long* __restrict__ then, long long* __restrict__ out, INDEX count)
{
    for (INDEX g = blockIdx.x * 256 + threadIdx.x; g < count; g += gridDim.x * 256) out[g] = order[then[g]];
}
extern "C" __global__ void __launch_bounds__(256) finish(
    const WORD* __restrict__ x, const long long* __restrict__ order, WORD* __restrict__ values,
    long long* __restrict__ places, INDEX count, INDEX n)
{
    for (INDEX g = blockIdx.x * 256 + threadIdx.x; g < count; g += gridDim.x * 256) {
        const INDEX from = (INDEX)order[g];
        values[g] = x[from];
        if (places) places[g] = from % n;
    }
}
"""


def index_type(count: int) -> str:
    """Return the type of numbers up to *count*, and a grid beyond it: division by 64 bits takes long.

    >>> index_type(4_000_000), index_type(1 << 31)
    ('unsigned int', 'unsigned long long')
    """
    return "unsigned int" if count < 1 << 31 else "unsigned long long"


@functools.cache
def sort(dtype: str, itemsize: int, index: str, *, rows: bool) -> str:
    """Return the text with kernels keys, row_numbers, followed and finish, which count in the type *index*.

    With *rows* the number of the row stands above an element's key in 64 bits.

    >>> "#define ROW(r) ((KEY)(r) << 32)" in sort("int32", 4, "unsigned int", rows=True)
    True
    """
    shift = f"((KEY)(r) << {8 * itemsize})" if rows else "((KEY)0)"
    return (
        f"{keys(dtype, itemsize)}typedef {'unsigned long long' if rows else UNSIGNED[itemsize]} KEY;\n"
        f"typedef {index} INDEX;\n#define ROW(r) {shift}\n" + _SORT
    )
