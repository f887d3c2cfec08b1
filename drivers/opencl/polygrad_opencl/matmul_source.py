"""OpenCL C of the matrix product: a tile in local memory for GPUs, a block in registers for CPU devices.

Here: text, with the layout of its launch. Not here: when which is used, and BLAS (`matmul.py`).

Both take out, a, b, their offsets, m, n, k, the strides of a and b along (row, column), and two batch axes: extent of
the inner one and for each of out, a, b the strides along both. Sums are written a * b + c, not fma(): the compiler
may contract here, and where it has no instruction for it the function would be a library call.
"""

from polygrad_opencl.source import PRELUDE, STORAGE, accessors

PARAMETERS = (
    "global ELEMENT* out, global const ELEMENT* a, global const ELEMENT* b, long oo, long oa, long ob, "
    "long m, long n, long k, long am, long ak, long bk, long bn, "
    "long batch, long batch1, long o0, long o1, long a0, long a1, long b0, long b1"
)

BATCH = (
    "long z0 = z / batch1, z1 = z % batch1; "
    "long po = oo + z0 * o0 + z1 * o1, pa = oa + z0 * a0 + z1 * a1, pb = ob + z0 * b0 + z1 * b1;"
)


def tiled(dtype: str, tile: int, deep: int) -> str:
    """Return the GPU kernel `matmul`: 16 x 16 work-items make a block of tile x tile elements, *deep* terms at once.

    Launch it on (16 * ceil(n / tile), 16 * ceil(m / tile), batch). A work-item owns elements 16 apart, so that
    neighbours read neighbouring words of local memory. Whichever axis of an operand has the smaller stride is the one
    that neighbouring work-items load along. The tiles have a column to spare, which spreads a column over the banks.
    """
    each = tile // 16
    count = tile * deep // 256
    return f"""{PRELUDE}{accessors(dtype)}
#define TILE {tile}
#define DEEP {deep}
__attribute__((reqd_work_group_size(16, 16, 1)))
kernel void matmul({PARAMETERS})
{{
    local VALUE ta[DEEP][TILE + 1];
    local VALUE tb[DEEP][TILE + 1];
    int x = get_local_id(0), y = get_local_id(1), t = y * 16 + x;
    long row = (long)get_group_id(1) * TILE, column = (long)get_group_id(0) * TILE, z = get_group_id(2);
    {BATCH}
    int fast_a = (ak < 0 ? -ak : ak) <= (am < 0 ? -am : am), fast_b = (bk < 0 ? -bk : bk) < (bn < 0 ? -bn : bn);
    VALUE c[{each}][{each}];
    for (int i = 0; i < {each}; i++) for (int j = 0; j < {each}; j++) c[i][j] = 0;
    for (long d = 0; d < k; d += DEEP) {{
        for (int s = 0; s < {count}; s++) {{
            int e = t + s * 256;
            int i = fast_a ? e / DEEP : e % TILE, p = fast_a ? e % DEEP : e / TILE;
            ta[p][i] = (row + i < m && d + p < k) ? load(a, pa + (row + i) * am + (d + p) * ak) : (VALUE)0;
            int j = fast_b ? e / DEEP : e % TILE, q = fast_b ? e % DEEP : e / TILE;
            tb[q][j] = (column + j < n && d + q < k) ? load(b, pb + (d + q) * bk + (column + j) * bn) : (VALUE)0;
        }}
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int p = 0; p < DEEP; p++) {{
            VALUE u[{each}], v[{each}];
            for (int i = 0; i < {each}; i++) u[i] = ta[p][y + 16 * i];
            for (int j = 0; j < {each}; j++) v[j] = tb[p][x + 16 * j];
            for (int i = 0; i < {each}; i++) for (int j = 0; j < {each}; j++) c[i][j] = u[i] * v[j] + c[i][j];
        }}
        barrier(CLK_LOCAL_MEM_FENCE);
    }}
    for (int i = 0; i < {each}; i++) {{
        long r = row + y + 16 * i;
        for (int j = 0; j < {each}; j++) {{
            long s = column + x + 16 * j;
            if (r < m && s < n) store(c[i][j], out, po + r * n + s);
        }}
    }}
}}
"""


def strip_width(dtype: str) -> int:
    """Return the elements of a vector of 32 bytes; `strips` computes two such vectors of four rows in its registers."""
    return 4 if dtype in ("float64", "int64", "uint64") else 8


def strips(dtype: str) -> str:
    """Return the CPU kernel `matmul`: a work-item makes blocks of 4 rows and 2 vectors of columns, no barrier.

    Launch it on any number of work-items, in groups of one. Vectors of b are loaded at once where its columns are
    adjacent, else element by element; columns beyond the last full block are computed one by one.
    """
    width = strip_width(dtype)
    step, rows = 2 * width, range(4)

    def vector(start: int) -> str:
        lanes = ", ".join(f"load(b, at + {start + j} * bn)" for j in range(width))
        if dtype in STORAGE:
            return f"(WIDE)({lanes})"
        return f"bn == 1 ? vload{width}(0, b + at + {start}) : (WIDE)({lanes})"

    def stored(name: str, start: int) -> str:
        if dtype in STORAGE:
            return " ".join(f"store({name}.s{j:x}, out, to + {start + j});" for j in range(width))
        return f"vstore{width}({name}, 0, out + to + {start});"

    products = "\n".join(f"            x = load(a, to + r{i} * am); c{i}0 += x * v0; c{i}1 += x * v1;" for i in rows)
    stores = "\n".join(
        f"        if (r + {i} < m) {{ long to = po + (r + {i}) * n + s; "
        f"{stored(f'c{i}0', 0)} {stored(f'c{i}1', width)} }}"
        for i in rows
    )
    singles = "\n".join(f"            c{i} += load(a, to + r{i} * am) * v;" for i in rows)
    ends = "\n".join(f"        if (r + {i} < m) store(c{i}, out, po + (r + {i}) * n + s);" for i in rows)
    return f"""{PRELUDE}{accessors(dtype)}
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define WIDE JOIN(VALUE, {width})
kernel void matmul({PARAMETERS})
{{
    long down = (m + 3) / 4, across = (n + {step - 1}) / {step}, tasks = batch * down * across;
    long chunk = (tasks + (long)get_global_size(0) - 1) / (long)get_global_size(0);
    long first = (long)get_global_id(0) * chunk, last = min(tasks, first + chunk);
    for (long task = first; task < last; task++) {{
    long z = task / (down * across), r = task / across % down * 4, s = task % across * {step};
    {BATCH}
    long r0 = r, r1 = min(r + 1, m - 1), r2 = min(r + 2, m - 1), r3 = min(r + 3, m - 1);
    if (s + {step} <= n) {{
        WIDE c00 = 0, c01 = 0, c10 = 0, c11 = 0, c20 = 0, c21 = 0, c30 = 0, c31 = 0;
        for (long d = 0; d < k; d++) {{
            long at = pb + d * bk + s * bn, to = pa + d * ak;
            WIDE v0 = {vector(0)};
            WIDE v1 = {vector(width)};
            VALUE x;
{products}
        }}
{stores}
    }} else for (; s < n; s++) {{
        VALUE c0 = 0, c1 = 0, c2 = 0, c3 = 0;
        for (long d = 0; d < k; d++) {{
            VALUE v = load(b, pb + d * bk + s * bn);
            long to = pa + d * ak;
{singles}
        }}
{ends}
    }}
    }}
}}
"""
