"""OpenCL C of the accelerated ops that are not matrix products: random bits and scattered addition.

Here: text, pure and testable without a device. Not here: fused kernels (the shared renderer writes those), launching.

Work is given out in one of two ways. On a CPU device a work-item takes a contiguous range; on a GPU neighbouring
work-items take neighbouring elements. Both loops are `for (long g = FIRST; g < LAST; g += STEP)`; the macros differ.
"""

TYPES = {
    "int8": "char", "int16": "short", "int32": "int", "int64": "long", "uint8": "uchar", "uint16": "ushort",
    "uint32": "uint", "uint64": "ulong", "float32": "float", "float64": "double", "float16": "ushort",
    "bfloat16": "ushort", "bool": "uchar",
}  # fmt: skip

PRELUDE = "#ifdef cl_khr_fp64\n#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#endif\n"

CHUNKS = """
#define RANGE(n) long chunk_ = ((n) + (long)get_global_size(0) - 1) / (long)get_global_size(0); \\
    long first_ = (long)get_global_id(0) * chunk_; long last_ = min((long)(n), first_ + chunk_);
#define FIRST first_
#define LAST last_
#define STEP 1
"""

STRIDED = """
#define RANGE(n) long last_ = (n);
#define FIRST ((long)get_global_id(0))
#define LAST last_
#define STEP ((long)get_global_size(0))
"""

# Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (2011); ten rounds, key bumped between rounds.
PHILOX = """
inline uint4 philox(uint4 c, uint2 k)
{
    for (int r = 0; r < 10; r++) {
        ulong p0 = (ulong)0xD2511F53u * c.x, p1 = (ulong)0xCD9E8D57u * c.z;
        c = (uint4)((uint)(p1 >> 32) ^ c.y ^ k.x, (uint)p1, (uint)(p0 >> 32) ^ c.w ^ k.y, (uint)p0);
        k += (uint2)(0x9E3779B9u, 0xBB67AE85u);
    }
    return c;
}
kernel void random_bits(global uint* out, long offset, long n, ulong key, ulong counter)
{
    out += offset;
    uint2 k = (uint2)((uint)key, (uint)(key >> 32));
    RANGE((n + 3) / 4)
    for (long g = FIRST; g < LAST; g += STEP) {
        ulong at = counter + (ulong)g;
        uint4 word = philox((uint4)((uint)at, (uint)(at >> 32), 0u, 0u), k);
        if (4 * g + 4 <= n) {
            vstore4(word, g, out);
        } else {
            out[4 * g] = word.x;
            if (4 * g + 1 < n) out[4 * g + 1] = word.y;
            if (4 * g + 2 < n) out[4 * g + 2] = word.z;
        }
    }
}
"""

# 16-bit floats in memory, float32 in registers. float16 goes through the core functions vload_half and
# vstore_half_rte, which need no extension; bfloat16 is the high half of a float32, rounded to even, a NaN kept
# quiet.
STORAGE = {
    "float16": (
        "inline float load(global const ushort* p, long i) { return vload_half(i, (global const half*)p); }\n"
        "inline void store(float v, global ushort* p, long i) { vstore_half_rte(v, i, (global half*)p); }\n"
    ),
    "bfloat16": (
        "inline float load(global const ushort* p, long i) { return as_float((uint)p[i] << 16); }\n"
        "inline void store(float v, global ushort* p, long i)\n"
        "{ uint b = as_uint(v);\n"
        "  p[i] = isnan(v) ? (ushort)((b >> 16) | 64u) : (ushort)((b + 0x7FFFu + ((b >> 16) & 1u)) >> 16); }\n"
    ),
}


def accessors(dtype: str, *, signed: bool = False) -> str:
    """Return the definitions of ELEMENT, VALUE, load and store for a dtype: its type in memory and in registers.

    Integers are handled as unsigned, since theirs is the arithmetic that wraps by definition, unless *signed*: to
    compare them.

    >>> print(accessors("float32").splitlines()[0])
    #define ELEMENT float
    """
    memory = TYPES[dtype]
    if dtype.startswith("int") and not signed:
        memory = "u" + memory
    value = "float" if dtype in STORAGE else memory
    head = f"#define ELEMENT {memory}\n#define VALUE {value}\n"
    plain = (
        "inline VALUE load(global const ELEMENT* p, long i) { return p[i]; }\n"
        "inline void store(VALUE v, global ELEMENT* p, long i) { p[i] = v; }\n"
    )
    return head + STORAGE.get(dtype, plain)


