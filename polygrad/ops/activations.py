"""Activation functions: one value out for each value in.

Here: relu and its family, the smooth ones, gates; each is stable at both ends and has a right slope at 0.
Not here: softmax (`neural.py`), parameters.
"""

import math
from collections.abc import Callable
from typing import Any

from polygrad import shapes
from polygrad.errors import ShapeError
from polygrad.ops.composite import draw_numbers
from polygrad.ops.internal import cast
from polygrad.ops.manipulation import part
from polygrad.ops.statistics import floating, wide
from polygrad.ops.table import composite, elementwise

FAR = draw_numbers((-9, 9))
_SELU_SCALE, _SELU_ALPHA = (
    1.0507009873554805,
    1.6732632423543772,
)  # Klambauer et al., "Self-normalizing neural networks", 2017


def _smooth(xp: Any, name: str, x: Any, formula: Callable[[Any], Any]) -> Any:
    """Return formula(x) in x's dtype; 16-bit floats are rounded once, at the end."""
    x = floating(xp, name, x)
    return cast(xp, formula(wide(xp, x)), x.dtype)


def downhill(xp: Any, x: Any) -> Any:
    """Return -|x| with slope -1 at 0, so that exp of it cannot overflow and what is made of it has a slope at 0."""
    return xp.where(x < 0, x, -x)


def ramp(xp: Any, x: Any) -> Any:
    """Return x where it is not negative, else 0, with slope 1 at 0: the other half of `downhill`."""
    return xp.where(x < 0, xp.zeros_like(x), x)


def _relu_lowered(b: Any, x: Any) -> Any:
    zero = b.const(0, b.dtype(x))
    return b.where(b("less_equal", x, zero), zero, x)


@elementwise(
    kinds="int float",
    verb="apply relu to",
    lower=_relu_lowered,
    # By the result, which the next layer reads anyway: what it was made of need not stay for the backward pass.
    vjp=(lambda xp, g, out, x: xp.where(xp.less_equal(out, 0), 0.0, g),),
)
def relu(xp: Any, x: Any, /) -> Any:
    """x where it is positive, else 0; slope 0 at 0. NaN stays NaN."""
    return xp.where(xp.less_equal(x, 0), xp.zeros_like(x), x)


@composite(reference=lambda np, x: np.clip(x, 0, 6), samples=FAR, dtypes="int float")
def relu6(xp: Any, x: Any, /) -> Any:
    """x limited to [0, 6], with slope 0 at both ends."""
    return xp.where(xp.less_equal(x, 0), xp.zeros_like(x), xp.where(xp.greater_equal(x, 6), xp.full_of(6, x), x))


@composite(reference=lambda np, x, slope=0.01: np.where(x > 0, x, x * slope), samples=draw_numbers((-2, 2)))
def leaky_relu(xp: Any, x: Any, /, negative_slope: Any = 0.01) -> Any:
    """x where it is positive, else negative_slope * x."""
    x = floating(xp, "leaky_relu", x)
    return xp.where(x > 0, x, x * negative_slope)


def _exponential(xp: Any, x: Any, alpha: float, rate: float) -> Any:
    """Return x where it is positive, else alpha * (exp(x / rate) - 1)."""
    below = xp.where(x > 0, xp.zeros_like(x), x)
    return xp.where(x > 0, x, xp.expm1(below if rate == 1 else below / rate) * alpha)


def _elu_reference(np: Any, x: Any, alpha: float = 1.0) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


@composite(reference=_elu_reference, samples=FAR)
def elu(xp: Any, x: Any, /, alpha: Any = 1.0) -> Any:
    """x where it is positive, else alpha * (exp(x) - 1)."""
    return _smooth(xp, "elu", x, lambda v: _exponential(xp, v, alpha, 1))


@composite(reference=lambda np, x: _SELU_SCALE * _elu_reference(np, x, _SELU_ALPHA), samples=FAR)
def selu(xp: Any, x: Any, /) -> Any:
    """The exponential linear unit with the scale and alpha that keep mean 0 and variance 1."""
    return _smooth(xp, "selu", x, lambda v: _exponential(xp, v, _SELU_ALPHA, 1) * _SELU_SCALE)


@composite(
    reference=lambda np, x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha)), samples=FAR
)
def celu(xp: Any, x: Any, /, alpha: Any = 1.0) -> Any:
    """x where it is positive, else alpha * (exp(x / alpha) - 1); its slope is continuous for every alpha."""
    return _smooth(xp, "celu", x, lambda v: _exponential(xp, v, alpha, alpha))


@elementwise(
    kinds="float",
    domain=(0.5, 2.0),
    public=False,
    lower=lambda b, x: b("divide", b.const(1, b.dtype(x)), x),
    vjp=(lambda xp, g, out, x: -(g * out * out),),
    verb="invert",
)
def inverse_(xp: Any, x: Any, /) -> Any:
    """1 / x where x is not 0: its derivative takes no division."""
    return 1 / x


