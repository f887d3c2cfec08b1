"""OpenCL C of the matrix product on a GPU: tiles in local memory, blocks of them in registers.

Here: text, with the layout of its launch. Not here: which form fits a product (`matmul_form.py`), CPU devices
(`matmul_source.py`).

A group of 16 x 16 work-items makes one tile of the result and walks along the inner axis in steps. What the next step
needs comes from global memory while the slices of this step, in local memory, are multiplied; there are two copies of
the slices, so one barrier a step is enough. A slice has the inner axis outside: a work-item reads four rows, or four
columns, as one vector. 32 neighbouring work-items are 4 rows by 8 columns, so these reads meet no bank twice.
"""

from functools import lru_cache
from typing import NamedTuple

from polygrad_opencl.source import PRELUDE, STORAGE, accessors

ITEMS = 256  # of a group
SPARE = 4  # elements that a row of a slice has to spare; four rows below each other then lie in different banks
WIDE = ("float64", "int64", "uint64")
SUMS = {"float16": "float32", "bfloat16": "float32"}  # the dtypes of sums that are not the operands'

# Offsets of out, a, b; sizes; strides of a along m and k, of b along k and n; the number of matrices, and of those
# along the inner of two batch axes; for each of out, a, b the strides along both.
PARAMETERS = (
    "long oo, long oa, long ob, long m, long n, long k, long am, long ak, long bk, long bn, "
    "long batch, long batch1, long o0, long o1, long a0, long a1, long b0, long b1"
)

BATCH = (
    "long z0 = z / batch1, z1 = z % batch1; "
    "long po = oo + z0 * o0 + z1 * o1, pa = oa + z0 * a0 + z1 * a1, pb = ob + z0 * b0 + z1 * b1;"
)

VECTORS = """
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
typedef VALUE VALUE1;
typedef JOIN(VALUE, 2) VALUE2;
typedef JOIN(VALUE, 4) VALUE4;
"""

ADDEND = ", global const ELEMENT* restrict addend, long od"  # what is added, and where it begins

JOIN = """kernel void matmul_join(
    global ELEMENT* out, global const VALUE* sums, long oo, long count, long parts, long n ADDED)
{
    long g = get_global_id(0);
    if (g >= count) return;
    VALUE total = sums[g];
    for (long part = 1; part < parts; part++) total += sums[part * count + g];
    store(ENDED(total, g, g % n), out, oo + g);
}
"""


class Reading(NamedTuple):
    """How an operand is read from global memory: along the inner axis or across it, by vectors or by elements."""

    inner: bool
    vector: bool


class Form(NamedTuple):
    """One program: its dtype, its tile and step, how a and b are read, and whether whole vectors are stored.

    With `split`, groups share the inner axis of a tile and leave their sums in a buffer of parts. `ending` says what is
    added at the end: nothing, one "row" for all rows, or an array as the "whole" result; then `relu`, if it is set.
    """

    dtype: str
    rows: int
    columns: int
    deep: int
    a: Reading
    b: Reading
    out: bool
    split: bool
    ending: str = ""
    relu: bool = False


def ended(ending: str, relu: bool) -> str:
    """Return the definition of ENDED(value, at, column): what is stored for a sum, that many elements behind the first.

    >>> ended("row", False).strip()
    '#define ENDED(value, at, column) ((value) + load(addend, od + (column)))'
    """
    added = {"": "", "row": " + load(addend, od + (column))", "whole": " + load(addend, od + (at))"}[ending]
    total = f"((value){added})"
    if not relu:
        return f"#define ENDED(value, at, column) {total}\n"
    return f"VALUE above(VALUE x) {{ return x <= 0 ? 0 : x; }}\n#define ENDED(value, at, column) above{total}\n"


def vector_width(dtype: str) -> int:
    """Return how many elements are read at once from global memory.

    >>> vector_width("float32"), vector_width("float64")
    (4, 2)
    """
    return 2 if dtype in WIDE else 4


def local_bytes(dtype: str, rows: int, columns: int, deep: int) -> int:
    """Return the bytes of local memory that a tile takes.

    >>> local_bytes("float32", 128, 128, 16)
    33792
    """
    return 2 * deep * (rows + columns + 2 * SPARE) * (8 if dtype in WIDE else 4)


