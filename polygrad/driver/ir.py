"""The fused IR: what one kernel is, as data. This form is the contract between polygrad and every driver.

Here: the instruction table with its semantics, and the types `Kernel`, `View`, `Store`, `Instr`.
Not here: what a kernel computes (`oracle.py` is the definition), whether it is well formed (`verify.py`), how it is
run.

A kernel is one SSA program over an iteration space of `parallel` axes followed by `reduced` axes. A value is FULL if it
varies along the reduced axes, else ROW. `reduce` turns FULL into ROW; an instruction that mixes the two broadcasts.
Several reductions may follow each other: a value's *level* is the number of reductions that must be finished before it.

Structure and launch are kept apart, so that one program serves many shapes. The structure (this module) is hashable and
is the key of every program cache. What varies from launch to launch is passed to the driver beside it:

    buffers  one device handle for each entry of `Kernel.buffers`
    ints     one tuple of Python ints, in the order of `Kernel.int_names`: the extents of the axes, then for each view
             its offset, dynamic strides, windows, gathers, parts; last a tag if the kernel has a status word
    scalars  one Python bool, int or float for each entry of `Kernel.scalars`

All offsets and strides count elements of the view's dtype. Extents are at least 1: empty work never reaches a driver.
"""

import functools
from typing import Any, NamedTuple

VERSION = (1, 0)

# Values may have any of these dtypes. float16 and bfloat16 are storage: they are loaded, stored, cast and selected by
# `where`, while arithmetic on them is written as float32 with casts around it, so that every driver rounds alike.
ARITHMETIC = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
STORAGE = ("float16", "bfloat16")
DTYPES = (*ARITHMETIC, *STORAGE)
ITEMSIZE = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2,
}  # fmt: skip


def kind(dtype: str) -> str:
    """Return ``"bool"``, ``"int"`` or ``"float"``."""
    return "bool" if dtype == "bool" else "float" if "float" in dtype else "int"


class ScalarOp(NamedTuple):
    """A row of the table of scalar instructions.

    `kinds` lists the operand kinds it accepts; operands have one dtype. The result has that dtype, or bool if
    `compares`. A `mandatory` op is in every driver; the others are declared in `DeviceInfo.scalar_ops`.
    """

    name: str
    arity: int
    kinds: str
    compares: bool
    mandatory: bool
    doc: str


def _table(*rows: tuple[str, int, str, bool, bool, str]) -> dict[str, ScalarOp]:
    return {row[0]: ScalarOp(*row) for row in rows}


SCALAR_OPS = _table(
    # Mandatory. Names are the Array API's where it has the function with this meaning.
    ("add", 2, "int float", False, True, "a + b. Integers wrap. Never contracted with a multiply into an fma."),
    ("subtract", 2, "int float", False, True, "a - b. Integers wrap."),
    ("multiply", 2, "int float", False, True, "a * b. Integers wrap."),
    ("negative", 1, "int float", False, True, "-a. Integers wrap, unsigned too."),
    ("divide", 2, "float", False, True, "IEEE division: x/0 is an infinity, 0/0 is NaN."),
    ("quotient", 2, "int", False, True, "Truncated to zero; x/0 is 0, least/-1 is least. Never traps."),
    ("modulo", 2, "int", False, True, "a - quotient(a, b) * b, with a's sign; x mod 0 is 0. Never traps."),
    ("maximum", 2, "bool int float", False, True, "The larger; NaN if either is NaN. Sign of equal zeros is free."),
    ("less", 2, "bool int float", True, True, "a < b; false if either is NaN."),
    ("less_equal", 2, "bool int float", True, True, "a <= b; false if either is NaN."),
    ("equal", 2, "bool int float", True, True, "a == b; false if either is NaN."),
    ("not_equal", 2, "bool int float", True, True, "a != b; true if either is NaN."),
    ("bitwise_and", 2, "bool int", False, True, "a & b; on bool the logical and."),
    ("bitwise_or", 2, "bool int", False, True, "a | b; on bool the logical or."),
    ("bitwise_xor", 2, "bool int", False, True, "a ^ b; on bool the logical exclusive or."),
    ("bitwise_invert", 1, "bool int", False, True, "~a; on bool the logical not."),
    ("bitwise_left_shift", 2, "int", False, True, "a << b; 0 where b is negative or at least the width."),
    ("bitwise_right_shift", 2, "int", False, True, "a >> b, arithmetic if signed; b < 0 or >= the width: 0 or -1."),
    ("floor", 1, "float", False, True, "The greatest integer not above a."),
    ("sqrt", 1, "float", False, True, "The square root; NaN below zero, -0.0 for -0.0."),
    # Optional.
    ("minimum", 2, "bool int float", False, False, "The smaller; NaN if either is NaN. Sign of equal zeros is free."),
    ("absolute", 1, "int float", False, False, "|a|; the least integer stays itself; clears a zero's sign."),
    ("ceil", 1, "float", False, False, "The least integer not below a."),
    ("trunc", 1, "float", False, False, "a rounded to zero."),
    ("round", 1, "float", False, False, "The nearest integer, ties to even."),
    ("copysign", 2, "float", False, False, "|a| with the sign bit of b (of a zero or NaN too)."),
    ("nextafter", 2, "float", False, False, "The next representable value from a to b; b if they are equal."),
    ("rsqrt", 1, "float", False, False, "1 / sqrt(a)."),
    ("exp", 1, "float", False, False, "e ** a."),
    ("exp2", 1, "float", False, False, "2 ** a."),
    ("expm1", 1, "float", False, False, "e ** a - 1, accurate near zero."),
    ("log", 1, "float", False, False, "The natural logarithm."),
    ("log2", 1, "float", False, False, "The base 2 logarithm."),
    ("log10", 1, "float", False, False, "The base 10 logarithm."),
    ("log1p", 1, "float", False, False, "log(1 + a), accurate near zero."),
    ("sin", 1, "float", False, False, "Sine of radians, range reduced for every finite a."),
    ("cos", 1, "float", False, False, "Cosine of radians, range reduced for every finite a."),
    ("tan", 1, "float", False, False, "Tangent of radians, range reduced for every finite a."),
    ("asin", 1, "float", False, False, "Inverse sine, in radians."),
    ("acos", 1, "float", False, False, "Inverse cosine, in radians."),
    ("atan", 1, "float", False, False, "Inverse tangent, in radians."),
    ("atan2", 2, "float", False, False, "The angle of the point (b, a), in radians, with IEEE signs."),
    ("sinh", 1, "float", False, False, "Hyperbolic sine."),
    ("cosh", 1, "float", False, False, "Hyperbolic cosine."),
    ("tanh", 1, "float", False, False, "Hyperbolic tangent."),
    ("asinh", 1, "float", False, False, "Inverse hyperbolic sine."),
    ("acosh", 1, "float", False, False, "Inverse hyperbolic cosine."),
    ("atanh", 1, "float", False, False, "Inverse hyperbolic tangent."),
    ("pow", 2, "float", False, False, "a ** b with IEEE 754 (C pow) special cases: pow(x, 0) is 1, pow(1, y) is 1."),
    ("erf", 1, "float", False, False, "The error function."),
    ("fmod", 2, "float", False, False, "The exact remainder of a / b with a's sign (C fmod)."),
)  # fmt: skip

