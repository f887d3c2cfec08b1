"""The accumulators of reductions in the CPU style: in which dtype they are, in which order they take in a row.

Here: the dtype of accumulators; for languages with vectors the blocks of a row (`Blocks`); for the others the loop
along a row in chunks of `LANES` elements that a compiler can keep in registers.
Not here: where rows begin and end (`cpu_walks.py`), vectors (`cpu_vector.py`).

One accumulator would make each addition wait for the one before it, and its error grow with the length of the row; a
C compiler may not change the order of additions, so the text has them in an order that suits it. Sums of float32 are
kept in double where the device has it. Converting each element costs more than reading it, so vectors of float32 are
added up in short blocks first, and the sum of a block goes into the accumulator in double.
"""

from collections.abc import Sequence

from polygrad.driver.ir import Instr, kind
from polygrad.driver.render.dialect import Dialect
from polygrad.driver.render.expressions import Expressions

LANES = 16
BLOCK = 16  # vectors that are added up before their sum goes into a wider accumulator: as many as NumPy adds in turn
LONG_BLOCK = 64  # the same where the accumulator is not wider, so that there are few of both


def partial_dtype(instr: Instr, dialect: Dialect) -> str:
    """Return the dtype in which a reduction is accumulated.

    >>> from polygrad.driver.render.dialect import C99, OPENCL
    >>> total = Instr("reduce", "float32", (0,), "sum")
    >>> partial_dtype(total, C99), partial_dtype(total, OPENCL)
    ('float64', 'float32')
    """
    wide = dialect.wide_sums and instr.op == "reduce" and (instr.dtype, instr.attr) == ("float32", "sum")
    return "float64" if wide else instr.dtype


def in_blocks(instr: Instr) -> bool:
    """Whether a reduction is rounded, so that the order in which it takes in elements matters."""
    return instr.op == "reduce" and instr.attr == "sum" and kind(instr.dtype) == "float"


def declared(n: int, type_: str, start: str) -> list[str]:
    """Declare the accumulators of reduction *n*, each at its neutral element."""
    return [f"{type_} a{n}[{LANES}];", f"for (int lane = 0; lane < {LANES}; lane++) a{n}[lane] = {start};"]


def folded(n: int, instr: Instr, write: Expressions) -> list[str]:
    """Combine the accumulators of reduction *n* in pairs until the first holds them all."""
    step = write.reduce_step(str(instr.attr), partial_dtype(instr, write.dialect), f"a{n}[lane]", f"a{n}[lane + half]")
    return [
        f"for (int half = {LANES // 2}; half > 0; half /= 2)",
        f"for (int lane = 0; lane < half; lane++) a{n}[lane] = {step};",
    ]


def strip(index: str, long: str, start: str, stop: str, work: Sequence[str]) -> list[str]:
    """Do *work* for *index* from *start* to *stop*; `lane` is the number of the accumulator that it adds to.

    The first loop over lanes has a constant length, so that it becomes vector instructions.
    """
    return [
        "{",
        f"{long} chunk_at = {start};",
        f"for (; chunk_at + {LANES} <= {stop}; chunk_at += {LANES}) {{",
        f"for (int lane = 0; lane < {LANES}; lane++) {{",
        f"const {long} {index} = chunk_at + lane;",
        *work,
        "}",
        "}",
        f"for (int lane = 0; chunk_at + lane < {stop}; lane++) {{",
        f"const {long} {index} = chunk_at + lane;",
        *work,
        "}",
        "}",
    ]
