"""CUDA text of running reductions, of finding what is true, and of what surrounds a sort.

Here: text. Not here: launching (`ordering.py`); the sort itself is the vendor's radix sort of unsigned integers.

TYPE stands for the dtype in memory, VALUE for the type in which reductions are kept.
"""

from polygrad_cuda.sources import UNSIGNED

THREADS = 256  # of a block; the text below relies on it
ITEMS = 8  # consecutive elements a thread takes at a time

_COMBINE = {
    "sum": "((a) + (b))",
    "prod": "((a) * (b))",
    "max": "(((a) >= (b) || (a) != (a)) ? (a) : (b))",
    "min": "(((a) <= (b) || (a) != (a)) ? (a) : (b))",
}
_LOWEST = {
    "int": "(-2147483647 - 1)", "long long": "(-9223372036854775807LL - 1)", "unsigned int": "0u",
    "unsigned long long": "0ull", "float": "__int_as_float((int)0xff800000)",
    "double": "__longlong_as_double((long long)0xfff0000000000000ull)",
}  # fmt: skip
_HIGHEST = {
    "int": "2147483647", "long long": "9223372036854775807LL", "unsigned int": "0xffffffffu",
    "unsigned long long": "0xffffffffffffffffull", "float": "__int_as_float(0x7f800000)",
    "double": "__longlong_as_double(0x7ff0000000000000ll)",
}  # fmt: skip
_SIGNED = {1: "signed char", 2: "short", 4: "int", 8: "long long"}

_PLAIN = """
static __device__ VALUE load(TYPE x) { return (VALUE)x; }
static __device__ TYPE store(VALUE x) { return (TYPE)x; }
"""
_HALF = """
static __device__ float load(unsigned short x) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x)); return f; }
static __device__ unsigned short store(float f) {
    unsigned short x; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x) : "f"(f)); return x; }
"""
_BFLOAT = """
static __device__ float load(unsigned short x) { return __int_as_float((int)((unsigned int)x << 16)); }
static __device__ unsigned short store(float f) {
    const unsigned int w = (unsigned int)__float_as_int(f);
    return f != f ? 0x7fc0 : (unsigned short)((w + 0x7fffu + ((w >> 16) & 1u)) >> 16);
}
"""
_TRUTH = "static __device__ VALUE load(TYPE x) { return x != 0; }\n"

# Every row is cut into `pieces` of `size` elements. `ends` reduces each piece, `join` makes of these the running
# reduction over the pieces of a row, one block a row, and the last kernel starts each piece with what comes before it.
_BLOCKS = """
static __device__ VALUE block_scan(VALUE v, VALUE* warps)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int d = 1; d < 32; d *= 2) {
        const VALUE before = __shfl_up_sync(0xffffffffu, v, d);
        if (lane >= d) v = COMBINE(before, v);
    }
    if (lane == 31) warps[warp] = v;
    __syncthreads();
    if (warp == 0) {
        VALUE t = lane < 8 ? warps[lane] : IDENTITY;
        for (int d = 1; d < 8; d *= 2) {
            const VALUE before = __shfl_up_sync(0xffffffffu, t, d);
            if (lane >= d) t = COMBINE(before, t);
        }
        if (lane < 8) warps[lane] = t;
    }
    __syncthreads();
    if (warp > 0) {
        const VALUE before = warps[warp - 1];
        v = COMBINE(before, v);
    }
    return v;
}
extern "C" __global__ void __launch_bounds__(256) ends(
    const TYPE* __restrict__ x, VALUE* __restrict__ out, long long n, long long pieces, long long size)
{
    __shared__ VALUE warps[8];
    const long long p = blockIdx.x, row = p / pieces, low = p % pieces * size;
    const long long high = low + size < n ? low + size : n;
    VALUE v = IDENTITY;
    for (long long i = low + threadIdx.x; i < high; i += 256) {
        const VALUE own = load(x[row * n + i]);
        v = COMBINE(v, own);
    }
    v = block_scan(v, warps);
    if (threadIdx.x == 255) out[p] = v;
}
extern "C" __global__ void __launch_bounds__(256) join(VALUE* __restrict__ out, long long pieces)
{
    __shared__ VALUE warps[8];
    VALUE* row = out + (long long)blockIdx.x * pieces;
    VALUE carry = IDENTITY;
    for (long long start = 0; start < pieces; start += 256) {
        const long long i = start + threadIdx.x;
        VALUE v = i < pieces ? row[i] : IDENTITY;
        v = block_scan(v, warps);
        const VALUE all = warps[7];
        if (i < pieces) row[i] = COMBINE(carry, v);
        carry = COMBINE(carry, all);
        __syncthreads();
    }
}
"""
_WRITE = """
extern "C" __global__ void __launch_bounds__(256) write(
    const TYPE* __restrict__ x, const VALUE* __restrict__ before, TYPE* __restrict__ out, long long n, long long pieces,
    long long size)
{
    __shared__ VALUE warps[8], totals[256];
    const long long p = blockIdx.x, base = p / pieces * n, low = p % pieces * size;
    const long long high = low + size < n ? low + size : n;
    VALUE carry = p % pieces ? before[p - 1] : IDENTITY;
    for (long long start = low; start < high; start += 256 * ITEMS) {
        const long long first = start + (long long)threadIdx.x * ITEMS;
        VALUE own[ITEMS];
        VALUE v = IDENTITY;
        #pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            if (first + j < high) {
                const VALUE next = load(x[base + first + j]);
                v = COMBINE(v, next);
            }
            own[j] = v;
        }
        const VALUE whole = block_scan(v, warps);
        totals[threadIdx.x] = whole;
        const VALUE all = warps[7];
        __syncthreads();
        VALUE start_with = carry;
        if (threadIdx.x > 0) {
            const VALUE ahead = totals[threadIdx.x - 1];
            start_with = COMBINE(carry, ahead);
        }
        #pragma unroll
        for (int j = 0; j < ITEMS; j++)
            if (first + j < high) out[base + first + j] = store(COMBINE(start_with, own[j]));
        carry = COMBINE(carry, all);
        __syncthreads();
    }
}
"""
_POSITIONS = """
extern "C" __global__ void __launch_bounds__(256) positions(
    const TYPE* __restrict__ x, const VALUE* __restrict__ before, long long* __restrict__ out, long long n,
    long long size)
{
    __shared__ VALUE warps[8];
    const long long p = blockIdx.x, low = p * size, high = low + size < n ? low + size : n;
    VALUE carry = p ? before[p - 1] : 0;
    for (long long start = low; start < high; start += 256) {
        const long long i = start + threadIdx.x;
        const VALUE own = i < high ? load(x[i]) : 0;
        const VALUE v = block_scan(own, warps);
        if (own) out[carry + v - 1] = i;
        carry += warps[7];
        __syncthreads();
    }
}
"""


