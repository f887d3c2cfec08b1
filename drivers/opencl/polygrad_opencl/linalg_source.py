"""OpenCL C of elimination, Cholesky factors, triangular systems and determinants.

Here: text, pure and testable without a device. Not here: launches (`linalg.py`).

Matrices stand row by row in a scratch buffer, one behind the other: n rows of `width` numbers, the right sides of a
system beside the matrix. A number is a real one, or a complex one as a vector of two. The first axis of a grid counts
matrices, since devices limit the others to 65,535 groups. Where a kernel needs barriers a work-group has a matrix (or
columns of one) for itself; every loop with a barrier ends in one, and no work-item leaves early.
"""

from polygrad_opencl.source import PRELUDE

BLOCK = 32  # columns that one group eliminates before the rest of the matrix is brought up to date
TILE = 16

REAL = """
typedef REAL num;
inline num mul(num a, num b) { return a * b; }
inline num over(num a, num b) { return a / b; }
inline num conjugate(num a) { return a; }
inline REAL size(num a) { return fabs(a); }
inline REAL real_part(num a) { return a; }
inline num from_real(REAL a) { return a; }
inline num fetch(global const REAL* p, long i) { return p[i]; }
inline void put(num v, global REAL* p, long i) { p[i] = v; }
"""

# Division by Smith's way (1962): no overflow between.
COMPLEX = """
typedef PAIR num;
inline num mul(num a, num b) { return (num)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
inline num over(num a, num b)
{
    if (fabs(b.x) >= fabs(b.y)) {
        REAL r = b.y / b.x, d = b.x + b.y * r;
        return (num)((a.x + a.y * r) / d, (a.y - a.x * r) / d);
    }
    REAL r = b.x / b.y, d = b.x * r + b.y;
    return (num)((a.x * r + a.y) / d, (a.y * r - a.x) / d);
}
inline num conjugate(num a) { return (num)(a.x, -a.y); }
inline REAL size(num a) { return hypot(a.x, a.y); }
inline REAL real_part(num a) { return a.x; }
inline num from_real(REAL a) { return (num)(a, (REAL)0); }
inline num fetch(global const REAL* p, long i) { return vload2(i, p); }
inline void put(num v, global REAL* p, long i) { vstore2(v, i, p); }
"""

