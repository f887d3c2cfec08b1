"""CUDA text of the ops that are no fused kernels: integer products, random bits.

Here: text, and how 16-bit floats are read and written. Not here: launching, sums into rows (`row_sums_sources.py`).
TYPE stands for the dtype in memory, SUM for the type in which a sum is kept.
"""

import functools

TILE = 16  # rows and columns of C that a block of the integer product computes
UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}  # by bytes

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

# What a product ends with, where nobody has done it on the way: in place, with one row of n for all or an array.
ENDING = """
extern "C" __global__ void __launch_bounds__(256) ending(
    TYPE* __restrict__ out, const TYPE* __restrict__ addend, long long count, long long n, bool row, bool relu)
{
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const SUM value = load(out[i]) + load(addend[row ? i % n : i]);
        out[i] = store(relu && value <= (SUM)0 ? (SUM)0 : value);
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

_PLAIN = """
static __device__ WIDE load(TYPE x) { return (WIDE)x; }
static __device__ TYPE store(WIDE x) { return (TYPE)x; }
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
_NARROW = {"float16": _HALF, "bfloat16": _BFLOAT}


@functools.cache
def loads_and_stores(dtype: str, wide: str = "SUM") -> str:
    """Return the functions `load`, from TYPE to the type *wide*, and `store` back, for a float dtype or wider ones.

    >>> "cvt.rn.f16.f32" in loads_and_stores("float16")
    True
    >>> "return (VALUE)x;" in loads_and_stores("int64", "VALUE")
    True
    """
    return _NARROW.get(dtype) or _PLAIN.replace("WIDE", wide)