MANDATORY = frozenset(name for name, op in SCALAR_OPS.items() if op.mandatory)

# Reductions over all reduced axes at once. sum and prod accumulate in the value's dtype (integers wrap), in any order.
# max and min propagate NaN. sum and max are mandatory on numbers (max also on bool, as "any"); the others are optional.
REDUCTIONS = ("sum", "max", "min", "prod")
MANDATORY_REDUCTIONS = frozenset({"sum", "max"})


class Instr(NamedTuple):
    """One instruction; its value is referred to by its position in `Kernel.body`.

    op        args                 attr                  value
    load      gather indices       view number           the element of the view at the current axis indices (see View)
    scalar    ()                   slot                  a launch scalar
    const     ()                   bool, int or float    a literal
    iota      ()                   axis                  the current index along an axis; dtype int32 or int64
    cast      (a,)                 None                  a in this dtype. float to int truncates (out of range: any
                                                         value, no trap); to bool is a != 0; to an int wraps; to a
                                                         float rounds to even
    bitcast   (a,)                 None                  the bits of a as this dtype, of the same width
    where     (c, a, b)            None                  a if c (bool) else b
    reduce    (a,)                 one of REDUCTIONS     a reduced over all reduced axes
    a name of SCALAR_OPS           None                  see the table

    A load may have a `guard`: the position of a bool value, or -1. Where the guard is false the load is not made: its
    value is unspecified, and a bad gather index is not reported. A driver may read the memory there all the same, for
    the address is valid in either case (that of a bad index once it is clamped).
    """

    op: str
    dtype: str
    args: tuple[int, ...] = ()
    attr: Any = None
    guard: int = -1


class View(NamedTuple):
    """How a load or store addresses a buffer argument.

    The element is ``offset + sum(stride[k] * index[k])`` over all axes (parallel, then reduced). `strides` holds for
    each axis 0 or 1 if that is known from the structure, else None: then the stride, any int, is a launch argument.

    `window` names axes with a half-open range [lo, hi) of indices, launch arguments: outside of it a load gives `fill`
    and does not touch memory (this is padding).

    A load with `gathers` = n takes n integer values as args. Each has a stride and a size, launch arguments. Index
    value i counts from the end if negative: it stands for i + size, and adds stride * i to the address. If i is not in
    [-size, size) the address is clamped into [0, size) and the bad index is reported in the kernel's status word; not
    where the load is not made, which is outside of its window and where its guard is false.
    """

    buffer: int
    dtype: str
    strides: tuple[int | None, ...]
    window: tuple[int, ...] = ()
    gathers: int = 0
    fill: bool | int | float = 0
    partial: bool = False


