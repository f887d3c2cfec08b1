"""OpenCL C of the matrix product on a CPU device: a block in registers, no barrier.

Here: text, with the layout of its launch. Not here: when it is used, and BLAS (`matmul.py`), GPUs (`matmul_tiles.py`).

Sums are written a * b + c, not fma(): the compiler may contract here, and where it has no instruction for it the
function would be a library call.
"""

from polygrad_opencl.matmul_tiles import BATCH, PARAMETERS
from polygrad_opencl.source import PRELUDE, STORAGE, accessors


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
kernel void matmul(global ELEMENT* out, global const ELEMENT* a, global const ELEMENT* b, {PARAMETERS})
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
