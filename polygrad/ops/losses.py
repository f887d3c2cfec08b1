"""Losses: how far predictions are from what is wanted.

Here: cross_entropy and nll_loss over labels, and the elementwise ones; each with reduction "mean", "sum" or "none".
Not here: optimisers, layers.
"""

import math
from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.activations import _downhill, _ramp
from polygrad.ops.indexing import checked_label
from polygrad.ops.internal import cast, places
from polygrad.ops.neural import below_top
from polygrad.ops.statistics import floating, wide
from polygrad.ops.table import composite

REDUCTIONS = ("mean", "sum", "none")


def _check_reduction(reduction: Any, allowed: tuple[str, ...] = REDUCTIONS) -> None:
    if reduction not in allowed:
        raise ShapeError(f"cannot reduce a loss by {reduction!r}: it is one of {', '.join(map(repr, allowed))}")


def _reduced(xp: Any, loss: Any, reduction: str, dtype: Any) -> Any:
    if reduction == "none":
        return cast(xp, loss, dtype)
    return cast(xp, xp.mean(loss) if reduction == "mean" else xp.sum(loss), dtype)


def _class_axis(name: str, scores: Any, labels: Any) -> int:
    """Return the axis of classes: the only one, else axis 1; check the labels' shape."""
    if scores.ndim == 0:
        raise ShapeError(f"cannot take {name} of a scalar: scores have an axis of classes")
    k = 0 if scores.ndim == 1 else 1
    wanted = scores.shape[:k] + scores.shape[k + 1 :]
    if labels.shape != wanted:
        raise ShapeError(
            f"cannot take {name} of scores {list(scores.shape)} with labels {list(labels.shape)}: classes lie along "
            f"axis {k}, "
            f"so labels must have shape {list(wanted)}"
        )
    return k


def _kept(xp: Any, labels: Any, ignore_index: Any) -> tuple[Any, Any]:
    """Return which labels count (None: all), and labels in which the others are 0."""
    if ignore_index is None:
        return None, labels
    labels = cast(xp, labels, dtypes.int64)
    kept = xp.not_equal(labels, int(ignore_index))
    return kept, xp.where(kept, labels, xp.zeros_like(labels))


def _pick(xp: Any, values: Any, labels: Any, k: int) -> Any:
    """Return the value at each label, keeping axis k as size 1. Labels outside are reported by the device.

    A sum over a selection, not a gather: it fuses with the other reductions, and its gradient is a selection instead of
    a scatter.
    """
    n = values.shape[k]
    wide_labels = xp.expand_dims(checked_label(xp, labels, n), k)
    hit = xp.equal(wide_labels, places(xp, n, k, values.ndim))
    return xp.sum_(xp.where(hit, values, xp.zeros_like(values)), (k,))


def _over_labels(xp: Any, loss: Any, kept: Any, reduction: str, k: int, dtype: Any) -> Any:
    """Drop axis k of losses, silence those of ignored labels, and reduce; the mean counts the kept ones."""
    loss = xp.reshape(loss, loss.shape[:k] + loss.shape[k + 1 :])
    if kept is None:
        return _reduced(xp, loss, reduction, dtype)
    loss = xp.where(kept, loss, xp.zeros_like(loss))
    if reduction != "mean":
        return _reduced(xp, loss, reduction, dtype)
    return cast(xp, xp.sum(loss) / cast(xp, xp.sum(kept), loss.dtype), dtype)


def _classes_reference(np: Any, logp: Any, labels: Any, reduction: str, ignore: Any, smoothing: float) -> Any:
    k = 0 if logp.ndim == 1 else 1
    kept = np.ones(labels.shape, bool) if ignore is None else labels != ignore
    safe = np.where(kept, labels, 0)
    picked = np.take_along_axis(logp, np.expand_dims(safe, k), k).squeeze(k)
    loss = np.where(kept, -(1 - smoothing) * picked - smoothing * np.mean(logp, axis=k), 0)
    return {"none": lambda: loss, "sum": lambda: np.sum(loss), "mean": lambda: np.sum(loss) / np.sum(kept)}[reduction]()


