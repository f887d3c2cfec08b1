"""CUDA text of sums into rows, and of the other combinations of rows by index.

Here: text. Not here: launching (`row_sums.py`). TYPE stands for the dtype in memory, SUM for the type in which a sum is
kept.
"""

import functools

from polygrad_cuda.sources import UNSIGNED, loads_and_stores

RUN = 16  # sorted positions that a block of the row sums walks
EACH = 4  # elements whose places a warp counts
FEW = 1 << 14  # indices that are sorted by counting: beyond, a sort takes less

# A row's number is its key; the key of a bad index is greater than all others, and its row is left out. The first one
# is written to the status word.
_ROW_INDICES = """
extern "C" __global__ void __launch_bounds__(256) indices(
    const long long* __restrict__ index, long long stride, long long count, long long rows,
    KEY* __restrict__ keys, int* __restrict__ status, int tag)
{
    const long long j = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= count) return;
    const long long given = index[j * stride];
    if ((given < -rows || given >= rows) && status && atomicCAS(status, 0, tag) == 0) {
        status[1] = 0;
        status[2] = (int)(unsigned int)(unsigned long long)given;
        status[3] = (int)(unsigned int)((unsigned long long)given >> 32);
    }
    const long long row = given < 0 ? given + rows : given;
    keys[j] = row < 0 || row >= rows ? NOWHERE : (KEY)row;
}
"""

# The same, sorted: an element's place is the number of those before it, which every warp counts for EACH of them. This
# waits for nothing but arithmetic; so the blocks behind the first `sorters` zero the sums meanwhile.
_ROWS_IN_ORDER = """
static __device__ PACKED packed(const long long* __restrict__ index, long long stride, long long rows, int j)
{
    const long long given = index[j * stride], row = given < 0 ? given + rows : given;
    return (PACKED)(row < 0 || row >= rows ? NOWHERE : (KEY)row) << 16 | (unsigned int)j;
}
extern "C" __global__ void __launch_bounds__(256) in_order(
    const long long* __restrict__ index, long long stride, long long count, long long rows,
    KEY* __restrict__ keys, long long* __restrict__ order, uint4* __restrict__ zeros, long long room, int sorters,
    int* __restrict__ status, int tag)
{
    if (blockIdx.x >= sorters) {
        const long long first = (long long)(blockIdx.x - sorters) * 256 + threadIdx.x;
        for (long long i = first; i < room; i += (long long)(gridDim.x - sorters) * 256)
            zeros[i] = make_uint4(0u, 0u, 0u, 0u);
        return;
    }
    __shared__ PACKED tile[2048];
    const int lane = threadIdx.x & 31, first = (blockIdx.x * 8 + (threadIdx.x >> 5)) * EACH, all = (int)count;
    PACKED own[EACH];
    int before[EACH];
    #pragma unroll
    for (int e = 0; e < EACH; e++) before[e] = 0;
    #pragma unroll
    for (int e = 0; e < EACH; e++) own[e] = first + e < all ? packed(index, stride, rows, first + e) : (PACKED)0;
    for (int start = 0; start < all; start += 2048) {
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const int i = threadIdx.x + 256 * e;
            tile[i] = start + i < all ? packed(index, stride, rows, start + i) : ~(PACKED)0;  // before nothing
        }
        __syncthreads();
        #pragma unroll 8
        for (int i = 0; i < 64; i++) {
            const PACKED other = tile[32 * i + lane];
            #pragma unroll
            for (int e = 0; e < EACH; e++) before[e] += other < own[e];
        }
        __syncthreads();
    }
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int place = __reduce_add_sync(0xffffffffu, before[e]);
        if (lane != 0 || first + e >= all) continue;
        const KEY key = (KEY)(own[e] >> 16);
        keys[place] = key;
        order[place] = first + e;
        if (key == NOWHERE && status && atomicCAS(status, 0, tag) == 0) {
            const long long given = index[(first + e) * stride];
            status[1] = 0;
            status[2] = (int)(unsigned int)(unsigned long long)given;
            status[3] = (int)(unsigned int)((unsigned long long)given >> 32);
        }
    }
}
"""
# Keys stand in sorted order, so each is one run of positions and one row of the sum. A block walks RUN positions: a
# run that lies inside is stored; of one that crosses a border the parts go to `head` (it began before the block) and
# `tail` (it goes on after it), and `join` adds them up, always in the same order.
_ROW_SUMS = """
LOAD_AND_STORE
static __device__ SUM combine(SUM a, SUM b) { return COMBINED; }
extern "C" __global__ void __launch_bounds__(128) fill(TYPE* __restrict__ out, long long count)
{
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long k = first; k < count; k += (long long)gridDim.x * blockDim.x) out[k] = store((SUM)START);
}
extern "C" __global__ void __launch_bounds__(128) sums(
    const KEY* __restrict__ keys, const long long* __restrict__ order, const TYPE* __restrict__ values,
    TYPE* __restrict__ out, SUM* __restrict__ head, SUM* __restrict__ tail, long long count, long long width)
{
    const long long column = (long long)blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= width) return;
    const long long first = (long long)blockIdx.x * RUN, last = first + RUN < count ? first + RUN : count;
    bool began = first > 0 && keys[first - 1] == keys[first];
    SUM sum = START;
    for (long long start = first; start < last; start += 4) {
        TYPE ahead[4];
        #pragma unroll
        for (int j = 0; j < 4; j++)
            if (start + j < last) ahead[j] = values[order[start + j] * width + column];
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            const long long p = start + j;
            if (p >= last) break;
            const KEY key = keys[p];
            sum = combine(sum, load(ahead[j]));
            if (p + 1 < last && keys[p + 1] == key) continue;
            const bool goes_on = p + 1 < count && keys[p + 1] == key;
            if (began) head[blockIdx.x * width + column] = sum;
            else if (goes_on) tail[blockIdx.x * width + column] = sum;
            else if (key != NOWHERE) out[(long long)key * width + column] = store(sum);
            began = false;
            sum = START;
        }
    }
}
extern "C" __global__ void __launch_bounds__(128) join(
    const KEY* __restrict__ keys, TYPE* __restrict__ out, const SUM* __restrict__ head, const SUM* __restrict__ tail,
    long long count, long long width)
{
    const long long column = (long long)blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= width) return;
    const long long last = (long long)blockIdx.x * RUN + RUN - 1;
    if (last + 1 >= count) return;
    const KEY key = keys[last];
    if (keys[last + 1] != key) return;
    const long long first = (long long)blockIdx.x * RUN;
    if (keys[first] == key && first > 0 && keys[first - 1] == key) return;
    SUM sum = tail[blockIdx.x * width + column];
    for (long long block = blockIdx.x + 1; block * RUN < count && keys[block * RUN] == key; block++)
        sum = combine(sum, head[block * width + column]);
    if (key != NOWHERE) out[(long long)key * width + column] = store(sum);
}
"""