def _types(dtype: str, kind: str, itemsize: int) -> tuple[str, str]:
    """Return the type in memory and the one that is computed with.

    Sums and products of integers are those of unsigned ones, which wrap; signed integers compare as such.
    """
    if dtype in ("float16", "bfloat16"):
        return "unsigned short", "float"
    if dtype.startswith("float"):
        return ("double",) * 2 if dtype == "float64" else ("float",) * 2
    signed = dtype.startswith("int") and kind in ("max", "min")
    names = _SIGNED if signed else UNSIGNED
    return names[itemsize], names[8 if itemsize == 8 else 4]  # noqa: PLR2004  bytes


def _settled(text: str, memory: str, value: str, kind: str, access: str) -> str:
    if kind in ("sum", "prod"):
        identity = f"(VALUE){0 if kind == 'sum' else 1}"
    else:
        identity = (_LOWEST if kind == "max" else _HIGHEST)[value]
    head = (
        f"typedef {memory} TYPE;\ntypedef {value} VALUE;\n#define ITEMS {ITEMS}\n#define IDENTITY ({identity})\n"
        f"#define COMBINE(a, b) {_COMBINE[kind]}\n"
    )
    return head + access + text


def scan(dtype: str, kind: str, itemsize: int) -> str:
    """Return the text with kernels ends, join and write.

    >>> "typedef short TYPE;" in scan("int16", "max", 2)
    True
    """
    memory, value = _types(dtype, kind, itemsize)
    access = {"float16": _HALF, "bfloat16": _BFLOAT}.get(dtype, _PLAIN)
    return _settled(_BLOCKS + _WRITE, memory, value, kind, access)


def nonzero() -> str:
    """Return the text with kernels ends, join and positions."""
    return _settled(_BLOCKS + _POSITIONS, "unsigned char", "unsigned long long", "sum", _TRUTH)


_INFINITIES = {"float16": "0x7C00", "bfloat16": "0x7F80", "float32": "0x7F800000u", "float64": "0x7FF0000000000000ull"}

_SORT = """
extern "C" __global__ void __launch_bounds__(256) keys(
    const WORD* __restrict__ x, KEY* __restrict__ out, long long count, long long n)
{
    for (long long g = (long long)blockIdx.x * 256 + threadIdx.x; g < count; g += (long long)gridDim.x * 256)
        out[g] = ROW(g / n) | (KEY)key_of(x[g]);
}
extern "C" __global__ void __launch_bounds__(256) row_numbers(
    const long long* __restrict__ order, unsigned int* __restrict__ out, long long count, long long n)
{
    for (long long g = (long long)blockIdx.x * 256 + threadIdx.x; g < count; g += (long long)gridDim.x * 256)
        out[g] = (unsigned int)(order[g] / n);
}
extern "C" __global__ void __launch_bounds__(256) followed(
    const long long* __restrict__ order, const long long* __restrict__ then, long long* __restrict__ out,
    long long count)
{
    for (long long g = (long long)blockIdx.x * 256 + threadIdx.x; g < count; g += (long long)gridDim.x * 256)
        out[g] = order[then[g]];
}
extern "C" __global__ void __launch_bounds__(256) finish(
    const WORD* __restrict__ x, const long long* __restrict__ order, WORD* __restrict__ values,
    long long* __restrict__ places, long long count, long long n)
{
    for (long long g = (long long)blockIdx.x * 256 + threadIdx.x; g < count; g += (long long)gridDim.x * 256) {
        const long long from = order[g];
        values[g] = x[from];
        places[g] = from % n;
    }
}
"""


def sort(dtype: str, itemsize: int, rows: bool) -> str:
    """Return the text with kernels keys, row_numbers, followed and finish.

    A key is an unsigned integer in the order of the elements: equal ones, -0.0 and 0.0 among them, have equal keys, and
    every NaN the greatest. With *rows* the number of the row stands above it in 64 bits.

    >>> "#define ROW(r) ((KEY)(r) << 32)" in sort("int32", 4, True)
    True
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
    shift = f"((KEY)(r) << {8 * itemsize})" if rows else "((KEY)0)"
    return (
        f"typedef {word} WORD;\ntypedef {'unsigned long long' if rows else word} KEY;\n#define ROW(r) {shift}\n"
        f"static __device__ WORD key_of(WORD b)\n{{\n{body}}}\n" + _SORT
    )
