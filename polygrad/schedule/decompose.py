"""What a device does not have, made of what every device has.

Here: which function decomposes which op, and what a missing reduction is made of. Not here: the functions, by family
in `decompose_exact.py`, `decompose_exponential.py`, `decompose_logarithm.py`, `decompose_trigonometry.py`,
`decompose_inverse.py` and `decompose_power.py`; products along axes, which take several launches
(`decompose_product.py`); the decision, in `body.py`.

Every optional op of `polygrad.driver.ir.SCALAR_OPS` is in `DECOMPOSITIONS`. A decomposition emits mandatory ops,
casts, bitcasts, selections and literals, in the operand's own dtype and integers of its width; of optional ops it uses
only those without rounding, which are the device's own if it has them. It runs where the op would have run: nothing
falls back to the host.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from polygrad.driver.ir import kind
from polygrad.errors import UnsupportedOp
from polygrad.ops.values import Value
from polygrad.schedule import decompose_exact as exact
from polygrad.schedule import decompose_exponential as exponential
from polygrad.schedule import decompose_inverse as inverse
from polygrad.schedule import decompose_logarithm as logarithm
from polygrad.schedule import decompose_power as power
from polygrad.schedule import decompose_trigonometry as trigonometry

if TYPE_CHECKING:
    from polygrad.schedule.body import Body


def rsqrt(a: Value) -> Value:
    """Two roundings: within 1.5 ulp."""
    return 1.0 / a.op("sqrt")


DECOMPOSITIONS: dict[str, Callable[..., Value]] = {
    "minimum": exact.minimum, "absolute": exact.absolute, "ceil": exact.ceil, "trunc": exact.trunc,
    "round": exact.round_, "copysign": exact.copysign, "nextafter": exact.nextafter, "fmod": exact.fmod, "rsqrt": rsqrt,
    "exp": exponential.exp, "exp2": exponential.exp2, "expm1": exponential.expm1, "sinh": exponential.sinh,
    "cosh": exponential.cosh, "tanh": exponential.tanh, "erf": exponential.erf,
    "log": logarithm.log, "log2": logarithm.log2, "log10": logarithm.log10, "log1p": logarithm.log1p,
    "asinh": logarithm.asinh, "acosh": logarithm.acosh, "atanh": logarithm.atanh,
    "sin": trigonometry.sin, "cos": trigonometry.cos, "tan": trigonometry.tan,
    "asin": inverse.asin, "acos": inverse.acos, "atan": inverse.atan, "atan2": inverse.atan2,
    "pow": power.pow_,
}  # fmt: skip


def decompose(body: "Body", op: str, args: tuple[int, ...]) -> int:
    """Return the value of a scalar op, written into *body* as mandatory ops.

    Examples
    --------
    >>> from polygrad.driver.ir import MANDATORY, Instr
    >>> from polygrad.schedule.body import Body
    >>> body = Body(MANDATORY)
    >>> _ = decompose(body, "ceil", (body.add(Instr("load", "float32", (), 0)),))
    >>> [instr.op for instr in body.instrs]
    ['load', 'negative', 'floor', 'negative']
    """
    return DECOMPOSITIONS[op](*[Value(body, a) for a in args]).number


def decompose_reduction(body: "Body", reduction: str, value: int) -> int:
    """Return a reduction made of the mandatory ones: min is max of what is negated, or inverted, and back.

    Raises
    ------
    UnsupportedOp
        For a product, which takes launches of its own: `decompose_product.py`.
    """
    if reduction != "min":
        raise UnsupportedOp(
            f"the device does not declare the reduction {reduction!r}, and sums and maxima in one kernel do not make "
            "it; compute it in launches of its own, as polygrad.schedule.decompose_product does"
        )
    turn = "negative" if kind(body.dtype(value)) == "float" else "bitwise_invert"
    return body(turn, body.reduce("max", body(turn, value)))
