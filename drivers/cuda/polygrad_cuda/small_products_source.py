"""CUDA text of small products of float32: one wave of blocks, which share the inner axis in clusters.

Here: text, with the layout of its launch. Not here: for which products it is used (`small_products.py`).

A block makes a tile of 64 x 64 from a part of the inner axis, and the blocks of a cluster add up the parts of a tile
through each other's shared memory, in a fixed order: results are the same in every run. Slices of the operands come to
shared memory as they lie, three steps ahead, past the registers; beyond the ends they are zeros. A thread makes 4 x 4
elements; eight neighbours read eight rows of a slice, in different banks, at once. Larger parts for each thread (8 x 8,
with teams that share the terms) were tried and gained nothing: fewer blocks fit on a multiprocessor then.
"""

from typing import NamedTuple

TILE = 64
THREADS = 256
STEP = 16  # of the inner axis
SLOTS = ("pointer",) * 4 + ("int32",) * 7 + ("int64",) * 4  # of the kernel's arguments


class Form(NamedTuple):
    """One program: how the operands lie, how many blocks share a tile, and what the product ends with."""

    split: int  # 1, 2, 4 or 8
    a_inner: bool  # whether the inner axis of a is contiguous; if not, its rows' axis is
    b_inner: bool
    a_vector: bool  # whether four elements are read at once
    b_vector: bool
    addend: bool
    relu: bool


def text_of(form: Form) -> str:
    """Return the program with the kernel `product`.

    Launch it in blocks of 256 threads: (split * ceil(n / 64), ceil(m / 64), products). Its arguments: addresses of a,
    b, out and addend; m, n, k, the terms a block takes (a multiple of 16), the steps from one row of a, of b and of the
    addend to the next, where a row is what is contiguous; steps from one product to the next for the four.
    """
    defines = "".join(
        f"#define {name} {int(value)}\n"
        for name, value in zip(
            ("SPLIT", "A_INNER", "B_INNER", "A_VECTOR", "B_VECTOR", "ADDEND", "RELU"), form, strict=True
        )
    )
    return defines + _TEXT


