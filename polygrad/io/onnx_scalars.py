"""Elementwise ops as ONNX operators.

Here: `SCALARS`, which says for each instruction of polygrad's kernels what it is in ONNX, casts, and `elementwise`,
which writes an op of the table: by its instruction, or by the formula that it declares.
Not here: movement, reductions and all other ops (`onnx_ops.py`).

Integer division by zero gives 0 and shifts beyond the width are defined, as everywhere in polygrad: what could trap is
guarded.
"""

import math
from collections.abc import Callable, Sequence

from polygrad.driver.ir import SCALAR_OPS, STORAGE, Instr
from polygrad.io.onnx_graph import CARRIERS, Builder, Nodes, refuse
from polygrad.schedule.body import Body

Rule = Callable[..., str]  # (builder, dtype of the operands, *operands) -> result, as they are carried
_LEAST = -(2**63)


def _plain(kind: str) -> Rule:
    """Return the rule of an instruction that is one operator."""
    return lambda b, dtype, *xs: b.settle(b.op(kind, *xs), dtype)


def _compared(kind: str) -> Rule:
    """Return the rule of a comparison: bools are compared as integers, the bits of uint64 with their order."""
    return lambda b, dtype, *xs: b.op(kind, *[_ordered(b, dtype, x) for x in xs])


def _ordered(b: Builder, dtype: str, x: str) -> str:
    """Return x as something that ONNX's comparisons order as polygrad orders x."""
    if dtype == "bool":
        return b.cast(x, "int32")
    return b.op("BitwiseXor", x, b.literal([_LEAST], "int64", ())) if dtype == "uint64" else x


def _extreme(kind: str, of_bools: str) -> Rule:
    def rule(b: Builder, dtype: str, x: str, y: str) -> str:
        if dtype == "bool":
            return b.op(of_bools, x, y)
        if dtype == "uint64":
            found = b.op(kind, _ordered(b, dtype, x), _ordered(b, dtype, y))
            return _ordered(b, dtype, found)  # flipping the sign bit again brings the bits back
        return b.op(kind, x, y)

    return rule


def _bits(kind: str, of_bools: str) -> Rule:
    return lambda b, dtype, *xs: b.op(of_bools, *xs) if dtype == "bool" else b.settle(b.op(kind, *xs), dtype)


def _not_equal(b: Builder, dtype: str, x: str, y: str) -> str:
    return b.op("Xor", x, y) if dtype == "bool" else b.op("Not", b.op("Equal", x, y))


def _number(b: Builder, dtype: str, value: float) -> str:
    return b.literal([value], CARRIERS[dtype], ())


def _quotient(b: Builder, dtype: str, x: str, y: str) -> str:
    """Division by 0 gives 0, and by -1 is a negation, which does not trap at the least integer."""
    zero, one = _number(b, dtype, 0), _number(b, dtype, 1)
    by_zero, by_minus = b.op("Equal", y, zero), b.op("Equal", y, _number(b, dtype, -1))
    safe = b.op("Where", b.op("Or", by_zero, by_minus), one, y)
    found = b.op("Where", by_minus, b.op("Sub", zero, x), b.op("Div", x, safe))
    return b.settle(b.op("Where", by_zero, zero, found), dtype)


def _modulo(b: Builder, dtype: str, x: str, y: str) -> str:
    zero = _number(b, dtype, 0)
    found = b.op("Sub", x, b.op("Mul", _quotient(b, dtype, x, y), y))
    return b.settle(b.op("Where", b.op("Equal", y, zero), zero, found), dtype)