def _cross_entropy_reference(
    np: Any, x: Any, labels: Any, reduction: str = "mean", ignore_index: Any = None, label_smoothing: float = 0.0
) -> Any:
    k = 0 if x.ndim == 1 else 1
    logp = x - np.log(np.sum(np.exp(x), axis=k, keepdims=True))
    if labels.dtype.kind == "f":
        n = x.shape[k]
        soft = labels * (1 - label_smoothing) + label_smoothing / n
        loss = -np.sum(soft * logp, axis=k)
        return {"none": lambda: loss, "sum": lambda: np.sum(loss), "mean": lambda: np.mean(loss)}[reduction]()
    return _classes_reference(np, logp, labels, reduction, ignore_index, label_smoothing)


def _label_samples(*keywords: dict[str, Any]) -> Any:
    def samples(draw: Any) -> Any:
        out: list[Any] = []
        for shape in ((4,), (3, 4), (2, 4, 3)):
            k = 0 if len(shape) == 1 else 1
            labels = draw.ints(shape[:k] + shape[k + 1 :], 0, 3)
            out += [((draw.array(shape, -4, 4), labels), {"reduction": how}) for how in REDUCTIONS]
        out += [((draw.array((5, 4), -4, 4), draw.ints((5,), 0, 3)), more) for more in keywords]
        return out

    return samples


def _soft_samples(draw: Any) -> Any:
    hard = _label_samples({"ignore_index": 1}, {"label_smoothing": 0.1}, {"ignore_index": 2, "reduction": "none"})(draw)
    return [*hard, ((draw.array((3, 4), -2, 2), draw.array((3, 4), 0, 1)), {"label_smoothing": 0.2})]


@composite(reference=_cross_entropy_reference, samples=_soft_samples, tolerance=2.0)  # the sum of many terms
def cross_entropy(
    xp: Any, logits: Any, labels: Any, /, reduction: Any = "mean", ignore_index: Any = None, label_smoothing: Any = 0.0
) -> Any:
    """log(sum(exp(logits))) less the logit of the label, over the axis of classes: axis 1, or the only one.

    Integer labels are positions; float labels of the logits' shape are probabilities. The mean counts labels other than
    *ignore_index*.
    """
    _check_reduction(reduction)
    x = floating(xp, "cross_entropy", logits)
    soft = dtypes.KINDS[labels.dtype] == "float"
    if soft and labels.shape != x.shape:
        raise ShapeError(
            f"cannot take cross_entropy of logits {list(x.shape)} with probabilities {list(labels.shape)}: shapes "
            "must be equal"
        )
    if dtypes.KINDS[labels.dtype] == "bool":
        raise DTypeError(
            "cannot take cross_entropy with bool labels: labels are ints, or probabilities; cast with .astype(...)"
        )
    k = (0 if x.ndim == 1 else 1) if soft else _class_axis("cross_entropy", x, labels)
    if 0 in x.shape:
        return _nothing(xp, x, k, reduction)
    z = below_top(xp, wide(xp, x), (k,))
    total = xp.log(xp.sum_(xp.exp(z), (k,)))
    if soft:
        shares = labels if label_smoothing == 0 else labels * (1.0 - label_smoothing) + label_smoothing / x.shape[k]
        return _over_labels(xp, xp.sum_(shares * (total - z), (k,)), None, reduction, k, x.dtype)
    kept, safe = _kept(xp, labels, ignore_index)
    loss = total - _pick(xp, z, safe, k)
    if label_smoothing:
        loss = loss * (1.0 - label_smoothing) + (total - xp.mean(z, axis=k, keepdims=True)) * label_smoothing
    return _over_labels(xp, loss, kept, reduction, k, x.dtype)


