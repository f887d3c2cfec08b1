"""Losses between arrays of one shape.

Here: mse, l1, huber, smooth_l1, binary cross-entropies, kl_div, the losses of probabilistic regressions, and those of
margins; each with reduction "mean", "sum" or "none".
Not here: losses over labels (`losses.py`), optimisers, layers.
"""

import math
from typing import Any

from polygrad import dtypes
from polygrad.errors import ShapeError
from polygrad.ops.activations import downhill, ramp
from polygrad.ops.internal import cast
from polygrad.ops.losses import REDUCTIONS, check_reduction, reduced
from polygrad.ops.statistics import floating, wide
from polygrad.ops.table import composite


def _both(xp: Any, name: str, x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Return two float operands of one shape, wide, and the dtype of the result."""
    x, y = floating(xp, name, x), floating(xp, name, y)
    if x.shape != y.shape:
        raise ShapeError(
            f"cannot take {name} of shapes {list(x.shape)} and {list(y.shape)}: they must be equal, as a loss does "
            "not broadcast"
        )
    return wide(xp, x), wide(xp, y), dtypes.promote(x.dtype, y.dtype)


def _reference(formula: Any) -> Any:
    """Return a reference with a reduction from one without."""

    def reference(np: Any, x: Any, y: Any, reduction: str = "mean", **more: Any) -> Any:
        loss = formula(np, x, y, **more)
        return {"none": lambda: loss, "sum": lambda: np.sum(loss), "mean": lambda: np.mean(loss)}[reduction]()

    return reference


def _loss_samples(x: tuple[float, float], y: tuple[float, float], **more: Any) -> Any:
    def samples(draw: Any) -> Any:
        out = [((draw.array((3, 4), *x), draw.array((3, 4), *y)), {"reduction": how}) for how in REDUCTIONS]
        return [*out, ((draw.array((5,), *x), draw.array((5,), *y)), more)]

    return samples


@composite(reference=_reference(lambda np, x, y: (x - y) ** 2), samples=_loss_samples((-2, 2), (-2, 2)), tolerance=2.0)
def mse_loss(xp: Any, x: Any, target: Any, /, reduction: Any = "mean") -> Any:
    """The squared difference."""
    check_reduction(reduction)
    a, b, dtype = _both(xp, "mse_loss", x, target)
    return reduced(xp, xp.square(a - b), reduction, dtype)


@composite(reference=_reference(lambda np, x, y: np.abs(x - y)), samples=_loss_samples((-2, 2), (-2, 2)))
def l1_loss(xp: Any, x: Any, target: Any, /, reduction: Any = "mean") -> Any:
    """The absolute difference."""
    check_reduction(reduction)
    a, b, dtype = _both(xp, "l1_loss", x, target)
    return reduced(xp, xp.abs(a - b), reduction, dtype)


def _huber_formula(np: Any, x: Any, y: Any, delta: float = 1.0) -> Any:
    d = np.abs(x - y)
    return np.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))


@composite(reference=_reference(_huber_formula), samples=_loss_samples((-2, 2), (-2, 2), delta=0.5))
def huber_loss(xp: Any, x: Any, target: Any, /, reduction: Any = "mean", delta: Any = 1.0) -> Any:
    """Half the squared difference up to *delta*, a straight line beyond it."""
    check_reduction(reduction)
    a, b, dtype = _both(xp, "huber_loss", x, target)
    d = a - b
    far = xp.abs(d)
    return reduced(xp, xp.where(far <= delta, d * d * 0.5, (far - 0.5 * delta) * delta), reduction, dtype)


def _smooth_formula(np: Any, x: Any, y: Any, beta: float = 1.0) -> Any:
    return _huber_formula(np, x, y, beta) / beta if beta else np.abs(x - y)


@composite(
    reference=_reference(_smooth_formula),
    samples=lambda draw: [
        *_loss_samples((-2, 2), (-2, 2), beta=0.5)(draw),
        ((draw.array((5,), -2, 2), draw.array((5,), -2, 2)), {"beta": 0.0}),
    ],
)
def smooth_l1_loss(xp: Any, x: Any, target: Any, /, reduction: Any = "mean", beta: Any = 1.0) -> Any:
    """`huber_loss` over *beta*: the absolute difference, rounded off near 0."""
    check_reduction(reduction)
    if beta < 0:
        raise ShapeError(f"cannot round off smooth_l1_loss by {beta}: beta must not be negative")
    a, b, dtype = _both(xp, "smooth_l1_loss", x, target)
    d = a - b
    far = xp.abs(d)
    loss = xp.where(far < beta, d * d * (0.5 / beta), far - 0.5 * beta) if beta else far
    return reduced(xp, loss, reduction, dtype)


def _weighted(xp: Any, name: str, loss: Any, weight: Any) -> Any:
    """Return losses times a weight that broadcasts to them; None is 1."""
    if weight is None:
        return loss
    _check_broadcast(name, "weight", weight, loss.shape)
    return loss * weight


def _check_broadcast(name: str, what: str, weight: Any, shape: Any) -> None:
    fits = weight.ndim <= len(shape) and all(m in (1, n) for m, n in zip(weight.shape[::-1], shape[::-1], strict=False))
    if not fits:
        raise ShapeError(
            f"cannot apply {name} with {what} of shape {list(weight.shape)}: it must broadcast to {list(shape)}"
        )


def _logits_formula(np: Any, x: Any, y: Any, weight: Any = None, pos_weight: Any = None) -> Any:
    pos = 1 if pos_weight is None else pos_weight
    return (pos * y * np.logaddexp(-x, 0) + (1 - y) * np.logaddexp(x, 0)) * (1 if weight is None else weight)


def _with_weights(formula: Any) -> Any:
    """Return a reference whose operands after the first two are weights."""

    def reference(np: Any, x: Any, y: Any, *weights: Any, reduction: str = "mean") -> Any:
        return _reference(lambda np, x, y: formula(np, x, y, *weights))(np, x, y, reduction)

    return reference


def _weight_samples(low: float, high: float, count: int) -> Any:
    def samples(draw: Any) -> Any:
        x, y = draw.array((3, 4), low, high), draw.array((3, 4), 0, 1)
        weights = (draw.array((3, 1), 0.5, 2), draw.array((4,), 0.5, 2))[:count]
        return [
            *(((x, y), {"reduction": how}) for how in REDUCTIONS),
            ((x, y, *weights), {}),
            ((x, y, *weights), {"reduction": "sum"}),
        ]

    return samples


@composite(reference=_with_weights(_logits_formula), samples=_weight_samples(-9, 9, 2), tolerance=2.0)
def binary_cross_entropy_with_logits(
    xp: Any, logits: Any, target: Any, /, weight: Any = None, pos_weight: Any = None, *, reduction: Any = "mean"
) -> Any:
    """log(1 + exp(logits)) - logits * target, for targets in [0, 1], without overflow or cancellation.

    *weight* multiplies losses, *pos_weight* the part of the targets; both broadcast. The mean counts elements.
    """
    name = "binary_cross_entropy_with_logits"
    check_reduction(reduction)
    x, y, dtype = _both(xp, name, logits, target)
    small = xp.log1p(xp.exp(downhill(xp, x)))
    if pos_weight is None:
        loss = (ramp(xp, x) - x * y) + small
    else:
        _check_broadcast(name, "pos_weight", pos_weight, x.shape)
        loss = (1.0 - y) * x + (y * (pos_weight - 1.0) + 1.0) * (small + (ramp(xp, x) - x))
    return reduced(xp, _weighted(xp, name, loss, weight), reduction, dtype)


_LEAST_LOG = -100.0  # as PyTorch's: the loss of a certain mistake is finite


def _binary_formula(np: Any, p: Any, y: Any, weight: Any = None) -> Any:
    with np.errstate(divide="ignore"):
        one, two = np.maximum(np.log(p), _LEAST_LOG), np.maximum(np.log1p(-p), _LEAST_LOG)
    return -(y * one + (1 - y) * two) * (1 if weight is None else weight)


def _bounded_log(xp: Any, p: Any) -> Any:
    """Return max(log(p), -100), with slope 0 where p is 0."""
    none = xp.equal(p, 0.0)
    return xp.where(none, xp.full_of(_LEAST_LOG, p), xp.maximum(xp.log(xp.where(none, xp.ones_like(p), p)), _LEAST_LOG))


@composite(reference=_with_weights(_binary_formula), samples=_weight_samples(0.1, 0.9, 1), tolerance=2.0)
def binary_cross_entropy(
    xp: Any, probabilities: Any, target: Any, /, weight: Any = None, *, reduction: Any = "mean"
) -> Any:
    """-target * log(p) - (1 - target) * log(1 - p), each logarithm at least -100; NaN for p outside of [0, 1].

    `binary_cross_entropy_with_logits` is more accurate where p comes from a sigmoid.
    """
    check_reduction(reduction)
    p, y, dtype = _both(xp, "binary_cross_entropy", probabilities, target)
    loss = -(y * _bounded_log(xp, p) + (1.0 - y) * _bounded_log(xp, 1.0 - p))
    return reduced(xp, _weighted(xp, "binary_cross_entropy", loss, weight), reduction, dtype)


def _kl_reference(np: Any, x: Any, y: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    loss = np.exp(y) * (y - x) if log_target else np.where(y > 0, y * (np.log(np.where(y > 0, y, 1)) - x), 0)
    by_count = {"mean": loss.size, "sum": 1, "batchmean": loss.shape[0]}
    return loss if reduction == "none" else np.sum(loss) / by_count[reduction]


def _kl_samples(draw: Any) -> Any:
    more = [((draw.array((3, 4), -2, 0), draw.array((3, 4), -2, 0)), {"log_target": True, "reduction": "batchmean"})]
    return _loss_samples((-3, 0), (0, 1))(draw) + more


@composite(reference=_kl_reference, samples=_kl_samples, tolerance=2.0)
def kl_div(xp: Any, log_probabilities: Any, target: Any, /, reduction: Any = "mean", log_target: Any = False) -> Any:
    """target * (log(target) - log_probabilities), 0 where target is 0.

    "batchmean" divides the sum by the first axis.
    """
    check_reduction(reduction, (*REDUCTIONS, "batchmean"))
    x, y, dtype = _both(xp, "kl_div", log_probabilities, target)
    if log_target:
        loss = xp.exp(y) * (y - x)
    else:
        some = y > 0
        loss = xp.where(some, y * (xp.log(xp.where(some, y, xp.ones_like(y))) - x), xp.zeros_like(y))
    if reduction == "batchmean":
        return cast(xp, xp.sum(loss) / (float(loss.shape[0]) if loss.ndim and loss.shape[0] else math.nan), dtype)
    return reduced(xp, loss, reduction, dtype)


def _gaussian_reference(
    np: Any, x: Any, y: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    wide_var = np.maximum(var, eps)
    loss = 0.5 * (np.log(wide_var) + (x - y) ** 2 / wide_var) + (0.5 * math.log(2 * math.pi) if full else 0)
    return _reference(lambda np, x, y: loss)(np, x, y, reduction)


@composite(
    reference=_gaussian_reference,
    samples=lambda draw: [
        ((draw.array((3, 4), -2, 2), draw.array((3, 4), -2, 2), draw.array((3, 4), 0.3, 2)), more)
        for more in ({}, {"full": True, "reduction": "none"}, {"eps": 0.5, "reduction": "sum"})
    ],
    tolerance=2.0,
)
def gaussian_nll_loss(
    xp: Any, x: Any, target: Any, var: Any, /, full: Any = False, eps: Any = 1e-6, reduction: Any = "mean"
) -> Any:
    """Half of log(var) + (x - target)**2 / var, with *var* at least *eps*; with *full* plus log(2 pi) / 2."""
    check_reduction(reduction)
    a, b, dtype = _both(xp, "gaussian_nll_loss", x, target)
    _check_broadcast("gaussian_nll_loss", "var", var, a.shape)
    v = xp.maximum(wide(xp, floating(xp, "gaussian_nll_loss", var)), eps)
    loss = (xp.log(v) + xp.square(a - b) / v) * 0.5
    return reduced(xp, loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction, dtype)


def _poisson_formula(np: Any, x: Any, y: Any, log_input: bool = True, eps: float = 1e-8) -> Any:
    return np.exp(x) - y * x if log_input else x - y * np.log(x + eps)


@composite(
    reference=_reference(_poisson_formula), samples=_loss_samples((0.2, 2), (0, 3), log_input=False), tolerance=2.0
)
def poisson_nll_loss(
    xp: Any, x: Any, target: Any, /, log_input: Any = True, eps: Any = 1e-8, reduction: Any = "mean"
) -> Any:
    """exp(x) - target * x; without *log_input* x - target * log(x + eps)."""
    check_reduction(reduction)
    a, b, dtype = _both(xp, "poisson_nll_loss", x, target)
    loss = xp.exp(a) - b * a if log_input else a - b * xp.log(a + eps)
    return reduced(xp, loss, reduction, dtype)