def _shift(direction: str) -> Rule:
    def rule(b: Builder, dtype: str, x: str, by: str) -> str:
        """ONNX shifts unsigned numbers alone: a negative one is shifted as its complement."""
        width = _number(b, dtype, int(dtype.removeprefix("u")[3:]))
        zero = _number(b, dtype, 0)
        fits = b.op("And", b.op("LessOrEqual", zero, by), b.op("Less", by, width))
        amount = b.cast(b.op("Where", fits, by, zero), "uint64")
        bits, negative = x, ""
        if direction == "RIGHT" and not dtype.startswith("u"):
            negative = b.op("Less", x, zero)
            bits = b.op("Where", negative, b.op("BitwiseNot", x), x)
        wide = b.cast(bits, "int64") if CARRIERS[dtype] != "int64" else bits
        shifted = b.cast(b.op("BitShift", b.cast(wide, "uint64"), amount, direction=direction), "int64")
        found = shifted if CARRIERS[dtype] == "int64" else _narrowed(b, shifted, dtype)
        found = b.op("Where", fits, found, zero)
        return b.settle(b.op("Where", negative, b.op("BitwiseNot", found), found) if negative else found, dtype)

    return rule


def _narrowed(b: Builder, x: str, dtype: str) -> str:
    """Return an int64 as one of *dtype* is carried."""
    return b.enter(b.cast(x, dtype), dtype)


def _sign_bit(b: Builder, dtype: str, x: str) -> str:
    """Return whether the sign bit is set; that of a NaN cannot be seen."""
    zero = _number(b, dtype, 0.0)
    below = b.op("Less", b.op("Div", _number(b, dtype, 1.0), x), zero)
    return b.op("Or", b.op("Less", x, zero), b.op("And", b.op("Equal", x, zero), below))


def _copysign(b: Builder, dtype: str, x: str, y: str) -> str:
    size = b.op("Abs", x)
    return b.op("Where", _sign_bit(b, dtype, y), b.op("Neg", size), size)


def _absolute(b: Builder, dtype: str, x: str) -> str:
    return x if dtype.startswith("u") else b.settle(b.op("Abs", x), dtype)


def _negative(b: Builder, dtype: str, x: str) -> str:
    if dtype.startswith("u"):
        return b.settle(b.op("Sub", _number(b, dtype, 0), x), dtype)
    return b.settle(b.op("Neg", x), dtype)


def _trunc(b: Builder, dtype: str, x: str) -> str:
    whole = b.op("Floor", b.op("Abs", x))
    return b.op("Where", _sign_bit(b, dtype, x), b.op("Neg", whole), whole)


def _expm1(b: Builder, dtype: str, x: str) -> str:
    """(u - 1) x / log(u) with u = exp(x): the errors of u cancel. Source: Higham, Accuracy and stability (2002), 1.14.

    Where u is 1, or log(u) infinite, this would be 0 / 0.
    """
    one = _number(b, dtype, 1.0)
    u = b.op("Exp", x)
    less = b.op("Sub", u, one)
    log = b.op("Log", u)
    close = b.op("Div", b.op("Mul", less, x), log)
    far = b.op("Less", _number(b, dtype, 1.0), b.op("Abs", log))
    return b.op("Where", b.op("Equal", u, one), x, b.op("Where", far, less, close))


def _log1p(b: Builder, dtype: str, x: str) -> str:
    """log(u) x / (u - 1) with u = 1 + x; see `_expm1`."""
    one = _number(b, dtype, 1.0)
    u = b.op("Add", x, one)
    log = b.op("Log", u)
    close = b.op("Mul", log, b.op("Div", x, b.op("Sub", u, one)))
    far = b.op("Less", _number(b, dtype, 4.0), b.op("Abs", x))  # where u rounds little, and x / (u - 1) may overflow
    return b.op("Where", b.op("Equal", u, one), x, b.op("Where", far, log, close))


def _atan2(b: Builder, dtype: str, y: str, x: str) -> str:
    """The angle of |y| / |x| in the first quarter, turned into its own by the two signs."""
    zero, one = _number(b, dtype, 0.0), _number(b, dtype, 1.0)
    high, wide = b.op("Abs", y), b.op("Abs", x)
    corner = b.op("And", b.op("Equal", high, wide), b.op("Not", b.op("Equal", high, zero)))  # two infinities too
    flat = b.op("Equal", high, zero)  # 0 / 0 too
    ratio = b.op("Where", corner, one, b.op("Where", flat, zero, b.op("Div", high, wide)))
    angle = b.op("Atan", ratio)
    # A NaN in x beside a zero in y would be lost in `flat`.
    angle = b.op("Where", b.op("Equal", x, x), angle, x)
    angle = b.op("Where", _sign_bit(b, dtype, x), b.op("Sub", _number(b, dtype, math.pi), angle), angle)
    return b.op("Where", _sign_bit(b, dtype, y), b.op("Neg", angle), angle)