def _nothing(xp: Any, x: Any, k: int, reduction: str) -> Any:
    """Return the loss of no rows: NaN as their mean, 0 as their sum."""
    if x.shape[k] == 0 and shapes.size(x.shape[:k] + x.shape[k + 1 :]):
        raise ShapeError(f"cannot take a loss over shape {list(x.shape)}: axis {k} has no classes")
    loss = xp.zeros(x.shape[:k] + x.shape[k + 1 :], dtype=x.dtype)
    return _reduced(xp, loss, reduction, x.dtype)


@composite(
    reference=lambda np, x, labels, reduction="mean", ignore_index=None: _classes_reference(
        np, x, labels, reduction, ignore_index, 0.0
    ),
    samples=_label_samples({"ignore_index": 0}),
)
def nll_loss(xp: Any, log_probabilities: Any, labels: Any, /, reduction: Any = "mean", ignore_index: Any = None) -> Any:
    """Less the log probability of the label; `cross_entropy` for scores that are normalised already."""
    _check_reduction(reduction)
    x = floating(xp, "nll_loss", log_probabilities)
    k = _class_axis("nll_loss", x, labels)
    if 0 in x.shape:
        return _nothing(xp, x, k, reduction)
    kept, safe = _kept(xp, labels, ignore_index)
    return _over_labels(xp, -_pick(xp, wide(xp, x), safe, k), kept, reduction, k, x.dtype)


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
    _check_reduction(reduction)
    a, b, dtype = _both(xp, "mse_loss", x, target)
    return _reduced(xp, xp.square(a - b), reduction, dtype)


@composite(reference=_reference(lambda np, x, y: np.abs(x - y)), samples=_loss_samples((-2, 2), (-2, 2)))
def l1_loss(xp: Any, x: Any, target: Any, /, reduction: Any = "mean") -> Any:
    """The absolute difference."""
    _check_reduction(reduction)
    a, b, dtype = _both(xp, "l1_loss", x, target)
    return _reduced(xp, xp.abs(a - b), reduction, dtype)


def _huber_formula(np: Any, x: Any, y: Any, delta: float = 1.0) -> Any:
    d = np.abs(x - y)
    return np.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))


@composite(reference=_reference(_huber_formula), samples=_loss_samples((-2, 2), (-2, 2), delta=0.5))
def huber_loss(xp: Any, x: Any, target: Any, /, reduction: Any = "mean", delta: Any = 1.0) -> Any:
    """Half the squared difference up to *delta*, a straight line beyond it."""
    _check_reduction(reduction)
    a, b, dtype = _both(xp, "huber_loss", x, target)
    d = a - b
    far = xp.abs(d)
    return _reduced(xp, xp.where(far <= delta, d * d * 0.5, (far - 0.5 * delta) * delta), reduction, dtype)


def _binary_formula(np: Any, x: Any, y: Any) -> Any:
    return np.logaddexp(x, 0) - x * y


@composite(reference=_reference(_binary_formula), samples=_loss_samples((-9, 9), (0, 1)), tolerance=2.0)
def binary_cross_entropy_with_logits(xp: Any, logits: Any, target: Any, /, reduction: Any = "mean") -> Any:
    """log(1 + exp(logits)) - logits * target, for targets in [0, 1], without overflow or cancellation."""
    _check_reduction(reduction)
    x, y, dtype = _both(xp, "binary_cross_entropy_with_logits", logits, target)
    loss = (_ramp(xp, x) - x * y) + xp.log1p(xp.exp(_downhill(xp, x)))
    return _reduced(xp, loss, reduction, dtype)


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
    _check_reduction(reduction, (*REDUCTIONS, "batchmean"))
    x, y, dtype = _both(xp, "kl_div", log_probabilities, target)
    if log_target:
        loss = xp.exp(y) * (y - x)
    else:
        some = y > 0
        loss = xp.where(some, y * (xp.log(xp.where(some, y, xp.ones_like(y))) - x), xp.zeros_like(y))
    if reduction == "batchmean":
        return cast(xp, xp.sum(loss) / (float(loss.shape[0]) if loss.ndim and loss.shape[0] else math.nan), dtype)
    return _reduced(xp, loss, reduction, dtype)