class Store(NamedTuple):
    """Write value number `value` through view number `view`; views of stores are injective and do not overlap.

    A block that is stored to is loaded from by the same launch only if there are no reduced axes, and only through a
    view that is the same: each element is made from the one in its place, so a driver may store as it goes.
    A ROW value is stored once per parallel index: its view has stride 0 along the reduced axes. If the view is
    `partial`, a FULL value is summed over all parallel axes, part by part: with rows numbered in C order over the
    parallel axes and launch arguments `parts` and `part_stride`, row r belongs to part ``r // ceil(rows / parts)``, and
    part p of the sum is written at ``offset + p * part_stride + sum(stride[k] * index[k])`` over the reduced axes.
    Every one of the `parts` parts is written (parts never exceeds rows, and no part is empty). A second kernel adds the
    parts up.
    """

    value: int
    view: int


class Kernel(NamedTuple):
    """One kernel: see the module's docstring.

    `status` is the position in `buffers` of the status word, or -1: an int32[4] buffer, zero when all is well. A gather
    that meets a bad index sets, if word 0 is still zero (atomically where work is concurrent), word 0 to the launch's
    tag (a launch argument, not zero), word 1 to the position of the load in `body`, words 2 and 3 to the low and high
    32 bits of the index.
    """

    parallel: int
    reduced: int
    buffers: tuple[str, ...]
    views: tuple[View, ...]
    scalars: tuple[str, ...]
    body: tuple[Instr, ...]
    stores: tuple[Store, ...]
    status: int = -1

    @property
    def rank(self) -> int:
        """The number of axes."""
        return self.parallel + self.reduced

    @property
    def int_names(self) -> tuple[str, ...]:
        """Name each launch int, in order: extents ``n0 n1 ..``, then for view v its ``v.o`` (offset), ``v.s<axis>`` for
        each dynamic stride, ``v.lo<axis> v.hi<axis>`` for each window, ``v.gs<j> v.gn<j>`` (stride and size) for each
        gather, ``v.parts v.ps`` (parts and part stride) if partial; last ``tag`` if there is a status word.

        >>> Kernel(1, 0, ("float32",), (View(0, "float32", (None,)),), (), (), ()).int_names
        ('n0', 'v0.o', 'v0.s0')
        """
        return _int_names(self)


@functools.lru_cache(maxsize=4096)
def _int_names(kernel: Kernel) -> tuple[str, ...]:
    names = [f"n{k}" for k in range(kernel.rank)]
    for v, view in enumerate(kernel.views):
        names.append(f"v{v}.o")
        names += [f"v{v}.s{k}" for k, stride in enumerate(view.strides) if stride is None]
        for k in view.window:
            names += [f"v{v}.lo{k}", f"v{v}.hi{k}"]
        for j in range(view.gathers):
            names += [f"v{v}.gs{j}", f"v{v}.gn{j}"]
        if view.partial:
            names += [f"v{v}.parts", f"v{v}.ps"]
    if kernel.status >= 0:
        names.append("tag")
    return tuple(names)


@functools.lru_cache(maxsize=1024)
def guards_as_operands(kernel: Kernel) -> Kernel:
    """Return *kernel* with the guard of each load that gathers as the last of its args, and no other guard.

    For drivers that make every load and only have to keep quiet where a guard is false: positions stay as they are, and
    what follows args to find what a value needs finds such a guard too. What comes back is not well formed otherwise.

    >>> view = View(0, "int32", (1,), gathers=1)
    >>> body = (Instr("const", "int32", (), 0), Instr("const", "bool", (), True), Instr("load", "int32", (0,), 0, 1))
    >>> guards_as_operands(Kernel(1, 0, ("int32",), (view,), (), body, ())).body[2]
    Instr(op='load', dtype='int32', args=(0, 1), attr=0, guard=-1)
    """
    if all(instr.guard < 0 for instr in kernel.body):
        return kernel
    body = (i._replace(args=(*i.args, i.guard) if i.args and i.guard >= 0 else i.args, guard=-1) for i in kernel.body)
    return kernel._replace(body=tuple(body))


class Placement(NamedTuple):
    """Where a value lives: in the FULL space or per ROW, and after how many reductions (its level)."""

    full: bool
    level: int


@functools.lru_cache(maxsize=4096)
def placements(kernel: Kernel) -> tuple[Placement, ...]:
    """Return for each instruction its space and level; a reduce has the level at which its value is ready.

    >>> row_sum = Kernel(1, 1, ("float32",), (View(0, "float32", (None, 1)),), (),
    ...                  (Instr("load", "float32", (), 0), Instr("reduce", "float32", (0,), "sum")), ())
    >>> placements(row_sum)
    (Placement(full=True, level=0), Placement(full=False, level=1))
    """
    out: list[Placement] = []
    for instr in kernel.body:
        used = [out[a] for a in (*instr.args, instr.guard) if a >= 0]
        level = max((p.level for p in used), default=0)
        full = any(p.full for p in used)
        if instr.op == "reduce":
            full, level = False, level + 1
        elif instr.op == "load":
            view = kernel.views[instr.attr]
            along = any(stride != 0 for stride in view.strides[kernel.parallel :])
            full = full or along or any(k >= kernel.parallel for k in view.window)
        elif instr.op == "iota":
            full = instr.attr >= kernel.parallel
        out.append(Placement(full, level))
    return tuple(out)