def _over(b: Builder, dtype: str, x: str, log: float) -> str:
    return b.op("Div", b.op("Log", x), _number(b, dtype, log))


SCALARS: dict[str, Rule] = {
    "add": _plain("Add"),
    "subtract": _plain("Sub"),
    "multiply": _plain("Mul"),
    "divide": _plain("Div"),
    "negative": _negative,
    "absolute": _absolute,
    "quotient": _quotient,
    "modulo": _modulo,
    "maximum": _extreme("Max", "Or"),
    "minimum": _extreme("Min", "And"),
    "less": _compared("Less"),
    "less_equal": _compared("LessOrEqual"),
    "equal": lambda b, _dtype, x, y: b.op("Equal", x, y),
    "not_equal": _not_equal,
    "bitwise_and": _bits("BitwiseAnd", "And"),
    "bitwise_or": _bits("BitwiseOr", "Or"),
    "bitwise_xor": _bits("BitwiseXor", "Xor"),
    "bitwise_invert": _bits("BitwiseNot", "Not"),
    "bitwise_left_shift": _shift("LEFT"),
    "bitwise_right_shift": _shift("RIGHT"),
    "floor": _plain("Floor"),
    "ceil": _plain("Ceil"),
    "round": _plain("Round"),
    "trunc": _trunc,
    "sqrt": _plain("Sqrt"),
    "rsqrt": lambda b, _dtype, x: b.op("Reciprocal", b.op("Sqrt", x)),
    "copysign": _copysign,
    "exp": _plain("Exp"),
    "exp2": lambda b, dtype, x: b.op("Pow", _number(b, dtype, 2.0), x),
    "expm1": _expm1,
    "log": _plain("Log"),
    "log2": lambda b, dtype, x: _over(b, dtype, x, math.log(2.0)),
    "log10": lambda b, dtype, x: _over(b, dtype, x, math.log(10.0)),
    "log1p": _log1p,
    "sin": _plain("Sin"),
    "cos": _plain("Cos"),
    "tan": _plain("Tan"),
    "asin": _plain("Asin"),
    "acos": _plain("Acos"),
    "atan": _plain("Atan"),
    "atan2": _atan2,
    "sinh": _plain("Sinh"),
    "cosh": _plain("Cosh"),
    "tanh": _plain("Tanh"),
    "asinh": _plain("Asinh"),
    "acosh": _plain("Acosh"),
    "atanh": _plain("Atanh"),
    "erf": _plain("Erf"),
    "pow": _plain("Pow"),
    "fmod": lambda b, _dtype, x, y: b.op("Mod", x, y, fmod=1),
}
# Instructions that ONNX has no operator for, and why; of one dtype alone if it is named.
REFUSED = {
    "nextafter": "it needs the bits of a float, which ONNX's operators do not show",
    "bitcast": "ONNX's operators do not show the bits of a float",
    "quotient uint64": "runtimes do not divide uint64; cast it with .astype('int64')",
    "modulo uint64": "runtimes do not divide uint64; cast it with .astype('int64')",
}
# Ops of the table that have an operator of their own, though polygrad makes them of others.
_DIRECT: dict[str, Rule] = {"greater": _compared("Greater"), "greater_equal": _compared("GreaterOrEqual")}