@lru_cache(256)
def tiled(form: Form) -> str:
    """Return the program with kernel `matmul`, and with `matmul_join` if the form is split.

    Launch `matmul` in groups of 256: (256 * ceil(n / columns), ceil(m / rows), batch * parts); `matmul_join` on
    batch * m * n work-items or more. What is added, and where it begins, are the last arguments of the kernel that
    stores the result.
    """
    a, b = _Slice("a", form.rows, "m", form.a, form), _Slice("b", form.columns, "n", form.b, form)
    down, across = min(4, form.rows // 16), min(4, form.columns // 16)
    vectors = form.columns // 16 // across
    rows = range(form.rows // 16)
    sums = "\n    ".join(f"VALUE{across} {', '.join(f'c{i}_{j} = 0' for j in range(vectors))};" for i in rows)
    reads = [
        f"VALUE{width} {name}{j} = *(local VALUE{width}*)(at_{operand} + p * {part.pitch} + {16 * width * j});"
        for name, operand, width, part in (("u", "a", down, a), ("v", "b", across, b))
        for j in range(part.extent // 16 // width)
    ]
    products = [
        f"c{i}_{j} = MULADD((VALUE{across})({element(f'u{i // down}', i % down, down)}), v{j}, c{i}_{j});"
        for i in rows
        for j in range(vectors)
    ]
    step = "\n            ".join([*reads, *products])
    fetch, fetch_next = (
        "\n        ".join([*a.fetch(left), *b.fetch(left)]) for left in ("left", f"left - {form.deep}")
    )
    put = "\n        ".join([*a.put(), *b.put()])
    addend = ADDEND if form.ending else ""
    return f"""{PRELUDE}{accessors(form.dtype)}{VECTORS}{muladd(form.dtype)}{ended(form.ending, form.relu)}
__attribute__((reqd_work_group_size({ITEMS}, 1, 1)))
kernel void matmul(global {"VALUE" if form.split else "ELEMENT"}* restrict out, global const ELEMENT* restrict a,
    global const ELEMENT* restrict b, {PARAMETERS}, long parts, long span{"" if form.split else addend})
{{
    local VALUE4 slices_a[{2 * form.deep * a.pitch // 4}], slices_b[{2 * form.deep * b.pitch // 4}];
    local VALUE* ta = (local VALUE*)slices_a;
    local VALUE* tb = (local VALUE*)slices_b;
    int t = get_local_id(0), y = t / 64 * 4 + t / 8 % 4, x = t / 32 % 2 * 8 + t % 8, now = 0;
    long row = (long)get_group_id(1) * {form.rows}, column = (long)get_group_id(0) * {form.columns};
    long z = get_group_id(2) / parts, part = get_group_id(2) % parts;
    {BATCH}
    long first = part * span, last = min(k, first + span);
    {a.places("row")}
    {b.places("column")}
    {sums}
    {a.registers()} {b.registers()}
    long left = last - first;
    {{
        {fetch}
        {put}
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
    for (; left > 0; left -= {form.deep}) {{
        local VALUE* at_a = ta + now * {form.deep * a.pitch} + y * {down};
        local VALUE* at_b = tb + now * {form.deep * b.pitch} + x * {across};
        now = 1 - now;
        ga += {form.deep} * ak; gb += {form.deep} * bk;
        {fetch_next}
        #pragma unroll
        for (int p = 0; p < {form.deep}; p++) {{
            {step}
        }}
        {put}
        barrier(CLK_LOCAL_MEM_FENCE);
    }}
    {"po = (part * batch + z) * m * n;" if form.split else ""}
    {stores(form, down, across)}
}}
{JOIN.replace(" ADDED", addend) if form.split else ""}"""


class _Slice:
    """The part of an operand that a step needs: *extent* rows or columns, `form.deep` of the inner axis."""

    def __init__(self, name: str, extent: int, axis: str, reading: Reading, form: Form) -> None:
        self.name, self.extent, self.axis, self.reading, self.form = name, extent, axis, reading, form
        self.pitch = extent + SPARE
        self.width = vector_width(form.dtype) if reading.vector else 1
        self.count = extent * form.deep // (ITEMS * self.width)
        if not reading.inner:  # neighbours read along the outer axis
            self.place, self.inner = f"t % {extent // self.width} * {self.width}", f"t / {extent // self.width}"
            self.stride, self.stride_inner = 0, ITEMS * self.width // extent
        elif reading.vector:  # neighbours two by two: a whole sector of memory, and no bank twice on the way out
            pair = 2 * self.width
            self.place, self.inner = f"t / 2 % {extent}", f"t % 2 * {self.width} + t / {2 * extent} * {pair}"
            self.stride, self.stride_inner = 0, ITEMS // (2 * extent) * pair
        else:
            self.place, self.inner = f"t / {form.deep}", f"t % {form.deep}"
            self.stride, self.stride_inner = ITEMS // form.deep, 0

    def places(self, start: str) -> str:
        """Declare where a work-item reads: its index along both axes, its address, and the address's step."""
        n, axis = self.name, self.axis
        return (
            f"int i{n} = {self.place}, q{n} = {self.inner}, l{n} = (int)min({axis} - {start}, (long){self.extent}); "
            f"long g{n} = p{n} + ({start} + i{n}) * {n}{axis} + (first + q{n}) * {n}k, "
            f"s{n} = {self.stride} * {n}{axis} + {self.stride_inner} * {n}k;"
        )

    def registers(self) -> str:
        """Declare what holds the elements between global and local memory."""
        return f"VALUE{self.width} {', '.join(f'r{self.name}{s}' for s in range(self.count))};"

    def fetch(self, left: str) -> list[str]:
        """Read from global memory, zeros where the operand ends: *left* terms before that along the inner axis."""
        n = self.name
        return [
            f"r{n}{s} = 0; if (i{n} + {s * self.stride} < l{n} && q{n} + {s * self.stride_inner} < {left}) "
            f"r{n}{s} = {self._read(f'g{n} + {s} * s{n}')};"
            for s in range(self.count)
        ]

    def _read(self, address: str) -> str:
        n, width, dtype = self.name, self.width, self.form.dtype
        if width == 1:
            return f"load({n}, {address})"
        if dtype == "float16":
            return f"vload_half{width}(0, (global const half*)({n} + ({address})))"
        if dtype == "bfloat16":
            return f"as_float{width}(convert_uint{width}(*(global const ushort{width}*)({n} + ({address}))) << 16)"
        return f"*(global const VALUE{width}*)({n} + ({address}))"

    def put(self) -> list[str]:
        """Write to the slice that is not in use."""
        n, out = self.name, []
        for s in range(self.count):
            place = f"i{n} + {s * self.stride} + (now * {self.form.deep} + q{n} + {s * self.stride_inner}"
            if self.width > 1 and not self.reading.inner:
                out.append(f"*(local VALUE{self.width}*)(t{n} + {place}) * {self.pitch}) = r{n}{s};")
                continue
            out += [
                f"t{n}[{place} + {e}) * {self.pitch}] = {element(f'r{n}{s}', e, self.width)};"
                for e in range(self.width)
            ]
        return out


def element(vector: str, position: int, width: int) -> str:
    """Return an element of a vector, which is a number if its width is 1.

    >>> element("u", 2, 4), element("u", 0, 1)
    ('u.s2', 'u')
    """
    return f"{vector}.s{position}" if width > 1 else vector


def muladd(dtype: str) -> str:
    """Return the definition of MULADD(x, y, total): fused where the device does it in one step."""
    plain = "#define MULADD(x, y, total) ((x) * (y) + (total))\n"
    if "float" not in dtype:
        return plain
    fast = "FP_FAST_FMA" if dtype == "float64" else "FP_FAST_FMAF"
    return f"#ifdef {fast}\n#define MULADD(x, y, total) fma(x, y, total)\n#else\n{plain}#endif\n"


def stores(form: Form, down: int, across: int) -> str:
    """Return the statements that store a work-item's sums."""
    lines = []
    stored = "out[at + {e}] = {c};" if form.split else "store(ENDED({c}, at + {e} - oo, {column}), out, at + {e});"
    vectors = form.out and (form.split or not (form.dtype in STORAGE or form.ending or form.relu))
    for i in range(form.rows // 16):
        lines.append(f"if (row + y * {down} + {i // down * 16 * down + i % down} < m) {{")
        for j in range(form.columns // 16 // across):
            place = f"column + x * {across} + {16 * across * j}"
            head = f"    {{ long at = po + (row + y * {down} + {i // down * 16 * down + i % down}) * n + {place};"
            if vectors:
                lines.append(f"{head} if ({place} < n) *(global VALUE{across}*)(out + at) = c{i}_{j}; }}")
                continue
            each = [
                f"if ({place} + {e} < n) "
                + stored.format(e=e, c=element(f"c{i}_{j}", e, across), column=f"{place} + {e}")
                for e in range(across)
            ]
            lines.append(" ".join([head, *each, "}"]))
        lines.append("}")
    return "\n    ".join(lines)
