"""CUDA text of running reductions, and of finding what is true.

Here: text. Not here: launching (`ordering.py`), sorting (`sorting_sources.py`), searching (`searching_sources.py`).

TYPE stands for the dtype in memory, VALUE for the type in which reductions are kept. Texts are made once: the same
object is found faster among the kernels that are ready.
"""

import functools

from polygrad_cuda.sources import UNSIGNED, loads_and_stores

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


# Every row is cut into `pieces` of `size` elements. `ends` reduces each piece; the kernel behind it starts a piece with
# the reduction of all before it, which each block makes for itself, always in the same order.
_BLOCK_SCAN = """
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
"""
_ENDS = """
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
"""
_AHEAD = """
static __device__ VALUE ahead_of(const VALUE* ends, long long count, VALUE* warps)
{
    const long long each = (count + 255) / 256, first = each * threadIdx.x;
    VALUE v = IDENTITY;
    for (long long i = first; i < first + each && i < count; i++) {
        const VALUE own = ends[i];
        v = COMBINE(v, own);
    }
    block_scan(v, warps);
    const VALUE all = warps[7];
    __syncthreads();
    return all;
}
"""
# Of a tile a warp takes 32 * ITEMS elements, in groups of PACK for each lane, so that loads and stores are in a row.
_WRITE = """
struct alignas(PACK * sizeof(TYPE)) Pack { TYPE of[PACK]; };
static __device__ bool aligned(const TYPE* at) { return ((unsigned long long)at & (sizeof(Pack) - 1)) == 0; }
static __device__ VALUE warp_scan(VALUE v)
{
    for (int d = 1; d < 32; d *= 2) {
        const VALUE before = __shfl_up_sync(0xffffffffu, v, d);
        if ((threadIdx.x & 31) >= d) v = COMBINE(before, v);
    }
    return v;
}
extern "C" __global__ void __launch_bounds__(256) write(
    const TYPE* __restrict__ x, const VALUE* __restrict__ ends, TYPE* __restrict__ out, long long n, long long pieces,
    long long size)
{
    __shared__ VALUE warps[8];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const long long p = blockIdx.x, row = p / pieces, piece = p % pieces, low = piece * size;
    const long long high = low + size < n ? low + size : n;
    x += row * n;
    out += row * n;
    const bool packed = aligned(x + low) && aligned(out + low);
    VALUE carry = piece ? ahead_of(ends + row * pieces, piece, warps) : IDENTITY;
    for (long long start = low; start < high; start += 256 * ITEMS) {
        const long long mine = start + warp * 32 * ITEMS + lane * PACK;
        VALUE own[ITEMS];
        VALUE run = IDENTITY;
        #pragma unroll
        for (int k = 0; k < ITEMS / PACK; k++) {
            const long long first = mine + k * 32 * PACK;
            Pack part;
            if (packed && first + PACK <= high) {
                part = *(const Pack*)(x + first);
            } else {
                for (int j = 0; j < PACK && first + j < high; j++) part.of[j] = x[first + j];
            }
            VALUE v = IDENTITY;
            #pragma unroll
            for (int j = 0; j < PACK; j++) {
                if (first + j < high) {
                    const VALUE next = load(part.of[j]);
                    v = COMBINE(v, next);
                }
                own[k * PACK + j] = v;
            }
            const VALUE whole = warp_scan(v), left = __shfl_up_sync(0xffffffffu, whole, 1);
            const VALUE ahead = lane ? COMBINE(run, left) : run;
            #pragma unroll
            for (int j = 0; j < PACK; j++) own[k * PACK + j] = COMBINE(ahead, own[k * PACK + j]);
            const VALUE all = __shfl_sync(0xffffffffu, whole, 31);
            run = COMBINE(run, all);
        }
        if (lane == 0) warps[warp] = run;
        __syncthreads();
        VALUE start_with = carry;
        for (int w = 0; w < 8; w++) {
            const VALUE all = warps[w];
            if (w < warp) start_with = COMBINE(start_with, all);
            carry = COMBINE(carry, all);
        }
        #pragma unroll
        for (int k = 0; k < ITEMS / PACK; k++) {
            const long long first = mine + k * 32 * PACK;
            Pack part;
            #pragma unroll
            for (int j = 0; j < PACK; j++) part.of[j] = store(COMBINE(start_with, own[k * PACK + j]));
            if (packed && first + PACK <= high) {
                *(Pack*)(out + first) = part;
            } else {
                for (int j = 0; j < PACK && first + j < high; j++) out[first + j] = part.of[j];
            }
        }
        __syncthreads();
    }
}
"""
# A thread takes 16 elements at a time, in one load where they lie right, as bits of a number.
_TRUE = """
static __device__ unsigned int bits_of(const TYPE* __restrict__ x, long long first, long long high)
{
    unsigned int found = 0;
    if (first + 16 <= high && ((unsigned long long)(x + first) & 15) == 0) {
        const uint4 four = *(const uint4*)(x + first);
        const unsigned int words[4] = {four.x, four.y, four.z, four.w};
        #pragma unroll
        for (int j = 0; j < 16; j++) found |= (unsigned int)((words[j / 4] >> (8 * (j & 3)) & 255u) != 0) << j;
    } else {
        for (int j = 0; j < 16 && first + j < high; j++) found |= (unsigned int)(x[first + j] != 0) << j;
    }
    return found;
}
extern "C" __global__ void __launch_bounds__(256) ends(
    const TYPE* __restrict__ x, VALUE* __restrict__ out, long long n, long long pieces, long long size)
{
    __shared__ VALUE warps[8];
    const long long p = blockIdx.x, low = p * size, high = low + size < n ? low + size : n;
    VALUE v = 0;
    for (long long i = low + 16 * threadIdx.x; i < high; i += 4096) v += __popc(bits_of(x, i, high));
    v = block_scan(v, warps);
    if (threadIdx.x == 255) out[p] = v;
}
extern "C" __global__ void __launch_bounds__(256) positions(
    const TYPE* __restrict__ x, const VALUE* __restrict__ ends, long long* __restrict__ out, long long n,
    long long size)
{
    __shared__ VALUE warps[8];
    __shared__ unsigned short found[4096];  // places in a tile, so that they are written in a row
    const long long p = blockIdx.x, low = p * size, high = low + size < n ? low + size : n;
    VALUE carry = p ? ahead_of(ends, p, warps) : 0;
    for (long long start = low; start < high; start += 4096) {
        const long long first = start + 16 * threadIdx.x;
        unsigned int bits = bits_of(x, first, high);
        const VALUE own = __popc(bits), v = block_scan(own, warps);
        const int all = (int)warps[7];
        for (int at = (int)(v - own); bits; bits &= bits - 1) found[at++] = 16 * threadIdx.x + __ffs(bits) - 1;
        __syncthreads();
        for (int i = threadIdx.x; i < all; i += 256) out[carry + i] = start + found[i];
        carry += all;
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


def _settled(text: str, memory: str, value: str, kind: str, access: str, itemsize: int = 1) -> str:
    if kind in ("sum", "prod"):
        identity = f"(VALUE){0 if kind == 'sum' else 1}"
    else:
        identity = (_LOWEST if kind == "max" else _HIGHEST)[value]
    head = (
        f"typedef {memory} TYPE;\ntypedef {value} VALUE;\n#define ITEMS {ITEMS}\n"
        f"#define PACK {min(16 // itemsize, ITEMS)}\n#define IDENTITY ({identity})\n"
        f"#define COMBINE(a, b) {_COMBINE[kind]}\n"
    )
    return head + access + text


@functools.cache
def scan(dtype: str, kind: str, itemsize: int) -> str:
    """Return the text with kernels ends and write.

    >>> "typedef short TYPE;" in scan("int16", "max", 2)
    True
    """
    memory, value = _types(dtype, kind, itemsize)
    access = loads_and_stores(dtype, "VALUE")
    return _settled(_BLOCK_SCAN + _ENDS + _AHEAD + _WRITE, memory, value, kind, access, itemsize)


@functools.cache
def nonzero() -> str:
    """Return the text with kernels ends and positions."""
    return _settled(_BLOCK_SCAN + _AHEAD + _TRUE, "unsigned char", "unsigned long long", "sum", "")