_TEXT = r"""
#define STAGES 4
#define SLICE 1280  // floats: 64 rows of 16 and 4 to spare, or 16 of 64 and 4
#define WIDTH 72  // of a row of sums; neighbours then lie in different banks

static __device__ __forceinline__ unsigned int shared_address(const void* p)
{
    return (unsigned int)__cvta_generic_to_shared(p);
}

// The next slice of an operand: rows from `row` on below `rows`, terms from `k` on below `last`; zeros beyond.
template <int INNER, int VECTOR>
static __device__ __forceinline__ void fetch(
    float* slice, const float* __restrict__ x, int ld, int row, int rows, int k, int last)
{
    #pragma unroll
    for (int s = 0; s < (VECTOR ? 1 : 4); s++) {
        const int e = threadIdx.x + 256 * s, width = VECTOR ? 4 : 1;
        const int r = INNER ? e / (16 / width) : e % (64 / width) * width;
        const int q = INNER ? e % (16 / width) * width : e / (64 / width);
        const int left = INNER ? (row + r < rows ? last - (k + q) : 0) : (k + q < last ? rows - (row + r) : 0);
        const int bytes = 4 * min(max(left, 0), width);
        const long long outer = INNER ? row + r : k + q, inner = INNER ? k + q : row + r;
        const float* from = bytes ? x + outer * ld + inner : x;
        const unsigned int to = shared_address(slice + (INNER ? r * 20 + q : q * 68 + r));
        if (VECTOR) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes));
        else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(to), "l"(from), "r"(bytes));
    }
}

// Four terms of four rows: 16 apart, or neighbours.
template <int INNER>
static __device__ __forceinline__ void read(float (&into)[4][4], const float* slice, int place, int k)
{
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 v = *(const float4*)(slice + (INNER ? (place + 16 * i) * 20 + k : (k + i) * 68 + 4 * place));
        if (INNER) { into[i][0] = v.x; into[i][1] = v.y; into[i][2] = v.z; into[i][3] = v.w; }
        else { into[0][i] = v.x; into[1][i] = v.y; into[2][i] = v.z; into[3][i] = v.w; }
    }
}

// The row, or column, of a tile that a thread's number i is.
template <int INNER> static __device__ __forceinline__ int place_of(int place, int i)
{
    return INNER ? place + 16 * i : 4 * place + i;
}

// What a block of the cluster has left at a place of shared memory.
static __device__ __forceinline__ float part(const float* own, int block)
{
#if SPLIT > 1
    float value;
    unsigned int place;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(shared_address(own)), "r"(block));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(place));
    return value;
#else
    return *own;
#endif
}

// Wait for all threads of the cluster.
static __device__ __forceinline__ void meet()
{
#if SPLIT > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

#if SPLIT > 1
extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(256, 2)
#else
extern "C" __global__ void __launch_bounds__(256, 2)
#endif
product(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out,
    const float* __restrict__ addend, int m, int n, int k, int span, int a_step, int b_step, int addend_step,
    long long a_next, long long b_next, long long out_next, long long addend_next)
{
    __shared__ __align__(16) float memory[2 * STAGES * SLICE];
    a += a_next * blockIdx.z; b += b_next * blockIdx.z;
    out += out_next * blockIdx.z; addend += addend_next * blockIdx.z;
    const int t = threadIdx.x, y = t / 64 * 4 + t / 8 % 4, x = t / 32 % 2 * 8 + t % 8;
    const int rank = blockIdx.x % SPLIT, column = blockIdx.x / SPLIT * 64, row = blockIdx.y * 64;
    const int first = min(k, rank * span), last = min(k, first + span), steps = (last - first + 15) / 16;
    float sums[4][4] = {};
    #pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) {
            fetch<A_INNER, A_VECTOR>(memory + 2 * s * SLICE, a, a_step, row, m, first + 16 * s, last);
            fetch<B_INNER, B_VECTOR>(memory + (2 * s + 1) * SLICE, b, b_step, column, n, first + 16 * s, last);
        }
        asm volatile("cp.async.commit_group;");
    }
    for (int s = 0; s < steps; s++) {
        asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
        __syncthreads();
        const int next = s + STAGES - 1;
        if (next < steps) {
            float* place = memory + 2 * (next % STAGES) * SLICE;
            fetch<A_INNER, A_VECTOR>(place, a, a_step, row, m, first + 16 * next, last);
            fetch<B_INNER, B_VECTOR>(place + SLICE, b, b_step, column, n, first + 16 * next, last);
        }
        asm volatile("cp.async.commit_group;");
        const float* slices = memory + 2 * (s % STAGES) * SLICE;
        #pragma unroll
        for (int q = 0; q < 16; q += 4) {
            float u[4][4], v[4][4];
            read<A_INNER>(u, slices, y, q);
            read<B_INNER>(v, slices + SLICE, x, q);
            #pragma unroll
            for (int p = 0; p < 4; p++)
                #pragma unroll
                for (int i = 0; i < 4; i++)
                    #pragma unroll
                    for (int j = 0; j < 4; j++) sums[i][j] = fmaf(u[i][p], v[j][p], sums[i][j]);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 4; i++)
        #pragma unroll
        for (int j = 0; j < 4; j++)
            memory[place_of<A_INNER>(y, i) * WIDTH + place_of<B_INNER>(x, j)] = sums[i][j];
    meet();
    #pragma unroll
    for (int s = 0; s < 16 / SPLIT; s++) {
        const int e = t + 256 * s, i = rank * (64 / SPLIT) + e / 64, j = e % 64;
        float parts[SPLIT];
        #pragma unroll
        for (int q = 0; q < SPLIT; q++) parts[q] = part(memory + i * WIDTH + j, q);
        float value = parts[0];
        #pragma unroll
        for (int q = 1; q < SPLIT; q++) value += parts[q];
        if (row + i < m && column + j < n) {
            if (ADDEND) value += addend[(long long)(row + i) * addend_step + column + j];
            if (RELU) value = value <= 0.0f ? 0.0f : value;
            out[(long long)(row + i) * n + column + j] = value;
        }
    }
#if SPLIT > 1
    meet();  // another block may still read this one's part
#endif
}
"""