KERNELS = """
// Operands and results may start at any real number: only the scratch buffer is read as vectors.
kernel void join(global num* x, global const REAL* a, global const REAL* b, long oa, long ob, long n, long m,
    long total)
{
    long width = n + m;
    a += oa;
    b += ob;
    for (long e = get_global_id(0); e < total; e += get_global_size(0)) {
        long row = e / width, j = e % width;
        x[e] = j < n ? fetch(a, row * n + j) : fetch(b, row * m + j - n);
    }
}

kernel void part(global const num* x, global REAL* out, long o, long n, long m, long total)
{
    for (long e = get_global_id(0); e < total; e += get_global_size(0))
        put(x[e / m * (n + m) + n + e % m], out + o, e);
}

// Columns k0 to k1 of a matrix: pivots found, rows exchanged within these columns, what is below them eliminated.
kernel void eliminate(global num* x, global int* pivots, long n, long width, long k0, long k1,
    local REAL* best, local int* place)
{
    int me = get_local_id(0), items = get_local_size(0);
    x += get_group_id(0) * n * width;
    pivots += get_group_id(0) * n;
    for (long k = k0; k < k1; k++) {
        REAL top = -1;
        int at = (int)k;
        for (long i = k + me; i < n; i += items) {
            REAL s = size(x[i * width + k]);
            if (s > top) { top = s; at = (int)i; }
        }
        best[me] = top;
        place[me] = at;
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        for (int j = 0; j < items; j++)
            if (best[j] > top || (best[j] == top && place[j] < at)) { top = best[j]; at = place[j]; }
        if (me == 0) pivots[k] = at;
        if (at != k) for (long j = k0 + me; j < k1; j += items) {
            num t = x[k * width + j];
            x[k * width + j] = x[at * width + j];
            x[at * width + j] = t;
        }
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        num pivot = x[k * width + k];
        if (size(pivot) != 0)
            for (long i = k + 1 + me; i < n; i += items) x[i * width + k] = over(x[i * width + k], pivot);
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        long columns = k1 - k - 1, count = (n - k - 1) * columns;
        for (long e = me; e < count; e += items) {
            long i = k + 1 + e / columns, j = k + 1 + e % columns;
            x[i * width + j] -= mul(x[i * width + k], x[k * width + j]);
        }
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    }
}

// What `eliminate` did to columns k0 to k1, for the columns beside them: a work-item has a column for itself.
kernel void follow(global num* x, global const int* pivots, long n, long width, long k0, long k1)
{
    x += get_global_id(0) * n * width;
    pivots += get_global_id(0) * n;
    for (long j = get_global_id(1); j < width; j += get_global_size(1)) {
        if (j >= k0 && j < k1) continue;
        for (long k = k0; k < k1; k++) {
            long at = pivots[k];
            num t = x[k * width + j];
            x[k * width + j] = x[at * width + j];
            x[at * width + j] = t;
        }
        if (j >= k1) for (long k = k0; k < k1; k++) {
            num t = x[k * width + j];
            for (long i = k + 1; i < k1; i++) x[i * width + j] -= mul(x[i * width + k], t);
        }
    }
}

// The part of the matrix right of and below column k1: less the product of the columns and rows from k0 to k1.
__attribute__((reqd_work_group_size(1, TILE, TILE)))
kernel void update(global num* x, long n, long width, long k0, long k1)
{
    local num ta[TILE][TILE + 1];
    local num tb[TILE][TILE + 1];
    int c = get_local_id(1), r = get_local_id(2);
    x += get_group_id(0) * n * width;
    long row = k1 + get_global_id(2), column = k1 + get_global_id(1);
    num sum = from_real(0);
    for (long d = k0; d < k1; d += TILE) {
        ta[r][c] = row < n && d + c < k1 ? x[row * width + d + c] : from_real(0);
        tb[r][c] = column < width && d + r < k1 ? x[(d + r) * width + column] : from_real(0);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int p = 0; p < TILE; p++) sum += mul(ta[r][p], tb[p][c]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (row < n && column < width) x[row * width + column] -= sum;
}

// Triangular systems: the triangle in the first n columns, the right sides beside it; one group for some of these.
kernel void substitute(global num* x, long n, long m, int upper, long columns)
{
    int me = get_local_id(0), items = get_local_size(0);
    long width = n + m;
    x += get_group_id(0) * n * width;
    long first = n + get_group_id(1) * columns, last = min(width, first + columns), mine = last - first;
    for (long step = 0; step < n; step++) {
        long k = upper ? n - 1 - step : step;
        num d = x[k * width + k];
        for (long j = first + me; j < last; j += items) x[k * width + j] = over(x[k * width + j], d);
        barrier(CLK_GLOBAL_MEM_FENCE);
        long base = upper ? 0 : k + 1, count = (upper ? k : n - 1 - k) * mine;
        for (long e = me; e < count; e += items) {
            long i = base + e / mine, j = first + e % mine;
            x[i * width + j] -= mul(x[i * width + k], x[k * width + j]);
        }
        barrier(CLK_GLOBAL_MEM_FENCE);
    }
}

// The lower Cholesky factor of columns k0 to k1, from the lower triangle; `bad` counts pivots that are not positive.
kernel void root(global num* x, global int* bad, long n, long k0, long k1)
{
    int me = get_local_id(0), items = get_local_size(0);
    x += get_group_id(0) * n * n;
    bad += get_group_id(0);
    for (long k = k0; k < k1; k++) {
        REAL pivot = real_part(x[k * n + k]);
        barrier(CLK_GLOBAL_MEM_FENCE);
        if (me == 0) {
            if (!(pivot > 0)) bad[0] = 1;
            x[k * n + k] = from_real(sqrt(pivot));
        }
        REAL scale = sqrt(pivot);
        for (long i = k + 1 + me; i < n; i += items) x[i * n + k] = over(x[i * n + k], from_real(scale));
        barrier(CLK_GLOBAL_MEM_FENCE);
        long columns = k1 - k - 1, count = (n - k - 1) * columns;
        for (long e = me; e < count; e += items) {
            long i = k + 1 + e / columns, j = k + 1 + e % columns;
            if (j <= i) x[i * n + j] -= mul(x[i * n + k], conjugate(x[j * n + k]));
        }
        barrier(CLK_GLOBAL_MEM_FENCE);
    }
}

__attribute__((reqd_work_group_size(1, TILE, TILE)))
kernel void update_lower(global num* x, long n, long k0, long k1)
{
    local num ta[TILE][TILE + 1];
    local num tb[TILE][TILE + 1];
    int c = get_local_id(1), r = get_local_id(2);
    x += get_group_id(0) * n * n;
    long row = k1 + get_global_id(2), column = k1 + get_global_id(1), other = k1 + get_group_id(1) * TILE + r;
    num sum = from_real(0);
    for (long d = k0; d < k1; d += TILE) {
        ta[r][c] = row < n && d + c < k1 ? x[row * n + d + c] : from_real(0);
        tb[r][c] = other < n && d + c < k1 ? conjugate(x[other * n + d + c]) : from_real(0);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int p = 0; p < TILE; p++) sum += mul(ta[r][p], tb[c][p]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (row < n && column <= row) x[row * n + column] -= sum;
}

kernel void lower(global const num* x, global const int* bad, global REAL* out, long o, long n, long total)
{
    for (long e = get_global_id(0); e < total; e += get_global_size(0)) {
        long i = e / n % n, j = e % n;
        put(bad[e / (n * n)] ? from_real((REAL)NAN) : j <= i ? x[e] : from_real(0), out + o, e);
    }
}

kernel void clear(global int* words, long count)
{
    for (long e = get_global_id(0); e < count; e += get_global_size(0)) words[e] = 0;
}

// Determinants of eliminated matrices, as a number of size in [1/2, 1) and a power of two: nothing overflows between.
kernel void determinants(global const num* x, global const int* pivots, global REAL* first, global REAL* second,
    long o1, long o2, long n, long batch, int logarithm)
{
    for (long z = get_global_id(0); z < batch; z += get_global_size(0)) {
        num product = from_real(1);
        long power = 0;
        for (long k = 0; k < n; k++) {
            num d = x[z * n * n + k * n + k];
            int e = 0;
            frexp(size(d), &e);
            product = mul(product, d * ldexp((REAL)1, -e / 2) * ldexp((REAL)1, -(e - e / 2)));
            if (pivots[z * n + k] != k) product = -product;
            int f = 0;
            frexp(size(product), &f);
            if (size(product) != 0) { product *= ldexp((REAL)1, -f); power += e + f; }
        }
        REAL length = size(product);
        if (logarithm) {
            put(length != 0 ? product / length : product, first + o1, z);
            second[o2 + z] = log(length) + (REAL)power * (REAL)0.693147180559945309417232;
        } else {
            int by = (int)clamp(power, -4000L, 4000L);
            put(product * ldexp((REAL)1, by / 2) * ldexp((REAL)1, by - by / 2), first + o1, z);
        }
    }
}
"""


def program(dtype: str, *, complex: bool) -> str:  # noqa: A002  what it says
    """Return the program for a dtype of real parts.

    >>> "typedef REAL num" in program("float32", complex=False)
    True
    """
    name = {"float32": "float", "float64": "double"}[dtype]
    head = f"#define REAL {name}\n#define PAIR {name}2\n#define TILE {TILE}\n"
    return PRELUDE + head + (COMPLEX if complex else REAL) + KERNELS
