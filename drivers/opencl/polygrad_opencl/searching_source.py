"""OpenCL C of what finds extremes, and places in what is sorted.

Here: text, pure and testable without a device. Not here: launching (`searching.py`).

Elements are compared by their keys, unsigned integers of the same order (`ordering_source.py`).
"""

from polygrad_opencl.ordering_source import GROUP, key
from polygrad_opencl.source import CHUNKS, STRIDED

# The first extreme is the pair of greatest rank and least place. `extreme_pieces` finds that of each piece of a row,
# `extreme_rows` that of a row's pieces. An item that goes through a piece alone takes the greatest rank of a block,
# which a compiler can do for several elements at once, and looks for its place only if it is a new one.
_EXTREME_ALONE = """
#define BLOCK 512
kernel void extreme_pieces(global const WORD* x, long xo, global WORD* ranks, long ro, global long* places, long po,
    long rows, long n, long pieces, long size)
{
    RANGE(rows * pieces)
    for (long p = FIRST; p < LAST; p += STEP) {
        long low = p % pieces * size, high = min(n, low + size), place = low;
        global const WORD* row = x + xo + p / pieces * n;
        WORD rank = rank_of(row[low]);
        for (long start = low; start < high; start += BLOCK) {
            int count = (int)min((long)BLOCK, high - start);
            WORD most = 0;
            for (int i = 0; i < count; i++) most = max(most, rank_of(row[start + i]));
            if (most <= rank) continue;
            rank = most;
            place = start;
            while (rank_of(row[place]) != most) place++;
        }
        ranks[ro + p] = rank;
        places[po + p] = place;
    }
}
kernel void extreme_rows(global const WORD* ranks, long ro, global const long* places, long po, global long* out,
    long o, long rows, long pieces)
{
    RANGE(rows)
    for (long r = FIRST; r < LAST; r += STEP) {
        long best = r * pieces;
        for (long i = best + 1; i < (r + 1) * pieces; i++)
            if (ranks[ro + i] > ranks[ro + best]) best = i;
        out[o + r] = places[po + best];
    }
}
"""

_EXTREME_TOGETHER = """
inline void keep(WORD* rank, long* place, WORD other, long there)
{
    if (other > *rank || (other == *rank && there < *place)) { *rank = other; *place = there; }
}
inline void keep_of_group(local WORD* ranks, local long* places, WORD* rank, long* place)
{
    int me = (int)get_local_id(0);
    ranks[me] = *rank;
    places[me] = *place;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = GROUP / 2; step > 0; step /= 2) {
        if (me < step) {
            WORD r = ranks[me];
            long p = places[me];
            keep(&r, &p, ranks[me + step], places[me + step]);
            ranks[me] = r;
            places[me] = p;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    *rank = ranks[0];
    *place = places[0];
    barrier(CLK_LOCAL_MEM_FENCE);
}
kernel void extreme_pieces(global const WORD* x, long xo, global WORD* ranks, long ro, global long* places, long po,
    long rows, long n, long pieces, long size)
{
    local WORD group_ranks[GROUP];
    local long group_places[GROUP];
    for (long p = get_group_id(0); p < rows * pieces; p += get_num_groups(0)) {
        long low = p % pieces * size, high = min(n, low + size), place = n;
        global const WORD* row = x + xo + p / pieces * n;
        WORD rank = 0;
        for (long i = low + (long)get_local_id(0); i < high; i += GROUP) {
            WORD own = rank_of(row[i]);
            if (own > rank || place == n) { rank = own; place = i; }
        }
        keep_of_group(group_ranks, group_places, &rank, &place);
        if (get_local_id(0) == 0) { ranks[ro + p] = rank; places[po + p] = place; }
    }
}
kernel void extreme_rows(global const WORD* ranks, long ro, global const long* places, long po, global long* out,
    long o, long rows, long pieces)
{
    local WORD group_ranks[GROUP];
    local long group_places[GROUP];
    for (long r = get_group_id(0); r < rows; r += get_num_groups(0)) {
        WORD rank = 0;
        long place = LONG_MAX;
        for (long i = (long)get_local_id(0); i < pieces; i += GROUP)
            keep(&rank, &place, ranks[ro + r * pieces + i], places[po + r * pieces + i]);
        keep_of_group(group_ranks, group_places, &rank, &place);
        if (get_local_id(0) == 0) out[o + r] = place;
    }
}
"""


def extreme(dtype: str, kind: str, *, chunked: bool) -> str:
    """Return the program with kernels extreme_pieces and extreme_rows.

    NaN has the greatest rank whether the greatest element is looked for or the least.

    >>> "return (WORD)~key_of(b);" in extreme("uint8", "min", chunked=True)
    True
    """
    missing = "    if (key_of(b) == (WORD)~(WORD)0) return (WORD)~(WORD)0;\n" if "float" in dtype else ""
    turned = "key_of(b)" if kind == "max" else "(WORD)~key_of(b)"
    rank = f"inline WORD rank_of(WORD b)\n{{\n{missing}    return {turned};\n}}\n"
    if chunked:
        return CHUNKS + key(dtype) + rank + _EXTREME_ALONE
    return f"#define GROUP {GROUP}\n" + key(dtype) + rank + _EXTREME_TOGETHER


_SEARCH = """
kernel void search(global const WORD* x, long xo, global const WORD* wanted, long wo, global long* out, long o,
    long count, long n, long each)
{
    RANGE(count)
    for (long g = FIRST; g < LAST; g += STEP) {
        global const WORD* row = x + xo + g / each * n;
        WORD own = key_of(wanted[wo + g]);
        long low = 0, left = n;
        while (left > 0) {
            long half_of_it = left / 2;
            WORD there = key_of(row[low + half_of_it]);
            bool before = BEFORE;
            low = before ? low + half_of_it + 1 : low;
            left = before ? left - half_of_it - 1 : half_of_it;
        }
        out[o + g] = low;
    }
}
"""


def search(dtype: str, *, right: bool, chunked: bool) -> str:
    """Return the program with kernel search.

    >>> "#define BEFORE (there <= own)" in search("int8", right=True, chunked=False)
    True
    """
    before = f"#define BEFORE (there {'<=' if right else '<'} own)\n"
    return (CHUNKS if chunked else STRIDED) + key(dtype) + before + _SEARCH
