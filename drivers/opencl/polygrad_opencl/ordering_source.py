"""OpenCL C of running reductions, of sorting, and of finding what is true.

Here: text, pure and testable without a device. Not here: launching (`ordering.py`).

Rows are cut into pieces. On a CPU device a work-item goes through a piece from end to end; on a GPU a work-group does,
neighbouring work-items on neighbouring elements. All kernels that need no work-group are free of barriers.
"""

from polygrad_opencl.source import CHUNKS, PRELUDE, STRIDED, TYPES, accessors

KINDS = ("sum", "prod", "max", "min")
GROUP = 128  # work-items that scan a piece together on a GPU
TOGETHER = 4  # pieces that a work-item of a CPU device scans side by side

# The first NaN stays: a comparison with it is false.
_COMBINE = {
    "sum": "((a) + (b))",
    "prod": "((a) * (b))",
    "max": "(((a) >= (b) || (a) != (a)) ? (a) : (b))",
    "min": "(((a) <= (b) || (a) != (a)) ? (a) : (b))",
}
_LIMITS = {
    "int8": ("CHAR_MIN", "CHAR_MAX"), "int16": ("SHRT_MIN", "SHRT_MAX"), "int32": ("INT_MIN", "INT_MAX"),
    "int64": ("LONG_MIN", "LONG_MAX"), "uint8": ("0", "UCHAR_MAX"), "uint16": ("0", "USHRT_MAX"),
    "uint32": ("0", "UINT_MAX"), "uint64": ("0", "ULONG_MAX"), "bool": ("0", "1"),
}  # fmt: skip


def identity(dtype: str, kind: str) -> str:
    """Return what changes nothing when a reduction takes it in.

    >>> identity("int8", "max"), identity("float32", "min"), identity("uint8", "prod")
    ('CHAR_MIN', 'INFINITY', '1')
    """
    if kind in ("sum", "prod"):
        return "0" if kind == "sum" else "1"
    low, high = _LIMITS.get(dtype, ("-INFINITY", "INFINITY"))
    return low if kind == "max" else high


def _signed(dtype: str) -> str:
    """Return `accessors` in which signed integers compare as such."""
    text, memory = accessors(dtype), TYPES[dtype]
    return text.replace(f"u{memory}", memory) if dtype.startswith("int") else text


_SCAN = """
kernel void scan_ends(global TOTAL* ends, long at, long rows, long pieces)
{
    ends += at;
    RANGE(rows)
    for (long r = FIRST; r < LAST; r += STEP)
        for (long c = 1; c < pieces; c++) {
            TOTAL a = ends[r * pieces + c - 1], b = ends[r * pieces + c];
            ends[r * pieces + c] = COMBINE(a, b);
        }
}
"""

# A work-item goes through several pieces side by side: of one alone each addition would wait for the one before.
_SCAN_ALONE = """
#define EACH _Pragma("unroll") for (int k = 0; k < TOGETHER; k++)
#define PIECES \\
    long from[TOGETHER], length[TOGETHER], all = size; \\
    EACH { \\
        const long p = g * TOGETHER + k, low = p % pieces * size; \\
        from[k] = p / pieces * n + low; \\
        length[k] = p < rows * pieces ? min(size, n - low) : 0; \\
        all = min(all, length[k]); \\
    }
kernel void scan_pieces(global const ELEMENT* x, long xo, global TOTAL* ends, long at, long rows, long n, long pieces,
    long size)
{
    ends += at;
    RANGE((rows * pieces + TOGETHER - 1) / TOGETHER)
    for (long g = FIRST; g < LAST; g += STEP) {
        PIECES
        TOTAL a[TOGETHER];
        EACH a[k] = IDENTITY;
        for (long i = 0; i < all; i++) EACH {
            TOTAL b = load(x, xo + from[k] + i);
            a[k] = COMBINE(a[k], b);
        }
        EACH {
            for (long i = all; i < length[k]; i++) {
                TOTAL b = load(x, xo + from[k] + i);
                a[k] = COMBINE(a[k], b);
            }
            if (length[k]) ends[g * TOGETHER + k] = a[k];
        }
    }
}
kernel void scan_write(global const ELEMENT* x, long xo, global const TOTAL* ends, long at, global ELEMENT* out, long o,
    long rows, long n, long pieces, long size)
{
    ends += at;
    RANGE((rows * pieces + TOGETHER - 1) / TOGETHER)
    for (long g = FIRST; g < LAST; g += STEP) {
        PIECES
        TOTAL a[TOGETHER];
        EACH {
            const long p = g * TOGETHER + k;
            a[k] = IDENTITY;
            if (length[k] && p % pieces) a[k] = ends[p - 1];
        }
        for (long i = 0; i < all; i++) EACH {
            TOTAL b = load(x, xo + from[k] + i);
            a[k] = COMBINE(a[k], b);
            store((VALUE)a[k], out, o + from[k] + i);
        }
        EACH for (long i = all; i < length[k]; i++) {
            TOTAL b = load(x, xo + from[k] + i);
            a[k] = COMBINE(a[k], b);
            store((VALUE)a[k], out, o + from[k] + i);
        }
    }
}
"""

