"""CUDA text of the ops that are no fused kernels: integer products, random bits, sums into rows.

Here: text. Not here: launching. TYPE stands for the dtype in memory, SUM for the type in which a sum is kept.
"""

TILE = 16  # rows and columns of C that a block of the integer product computes
UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}  # by bytes
RUN = 32  # sorted positions that a block of the row sums walks

# Unsigned arithmetic wraps in C++, signed does not; so the driver passes the unsigned type of the same width.
INTEGER_MATMUL = """
extern "C" __global__ void __launch_bounds__(256) product(
    const TYPE* __restrict__ a, const TYPE* __restrict__ b, TYPE* __restrict__ c, long long m, long long n, long long k,
    long long am, long long ak, long long bk, long long bn, long long cm, long long az, long long bz, long long cz)
{
    __shared__ TYPE left[16][17], right[16][17];
    a += az * blockIdx.z; b += bz * blockIdx.z; c += cz * blockIdx.z;
    const int x = threadIdx.x, y = threadIdx.y;
    const long long column = 16LL * blockIdx.x + x;
    for (long long tile = blockIdx.y; tile * 16 < m; tile += gridDim.y) {
        const long long row = tile * 16 + y;
        TYPE sum = 0;
        for (long long start = 0; start < k; start += 16) {
            left[y][x] = row < m && start + x < k ? a[row * am + (start + x) * ak] : (TYPE)0;
            right[y][x] = column < n && start + y < k ? b[(start + y) * bk + column * bn] : (TYPE)0;
            __syncthreads();
            for (int i = 0; i < 16; i++) sum = (TYPE)(sum + (TYPE)((unsigned long long)left[y][i] * right[i][x]));
            __syncthreads();
        }
        if (row < m && column < n) c[row * cm + column] = sum;
    }
}
"""

# Philox-4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
PHILOX = """
extern "C" __global__ void __launch_bounds__(256) philox(
    unsigned int* __restrict__ out, long long n, unsigned long long key, unsigned long long counter)
{
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long block = (long long)blockIdx.x * blockDim.x + threadIdx.x; block * 4 < n; block += step) {
        const unsigned long long count = counter + (unsigned long long)block;
        unsigned int word[4] = {(unsigned int)count, (unsigned int)(count >> 32), 0u, 0u};
        unsigned int low = (unsigned int)key, high = (unsigned int)(key >> 32);
        #pragma unroll
        for (int round = 0; round < 10; round++) {
            const unsigned int p = __umulhi(0xD2511F53u, word[0]), q = 0xD2511F53u * word[0];
            const unsigned int r = __umulhi(0xCD9E8D57u, word[2]), s = 0xCD9E8D57u * word[2];
            word[0] = r ^ word[1] ^ low; word[1] = s; word[2] = p ^ word[3] ^ high; word[3] = q;
            low += 0x9E3779B9u; high += 0xBB67AE85u;
        }
        if (block * 4 + 4 <= n && ((unsigned long long)out & 15) == 0) {
            *(uint4*)(out + block * 4) = make_uint4(word[0], word[1], word[2], word[3]);
        } else {
            for (int i = 0; i < 4 && block * 4 + i < n; i++) out[block * 4 + i] = word[i];
        }
    }
}
"""

# Bad indices are clamped, so that no address leaves the rows; the first one is written to the status word.
ROW_INDICES = """
extern "C" __global__ void __launch_bounds__(256) indices(
    const long long* __restrict__ index, long long stride, long long count, long long rows,
    long long* __restrict__ keys, int* __restrict__ status, int tag)
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
    keys[j] = row < 0 || row >= rows ? -1 : row;  // the sums leave -1 out
}
"""

# Rows of one key follow each other in sorted order, so each key is one run of positions and one row of the sum. A block
# walks RUN positions: a run that lies inside is stored; of one that crosses a border the parts go to `head` (it
# began before
# the block) and `tail` (it goes on after it), and `join` adds them up, always in the same order.
ROW_SUMS = """
LOAD_AND_STORE
static __device__ SUM combine(SUM a, SUM b) { return COMBINED; }
#define KEY(p) rows[order[p]]
extern "C" __global__ void __launch_bounds__(128) fill(TYPE* __restrict__ out, long long count)
{
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long k = first; k < count; k += (long long)gridDim.x * blockDim.x) out[k] = store((SUM)START);
}
extern "C" __global__ void __launch_bounds__(128) sums(
    const long long* __restrict__ rows, const long long* __restrict__ order, const TYPE* __restrict__ values,
    TYPE* __restrict__ out, SUM* __restrict__ head, SUM* __restrict__ tail, long long count, long long width)
{
    const long long column = (long long)blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= width) return;
    const long long first = (long long)blockIdx.x * 32, last = first + 32 < count ? first + 32 : count;
    bool began = first > 0 && KEY(first - 1) == KEY(first);
    SUM sum = START;
    for (long long p = first; p < last; p++) {
        const long long key = KEY(p);
        sum = combine(sum, load(values[order[p] * width + column]));
        if (p + 1 < last && KEY(p + 1) == key) continue;
        const bool goes_on = p + 1 < count && KEY(p + 1) == key;
        if (began) head[blockIdx.x * width + column] = sum;
        else if (goes_on) tail[blockIdx.x * width + column] = sum;
        else if (key >= 0) out[key * width + column] = store(sum);
        began = false;
        sum = START;
    }
}
extern "C" __global__ void __launch_bounds__(128) join(
    const long long* __restrict__ rows, const long long* __restrict__ order, TYPE* __restrict__ out,
    const SUM* __restrict__ head, const SUM* __restrict__ tail, long long count, long long width)
{
    const long long column = (long long)blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= width) return;
    const long long last = (long long)blockIdx.x * 32 + 31;
    if (last + 1 >= count) return;
    const long long key = KEY(last);
    if (KEY(last + 1) != key) return;
    const long long first = (long long)blockIdx.x * 32;
    if (KEY(first) == key && first > 0 && KEY(first - 1) == key) return;
    SUM sum = tail[blockIdx.x * width + column];
    for (long long block = blockIdx.x + 1; block * 32 < count && KEY(block * 32) == key; block++)
        sum = combine(sum, head[block * width + column]);
    if (key >= 0) out[key * width + column] = store(sum);
}
"""

_PLAIN = """
static __device__ SUM load(TYPE x) { return (SUM)x; }
static __device__ TYPE store(SUM x) { return (TYPE)x; }
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


def row_sums(dtype: str, unsigned: str, mode: str = "add") -> str:
    """Return the text that combines rows of *dtype*; *unsigned* is the C type in which integers of its width wrap.

    >>> "float sum" in row_sums("float16", ""), "unsigned char sum" in row_sums("int8", "unsigned char")
    (True, True)
    """
    convert = {"float16": _HALF, "bfloat16": _BFLOAT}.get(dtype, _PLAIN)
    memory = {"float16": "unsigned short", "bfloat16": "unsigned short", "float32": "float", "float64": "double"}
    held = memory.get(dtype, unsigned)
    kept = "double" if dtype == "float64" else "float" if "float" in dtype else unsigned
    if mode in ("max", "min") and dtype.startswith("int"):
        held = kept = unsigned.replace("unsigned", "signed")
    bits = {"unsigned char": 8, "unsigned short": 16, "unsigned int": 32}.get(unsigned, 64)
    text = ROW_SUMS.replace("LOAD_AND_STORE", convert).replace("COMBINED", COMBINED[mode])
    return text.replace("START", start_of(mode, dtype, bits)).replace("TYPE", held).replace("SUM", kept)