def cast_rule(b: Builder, x: str, before: str, after: str) -> str:
    """Return what is carried for a value of one dtype as it is carried in another."""
    if before == after:
        return x
    if after == "bool":
        zero = _number(b, before, 0)
        return b.op("Not", b.op("Equal", x, zero))  # a NaN is true
    whole = "float" not in after
    if "float" in before and whole and CARRIERS[after] != after:
        # Through a wide integer: what ONNX's Cast makes of a negative float as an unsigned integer is undefined.
        x = b.cast(x, "uint64" if after == "uint64" else "int64")
    elif before == "uint64" and not whole:
        x = b.cast(x, "uint64")  # out of the int64 of its bits
    return b.settle(b.cast(x, CARRIERS[after]), after) if after != "uint64" else b.cast(x, "int64")


def select(b: Builder, dtype: str, condition: str, x: str, y: str) -> str:
    """Return x where the condition holds, else y."""
    if dtype == "bool":  # runtimes lack Where of bools
        return b.op("Or", b.op("And", condition, x), b.op("And", b.op("Not", condition), y))
    return b.op("Where", condition, x, y)


def elementwise(b: Builder, nodes: Nodes, *operands: str) -> str:
    """Return an elementwise op of the table."""
    node = nodes[0]
    op, dtype = node.op, node.parents[-1].dtype.name
    xs = _narrow(b, nodes, operands)
    if op.name == "where":
        return select(b, dtype, *xs)
    if op.name in _DIRECT:
        return _DIRECT[op.name](b, dtype, *xs)
    if op.lower is None:
        return _instruction(b, nodes, op.instr, dtype, xs)
    return _by_formula(b, nodes, dtype, xs)


def _narrow(b: Builder, nodes: Nodes, operands: Sequence[str]) -> list[str]:
    """Return operands as they were before they were broadcast, if another one has the whole shape."""
    whole = [name not in b.expanded for name in operands]
    full = any(w and p.shape == nodes[0].shape for w, p in zip(whole, nodes[0].parents, strict=True))
    return [b.expanded.get(name, name) for name in operands] if full else list(operands)


def _instruction(b: Builder, nodes: Nodes, instr: str, dtype: str, xs: Sequence[str]) -> str:
    why = REFUSED.get(instr) or REFUSED.get(f"{instr} {dtype}")
    if why:
        raise refuse(nodes, why)
    computed = CARRIERS[dtype] if dtype in STORAGE else dtype
    found = SCALARS[instr](b, computed, *xs)
    return found if SCALAR_OPS[instr].compares else b.settle(found, dtype)


def _by_formula(b: Builder, nodes: Nodes, dtype: str, xs: Sequence[str]) -> str:
    """Return an op by the instructions that it declares, 16-bit floats being computed in float32."""
    op = nodes[0].op
    assert op.lower is not None  # noqa: S101  the caller has looked
    computed = CARRIERS[dtype] if dtype in STORAGE else dtype
    body = Body()
    loads = [body.add(Instr("load", computed, (), k)) for k in range(len(xs))]
    result = op.lower(body, *loads)
    values: dict[int, str] = dict(zip(loads, xs, strict=True))
    for k in _used(body.instrs, result):
        if k not in values:
            values[k] = _translated(b, nodes, body.instrs, k, values)
    return b.settle(values[result], nodes[0].dtype.name) if computed != dtype and not op.compares else values[result]


def _used(instrs: Sequence[Instr], result: int) -> list[int]:
    """Return the instructions that a result needs, in order."""
    wanted = {result}
    for k in range(result, -1, -1):
        if k in wanted:
            wanted.update(instrs[k].args)
    return sorted(wanted)


def _translated(b: Builder, nodes: Nodes, instrs: Sequence[Instr], k: int, values: dict[int, str]) -> str:
    instr = instrs[k]
    if instr.op == "const":
        return b.scalar(instr.attr, instr.dtype)
    args = [values[a] for a in instr.args]
    before = instrs[instr.args[-1]].dtype
    if instr.op == "cast":
        return cast_rule(b, args[0], before, instr.dtype)
    if instr.op == "where":
        return select(b, before, *args)
    return _instruction(b, nodes, instr.op, before, args)