# Each loop over pieces, tiles or steps is run equally often by all work-items of a group, and ends in a barrier.
_SCAN_TOGETHER = """
kernel void scan_pieces(global const ELEMENT* x, long xo, global TOTAL* ends, long at, long rows, long n, long pieces,
    long size)
{
    local TOTAL tile[GROUP];
    int me = (int)get_local_id(0);
    ends += at;
    for (long p = get_group_id(0); p < rows * pieces; p += get_num_groups(0)) {
        long low = p % pieces * size, high = min(n, low + size), base = xo + p / pieces * n;
        TOTAL a = IDENTITY;
        for (long i = low + me; i < high; i += GROUP) {
            TOTAL b = load(x, base + i);
            a = COMBINE(a, b);
        }
        tile[me] = a;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int step = GROUP / 2; step > 0; step /= 2) {
            if (me < step) {
                TOTAL c = tile[me], d = tile[me + step];
                tile[me] = COMBINE(c, d);
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        if (me == 0) ends[p] = tile[0];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
kernel void scan_write(global const ELEMENT* x, long xo, global const TOTAL* ends, long at, global ELEMENT* out, long o,
    long rows, long n, long pieces, long size)
{
    local TOTAL tile[GROUP];
    int me = (int)get_local_id(0);
    ends += at;
    for (long p = get_group_id(0); p < rows * pieces; p += get_num_groups(0)) {
        long low = p % pieces * size, high = min(n, low + size), base = p / pieces * n;
        TOTAL carry = IDENTITY;
        if (p % pieces) carry = ends[p - 1];
        for (long start = low; start < high; start += GROUP) {
            long i = start + me;
            TOTAL own = IDENTITY;
            if (i < high) own = load(x, xo + base + i);
            tile[me] = own;
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int step = 1; step < GROUP; step *= 2) {
                TOTAL before = IDENTITY;
                if (me >= step) before = tile[me - step];
                own = COMBINE(before, own);
                barrier(CLK_LOCAL_MEM_FENCE);
                tile[me] = own;
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            TOTAL all = tile[GROUP - 1];
            if (i < high) {
                TOTAL done = COMBINE(carry, own);
                store((VALUE)done, out, o + base + i);
            }
            carry = COMBINE(carry, all);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
"""


def scan(dtype: str, kind: str, *, chunked: bool, wide: bool) -> str:
    """Return the program with kernels scan_pieces, scan_ends and scan_write for a dtype and a kind of KINDS.

    If *wide*, sums that are rounded to float32 are kept in double: an error would go on to all that follows.
    """
    values = _signed(dtype) if kind in ("max", "min") else accessors(dtype)
    total = "double" if wide and kind == "sum" and "#define VALUE float\n" in values else "VALUE"
    body = (
        f"#define TOTAL {total}\n#define GROUP {GROUP}\n#define TOGETHER {TOGETHER}\n"
        f"#define IDENTITY ((TOTAL){identity(dtype, kind)})\n"
        f"#define COMBINE(a, b) {_COMBINE[kind]}\n"
    )
    kernels = _SCAN_ALONE if chunked else _SCAN_TOGETHER
    return PRELUDE + (CHUNKS if chunked else STRIDED) + values + body + _SCAN + kernels


_NONZERO = """
kernel void true_count(global const uchar* mask, long mo, global ulong* ends, long n, long pieces, long size)
{
    RANGE(pieces)
    for (long p = FIRST; p < LAST; p += STEP) {
        ulong count = 0;
        long high = min(n, p * size + size);
        for (long i = p * size; i < high; i++) count += mask[mo + i] != 0;
        ends[p] = count;
    }
}
kernel void true_write(global const uchar* mask, long mo, global const ulong* ends, global long* out, long o, long n,
    long pieces, long size)
{
    RANGE(pieces)
    for (long p = FIRST; p < LAST; p += STEP) {
        long to = o, high = min(n, p * size + size);
        if (p) to += (long)ends[p - 1];
        for (long i = p * size; i < high; i++)
            if (mask[mo + i]) out[to++] = i;
    }
}
"""


def nonzero(*, chunked: bool) -> str:
    """Return the program with kernels true_count and true_write."""
    return (CHUNKS if chunked else STRIDED) + _NONZERO


_WORDS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}
_SIZES = {
    "char": 1,
    "short": 2,
    "int": 4,
    "long": 8,
    "uchar": 1,
    "ushort": 2,
    "uint": 4,
    "ulong": 8,
    "float": 4,
    "double": 8,
}
_INFINITIES = {"float16": "0x7C00", "bfloat16": "0x7F80", "float32": "0x7F800000u", "float64": "0x7FF0000000000000ul"}