# NaN wins over numbers.
COMBINED = {
    "add": "a + b",
    "multiply": "a * b",
    "max": "a != a || a > b ? a : b",
    "min": "a != a || a < b ? a : b",
}


def start_of(mode: str, dtype: str, bits: int) -> str:
    """Return what combines with any value to that value, as C.

    >>> start_of("max", "int8", 8), start_of("min", "uint16", 16), start_of("max", "float32", 32)
    ('(-127LL - 1)', '65535ULL', '(-__int_as_float(0x7f800000))')
    """
    if mode in ("add", "multiply"):
        return "0" if mode == "add" else "1"
    if "float" in dtype:
        return "(-__int_as_float(0x7f800000))" if mode == "max" else "__int_as_float(0x7f800000)"
    if dtype.startswith("u"):
        return "0" if mode == "max" else f"{2**bits - 1}ULL"
    return f"(-{2 ** (bits - 1) - 1}LL - 1)" if mode == "max" else f"{2 ** (bits - 1) - 1}LL"


def key_type(rows: int) -> str:
    """Return the smallest dtype that holds the numbers of *rows* and one more: the fewer bytes, the faster a sort.

    >>> key_type(65_535), key_type(65_536), key_type(1 << 40)
    ('uint16', 'uint32', 'uint64')
    """
    return "uint16" if rows < 1 << 16 else "uint32" if rows < 1 << 32 else "uint64"


@functools.cache
def row_indices(key: str) -> str:
    """Return the text that makes row numbers of indices: kernel indices, for keys of type *key*.

    >>> "typedef unsigned short KEY" in row_indices("uint16")
    True
    """
    return _keys(key) + _ROW_INDICES


@functools.cache
def rows_in_order(key: str) -> str:
    """Return the text that makes sorted row numbers, below 2**32, of at most FEW indices: kernel in_order.

    >>> "typedef unsigned int PACKED" in rows_in_order("uint16")
    True
    """
    packed = UNSIGNED[4 if key == "uint16" else 8]
    return f"{_keys(key)}typedef {packed} PACKED;\n#define EACH {EACH}\n" + _ROWS_IN_ORDER


def _keys(key: str) -> str:
    return f"typedef {UNSIGNED[int(key[4:]) // 8]} KEY;\n#define NOWHERE ((KEY)~(KEY)0)\n"


@functools.cache
def row_sums(dtype: str, unsigned: str, mode: str, key: str) -> str:
    """Return the text that combines rows of *dtype*; *unsigned* is the C type in which integers of its width wrap.

    >>> "float sum" in row_sums("float16", "", "add", "uint16")
    True
    >>> "unsigned char sum" in row_sums("int8", "unsigned char", "add", "uint16")
    True
    """
    convert = loads_and_stores(dtype)
    memory = {"float16": "unsigned short", "bfloat16": "unsigned short", "float32": "float", "float64": "double"}
    held = memory.get(dtype, unsigned)
    kept = "double" if dtype == "float64" else "float" if "float" in dtype else unsigned
    if mode in ("max", "min") and dtype.startswith("int"):
        held = kept = unsigned.replace("unsigned", "signed")
    bits = {"unsigned char": 8, "unsigned short": 16, "unsigned int": 32}.get(unsigned, 64)
    text = _ROW_SUMS.replace("LOAD_AND_STORE", convert).replace("COMBINED", COMBINED[mode])
    text = text.replace("START", start_of(mode, dtype, bits)).replace("TYPE", held).replace("SUM", kept)
    return f"{_keys(key)}#define RUN {RUN}\n{text}"