def _sigmoid(xp: Any, x: Any) -> Any:
    e = xp.exp(downhill(xp, x))
    return xp.where(x < 0, e, xp.ones_like(e)) * xp.inverse_(e + 1.0)


@composite(reference=lambda np, x: 1 / (1 + np.exp(-x)), samples=FAR)
def sigmoid(xp: Any, x: Any, /) -> Any:
    """1 / (1 + exp(-x)), accurate where it is near 0 and without overflow."""
    return _smooth(xp, "sigmoid", x, lambda v: _sigmoid(xp, v))


def _softplus(xp: Any, x: Any) -> Any:
    return ramp(xp, x) + xp.log1p(xp.exp(downhill(xp, x)))


@composite(
    reference=lambda np, x, beta=1.0: np.logaddexp(x * beta, 0) / beta,
    samples=lambda draw: [*FAR(draw), ((draw.array((5,), -9, 9),), {"beta": 0.5})],
)
def softplus(xp: Any, x: Any, /, beta: Any = 1.0) -> Any:
    """log(1 + exp(beta * x)) / beta, accurate where it is near 0 and without overflow."""
    return _smooth(xp, "softplus", x, lambda v: _softplus(xp, v) if beta == 1 else _softplus(xp, v * beta) / beta)


@composite(reference=lambda np, x: -np.logaddexp(-x, 0), samples=FAR)
def log_sigmoid(xp: Any, x: Any, /) -> Any:
    """The logarithm of sigmoid(x), without overflow."""
    return _smooth(xp, "log_sigmoid", x, lambda v: -_softplus(xp, -v))


@composite(reference=lambda np, x: x / (1 + np.exp(-x)), samples=FAR)
def silu(xp: Any, x: Any, /) -> Any:
    """x * sigmoid(x), also called swish."""
    return _smooth(xp, "silu", x, lambda v: v * _sigmoid(xp, v))


@composite(reference=lambda np, x: x * np.tanh(np.logaddexp(x, 0)), samples=FAR)
def mish(xp: Any, x: Any, /) -> Any:
    """x * tanh(softplus(x))."""
    return _smooth(xp, "mish", x, lambda v: v * xp.tanh(_softplus(xp, v)))