def word_of(dtype: str) -> tuple[str, int]:
    """Return the unsigned type that holds an element's bits, and its bytes.

    >>> word_of("float64"), word_of("bool")
    (('ulong', 8), ('uchar', 1))
    """
    size = _SIZES[TYPES[dtype]]
    return _WORDS[size], size


def key(dtype: str) -> str:
    """Return `key_of`, which maps an element's bits to an unsigned integer of the same order.

    Equal elements, -0.0 and 0.0 among them, have equal keys, and every NaN the greatest. It computes with bits alone.
    """
    word, size = word_of(dtype)
    sign = f"(({word})1 << {8 * size - 1})"
    if dtype in _INFINITIES:
        body = (
            f"    if ((WORD)(b & ~{sign}) > (WORD){_INFINITIES[dtype]}) return (WORD)~(WORD)0;\n"
            f"    if (b == {sign}) b = 0;\n"
            f"    return b & {sign} ? (WORD)~b : (WORD)(b | {sign});\n"
        )
    elif dtype.startswith("int"):
        body = f"    return b ^ {sign};\n"
    else:
        body = "    return b;\n"
    return f"#define WORD {word}\ninline WORD key_of(WORD b)\n{{\n{body}}}\n"


# The sort goes digit by digit, the lowest first; each pass is stable. `counts` is [rows, digits, pieces]: its running
# sum tells where a piece puts the first element of each digit.
_SORT = """
kernel void sort_keys(global const WORD* x, long xo, global WORD* keys, long ko, global uint* from, long fo, long rows,
    long n)
{
    RANGE(rows * n)
    for (long g = FIRST; g < LAST; g += STEP) {
        keys[ko + g] = key_of(x[xo + g]);
        from[fo + g] = (uint)(g % n);
    }
}
kernel void sort_count(global const WORD* keys, long ko, global uint* counts, long co, long rows, long n, long pieces,
    long size, int shift)
{
    RANGE(rows * pieces)
    for (long p = FIRST; p < LAST; p += STEP) {
        uint own[DIGITS];
        for (int d = 0; d < DIGITS; d++) own[d] = 0;
        long row = p / pieces, piece = p % pieces, high = min(n, piece * size + size);
        for (long i = piece * size; i < high; i++)
            own[(uint)(keys[ko + row * n + i] >> shift) & (DIGITS - 1)] += 1;
        for (int d = 0; d < DIGITS; d++) counts[co + (row * DIGITS + d) * pieces + piece] = own[d];
    }
}
kernel void sort_move(global const WORD* keys, long ko, global const uint* from, long fo, global const uint* counts,
    long co, global WORD* keys2, long ko2, global uint* from2, long fo2, long rows, long n, long pieces, long size,
    int shift)
{
    RANGE(rows * pieces)
    for (long p = FIRST; p < LAST; p += STEP) {
        uint to[DIGITS];
        long row = p / pieces, piece = p % pieces, high = min(n, piece * size + size), base = row * n;
        for (int d = 0; d < DIGITS; d++) {
            long at = (long)d * pieces + piece;
            to[d] = 0;
            if (at) to[d] = counts[co + row * DIGITS * pieces + at - 1];
        }
        for (long i = piece * size; i < high; i++) {
            WORD k = keys[ko + base + i];
            uint d = (uint)(k >> shift) & (DIGITS - 1);
            long target = base + to[d];
            to[d] += 1;
            keys2[ko2 + target] = k;
            from2[fo2 + target] = from[fo + base + i];
        }
    }
}
kernel void sort_finish(global const WORD* x, long xo, global const uint* from, long fo, global WORD* values, long vo,
    global long* places, long po, long rows, long n)
{
    RANGE(rows * n)
    for (long g = FIRST; g < LAST; g += STEP) {
        long place = from[fo + g];
        places[po + g] = place;
        values[vo + g] = x[xo + g / n * n + place];
    }
}
kernel void sort_short(global const WORD* x, long xo, global WORD* values, long vo, global long* places, long po,
    long rows, long n)
{
    RANGE(rows * n)
    for (long g = FIRST; g < LAST; g += STEP) {
        long place = g % n, base = g - place, rank = 0;
        WORD bits = x[xo + g], own = key_of(bits);
        for (long i = 0; i < n; i++) {
            WORD other = key_of(x[xo + base + i]);
            rank += other < own || (other == own && i < place);
        }
        values[vo + base + rank] = bits;
        places[po + base + rank] = place;
    }
}
"""


def sort(dtype: str, digits: int, *, chunked: bool) -> str:
    """Return the program with the kernels of a radix sort with *digits* values a digit, and of short rows."""
    return (CHUNKS if chunked else STRIDED) + key(dtype) + f"#define DIGITS {digits}\n" + _SORT