def random_bits(*, chunked: bool) -> str:
    """Return the program with kernel random_bits(out, offset, n, key, counter)."""
    return (CHUNKS if chunked else STRIDED) + PHILOX


# Work-items own what they write, so there is neither a race nor an order to depend on: each element combines its
# values in the order of the index array. On a CPU device an item takes all columns of a range of rows; elsewhere one
# column of every row whose number leaves a certain rest when it is divided by `parts`.
SCATTER = """
inline void report(global int* status, int tag, long index)
{
    if (atomic_cmpxchg((volatile global int*)status, 0, tag) == 0) {
        status[1] = 0;
        status[2] = (int)index;
        status[3] = (int)(index >> 32);
    }
}
kernel void scatter_clear(global TOTAL* total, long offset, long count)
{
    RANGE(count)
    for (long g = FIRST; g < LAST; g += STEP) total[offset + g] = START;
} kernel void scatter_rows(global TOTAL* total, global const long* index, global const ELEMENT* values, global int*
status,
    long o, long oi, long ov, long n, long m, long k, int has_status, int tag)
{
    total += o; index += oi;
    long rows = (n + (long)get_global_size(0) - 1) / (long)get_global_size(0);
    long low = (long)get_global_id(0) * rows, high = min(n, low + rows);
    for (long j = 0; j < k; j++) {
        long i = index[j];
        if (i < -n || i >= n) {
            if (has_status && get_global_id(0) == 0) report(status, tag, i);
            continue;
        }
        i += i < 0 ? n : 0;
        if (i < low || i >= high) continue;
        for (long c = 0; c < m; c++) total[i * m + c] = COMBINE(total[i * m + c], load(values, ov + j * m + c));
    }
} kernel void scatter_columns(global TOTAL* total, global const long* index, global const ELEMENT* values, global int*
status,
    long o, long oi, long ov, long n, long m, long k, int has_status, int tag, long parts)
{
    total += o; index += oi;
    for (long g = get_global_id(0); g < m * parts; g += get_global_size(0)) {
        long c = g % m, part = g / m;
        for (long j = 0; j < k; j++) {
            long i = index[j];
            if (i < -n || i >= n) {
                if (has_status && g == 0) report(status, tag, i);
                continue;
            }
            i += i < 0 ? n : 0;
            if (i % parts == part) total[i * m + c] = COMBINE(total[i * m + c], load(values, ov + j * m + c));
        }
    }
}
kernel void scatter_round(global const TOTAL* total, global ELEMENT* out, long offset, long count)
{
    RANGE(count)
    for (long g = FIRST; g < LAST; g += STEP) store((VALUE)total[g], out, offset + g);
}
"""


# NaN wins over numbers.
COMBINATIONS = {
    "add": "((a) + (b))",
    "multiply": "((a) * (b))",
    "max": "((a) != (a) || (a) > (b) ? (a) : (b))",
    "min": "((a) != (a) || (a) < (b) ? (a) : (b))",
}
LIMITS = {
    "char": "CHAR", "short": "SHRT", "int": "INT", "long": "LONG", "uchar": "UCHAR", "ushort": "USHRT", "uint": "UINT",
    "ulong": "ULONG",
}  # fmt: skip


def start_of(mode: str, dtype: str) -> str:
    """Return what a scatter of a mode leaves where nothing goes.

    >>> start_of("max", "int32"), start_of("max", "uint8"), start_of("min", "float16"), start_of("multiply", "int8")
    ('INT_MIN', '0', 'INFINITY', '1')
    """
    if mode in ("add", "multiply"):
        return "0" if mode == "add" else "1"
    if "float" in dtype:
        return "-INFINITY" if mode == "max" else "INFINITY"
    if mode == "max" and dtype.startswith("u"):
        return "0"
    return LIMITS[TYPES[dtype]] + ("_MIN" if mode == "max" else "_MAX")


def scatter(dtype: str, mode: str, *, chunked: bool) -> str:
    """Return the program with kernels scatter_clear, scatter_rows, scatter_columns and scatter_round for a dtype."""
    head = f"#define TOTAL VALUE\n#define START {start_of(mode, dtype)}\n#define COMBINE(a, b) {COMBINATIONS[mode]}\n"
    values = accessors(dtype, signed=mode in ("max", "min"))
    return PRELUDE + (CHUNKS if chunked else STRIDED) + values + head + SCATTER