def _gelu_reference(np: Any, x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


@composite(
    reference=_gelu_reference,
    samples=lambda draw: [
        (a, {"approximate": how}) for how in ("none", "tanh") for a, _ in draw.elementwise(((-4, 4),))
    ],
)
def gelu(xp: Any, x: Any, /, approximate: Any = "none") -> Any:
    """x times the normal distribution function of x.

    *approximate* is "none", or "tanh" for the formula of Hendrycks and Gimpel.
    """
    if approximate not in ("none", "tanh"):
        raise ShapeError(f"cannot approximate gelu by {approximate!r}: it is 'none' or 'tanh'")
    if approximate == "none":
        return _smooth(xp, "gelu", x, lambda v: v * 0.5 * (xp.erf(v * math.sqrt(0.5)) + 1.0))
    rate = math.sqrt(2 / math.pi)
    return _smooth(xp, "gelu", x, lambda v: v * 0.5 * (xp.tanh(v * (v * v * (0.044715 * rate) + rate)) + 1.0))


@composite(reference=lambda np, x: x / (1 + np.abs(x)), samples=FAR)
def softsign(xp: Any, x: Any, /) -> Any:
    """x / (1 + |x|)."""
    return _smooth(xp, "softsign", x, lambda v: v / (xp.abs(v) + 1.0))


@composite(reference=lambda np, x: np.clip(x + 3, 0, 6) / 6, samples=FAR)
def hard_sigmoid(xp: Any, x: Any, /) -> Any:
    """relu6(x + 3) / 6, a sigmoid of straight lines."""
    return _smooth(xp, "hard_sigmoid", x, lambda v: xp.relu6(v + 3.0) / 6.0)


@composite(reference=lambda np, x: x * np.clip(x + 3, 0, 6) / 6, samples=FAR)
def hard_swish(xp: Any, x: Any, /) -> Any:
    """x * hard_sigmoid(x)."""
    return _smooth(xp, "hard_swish", x, lambda v: v * xp.relu6(v + 3.0) / 6.0)


@composite(
    reference=lambda np, x, low=-1.0, high=1.0: np.clip(x, low, high),
    samples=lambda draw: [*FAR(draw), ((draw.array((5,), -9, 9), -2.0, 3.0), {})],
)
def hardtanh(xp: Any, x: Any, /, min_val: Any = -1.0, max_val: Any = 1.0) -> Any:
    """x limited to [min_val, max_val], with slope 0 at both ends."""
    if min_val >= max_val:
        raise ShapeError(f"cannot limit to [{min_val}, {max_val}]: the first must be less than the second")
    x = floating(xp, "hardtanh", x)
    low = xp.where(xp.less_equal(x, min_val), xp.full_of(min_val, x), x)
    return xp.where(xp.greater_equal(x, max_val), xp.full_of(max_val, x), low)


@composite(reference=lambda np, x, cut=0.5: np.where(np.abs(x) > cut, x, 0), samples=draw_numbers((-2, 2)))
def hardshrink(xp: Any, x: Any, /, lambd: Any = 0.5) -> Any:
    """x where it is farther from 0 than *lambd*, else 0."""
    x = floating(xp, "hardshrink", x)
    return xp.where(xp.less_equal(xp.abs(x), lambd), xp.zeros_like(x), x)


@composite(reference=lambda np, x, cut=0.5: np.sign(x) * np.maximum(np.abs(x) - cut, 0), samples=draw_numbers((-2, 2)))
def softshrink(xp: Any, x: Any, /, lambd: Any = 0.5) -> Any:
    """x moved by *lambd* towards 0, and not beyond."""
    x = floating(xp, "softshrink", x)
    if lambd < 0:
        raise ShapeError(f"cannot shrink by {lambd}: it must not be negative")
    zero = xp.zeros_like(x)
    return xp.where(x > lambd, x - lambd, xp.where(x < -lambd, x + lambd, x * zero))


@composite(
    reference=lambda np, x, threshold, value: np.where(x > threshold, x, value),
    samples=lambda draw: [((draw.array((3, 4), -2, 2), 0.5, -3.0), {})],
)
def threshold(xp: Any, x: Any, threshold: Any, value: Any, /) -> Any:
    """x where it is greater than *threshold*, else *value*."""
    x = floating(xp, "threshold", x)
    return xp.where(xp.less_equal(x, threshold), xp.full_of(value, x), x)


def _prelu_reference(np: Any, x: Any, weight: Any) -> Any:
    view = np.reshape(weight, (-1,) + (1,) * max(0, x.ndim - 2))
    return np.where(x > 0, x, x * view)


@composite(
    reference=_prelu_reference,
    samples=lambda draw: [
        ((draw.array((2, 3, 4), -2, 2), draw.array((3,), 0.1, 0.5)), {}),
        ((draw.array((2, 3), -2, 2), draw.array((3,), 0.1, 0.5)), {}),
        ((draw.array((5,), -2, 2), draw.array((1,), 0.1, 0.5)), {}),
    ],
)
def prelu(xp: Any, x: Any, weight: Any, /) -> Any:
    """x where it is positive, else weight * x; the weight has one value, or one for each channel of [N, C, ...]."""
    x = floating(xp, "prelu", x)
    count = shapes.size(weight.shape)
    if weight.ndim > 1 or (count != 1 and (x.ndim < 2 or x.shape[1] != count)):
        raise ShapeError(
            f"cannot apply prelu to shape {list(x.shape)} with weights {list(weight.shape)}: there is one weight, or "
            "one for each channel, axis 1"
        )
    along = xp.reshape(weight, (count,) + (1,) * (x.ndim - 2) if count != 1 else ())
    return xp.where(x > 0, x, x * cast(xp, along, x.dtype))


@composite(reference=lambda np, x: x - np.tanh(x), samples=draw_numbers((-4, 4)))
def tanh_shrink(xp: Any, x: Any, /) -> Any:
    """x - tanh(x)."""
    return _smooth(xp, "tanh_shrink", x, lambda v: v - xp.tanh(v))


def _glu_reference(np: Any, x: Any, axis: int = -1) -> Any:
    a, b = np.split(x, 2, axis)
    return a / (1 + np.exp(-b))


@composite(
    reference=_glu_reference,
    samples=lambda draw: [((draw.array((3, 4), -2, 2),), {}), ((draw.array((2, 4, 3), -2, 2),), {"axis": 1})],
)
def glu(xp: Any, x: Any, /, axis: Any = -1) -> Any:
    """The first half of x along an axis, times the sigmoid of the second."""
    k = axis % x.ndim if x.ndim and -x.ndim <= axis < x.ndim else -1
    if k < 0 or x.shape[k] % 2:
        raise ShapeError(f"cannot halve shape {list(x.shape)} along axis {axis}: it needs such an axis, of even size")
    half = x.shape[k] // 2
    return part(xp, x, k, 0, half) * xp.sigmoid(part(xp, x, k, half, half))


@composite(reference=lambda np, a, b: a / (1 + np.exp(-a)) * b, samples=draw_numbers((-4, 4), (-2, 2)))
def swiglu(xp: Any, gate: Any, x: Any, /) -> Any:
    """silu(gate) * x."""
    return xp.silu(gate) * x
