"""CUDA text of what finds extremes, and places in what is sorted.

Here: text. Not here: launching (`searching.py`). Elements are compared by their keys (`sorting_sources.py`).
"""

import functools

from polygrad_cuda.sorting_sources import keys
from polygrad_cuda.sources import UNSIGNED

# The first extreme is the pair of greatest rank and least place, whatever order they are compared in. Each block finds
# that of a piece of a row; the last one to finish, which a counter tells and sets back, that of each row's pieces.
# Shuffles know no types below 32 bits, so ranks travel as RANK.
_EXTREME = """
static __device__ void keep(RANK& rank, long long& place, RANK other, long long there)
{
    if (other > rank || (other == rank && there < place)) { rank = other; place = there; }
}
static __device__ void keep_of_warp(RANK& rank, long long& place)
{
    for (int d = 16; d > 0; d /= 2) {
        const RANK other = __shfl_down_sync(0xffffffffu, rank, d);
        const long long there = __shfl_down_sync(0xffffffffu, place, d);
        keep(rank, place, other, there);
    }
}
extern "C" __global__ void __launch_bounds__(256) extreme(
    const WORD* __restrict__ x, RANK* ranks, long long* places, long long* __restrict__ out, unsigned int* done,
    long long n, long long pieces, long long size)
{
    __shared__ RANK warp_ranks[8];
    __shared__ long long warp_places[8];
    __shared__ bool last;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const long long p = blockIdx.x, low = p % pieces * size, high = low + size < n ? low + size : n;
    const WORD* row = x + p / pieces * n;
    RANK rank = 0;
    long long place = n;
    #pragma unroll 8
    for (long long i = low + threadIdx.x; i < high; i += 256) {
        const RANK own = rank_of(row[i]);
        if (own > rank || place == n) { rank = own; place = i; }
    }
    keep_of_warp(rank, place);
    if (lane == 0) { warp_ranks[warp] = rank; warp_places[warp] = place; }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 8; w++) keep(rank, place, warp_ranks[w], warp_places[w]);
        if (pieces == 1) {
            out[p] = place;
        } else {
            ranks[p] = rank;
            places[p] = place;
            __threadfence();
            last = atomicAdd(done, 1u) == gridDim.x - 1;
        }
    }
    if (pieces == 1) return;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (long long r = warp; r < gridDim.x / pieces; r += 8) {
        rank = 0;
        place = n;
        for (long long i = r * pieces + lane; i < (r + 1) * pieces; i += 32)
            keep(rank, place, __ldcg(ranks + i), __ldcg(places + i));  // past the cache of this multiprocessor
        keep_of_warp(rank, place);
        if (lane == 0) out[r] = place;
    }
    if (threadIdx.x == 0) *done = 0;
}
"""


@functools.cache
def extreme(dtype: str, kind: str, itemsize: int) -> str:
    """Return the text with kernel extreme.

    >>> "return (unsigned int)~key_of(b)" in extreme("uint32", "min", 4)
    True
    """
    word = UNSIGNED[itemsize]
    turned = "key_of(b)" if kind == "max" else f"({word})~key_of(b)"
    missing = f"if (key_of(b) == ({word})~({word})0) return ({word})~({word})0; " if "float" in dtype else ""
    rank = UNSIGNED[8 if itemsize == 8 else 4]  # noqa: PLR2004  bytes
    return (
        f"{keys(dtype, itemsize)}typedef {rank} RANK;\n"
        f"static __device__ WORD rank_of(WORD b) {{ {missing}return {turned}; }}\n" + _EXTREME
    )


# The number of elements before a place grows by halves of what is left; a wanted element's row is that of what is
# searched.
_SEARCH = """
extern "C" __global__ void __launch_bounds__(256) search(
    const WORD* __restrict__ x, const WORD* __restrict__ wanted, long long* __restrict__ out, INDEX count, INDEX n,
    INDEX each)
{
    for (INDEX g = blockIdx.x * 256 + threadIdx.x; g < count; g += gridDim.x * 256) {
        const WORD* row = x + g / each * n;
        const WORD key = key_of(wanted[g]);
        INDEX low = 0, left = n;
        while (left > 0) {
            const INDEX half = left / 2;
            const WORD there = key_of(row[low + half]);
            const bool before = BEFORE;
            low = before ? low + half + 1 : low;
            left = before ? left - half - 1 : half;
        }
        out[g] = (long long)low;
    }
}
"""


@functools.cache
def search(dtype: str, itemsize: int, index: str, *, right: bool) -> str:
    """Return the text with kernel search, which counts in the type *index*.

    >>> "#define BEFORE there <= key" in search("float32", 4, "unsigned int", right=True)
    True
    """
    before = "there <= key" if right else "there < key"
    return f"{keys(dtype, itemsize)}typedef {index} INDEX;\n#define BEFORE {before}\n" + _SEARCH
