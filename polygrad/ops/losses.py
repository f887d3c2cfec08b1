"""Losses over classes: how far scores are from labels.

Here: cross_entropy and nll_loss; each with reduction "mean", "sum" or "none".
Not here: losses between arrays of one shape (`losses_elementwise.py`), optimisers, layers.
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.indexing import checked_label
from polygrad.ops.internal import cast, places
from polygrad.ops.neural import below_top
from polygrad.ops.statistics import floating, wide
from polygrad.ops.table import composite

REDUCTIONS = ("mean", "sum", "none")


def check_reduction(reduction: Any, allowed: tuple[str, ...] = REDUCTIONS) -> None:
    """Raise ShapeError if *reduction* is not allowed."""
    if reduction not in allowed:
        raise ShapeError(f"cannot reduce a loss by {reduction!r}: it is one of {', '.join(map(repr, allowed))}")


def reduced(xp: Any, loss: Any, reduction: str, dtype: Any) -> Any:
    """Return losses as their mean, as their sum or as they are, in *dtype*."""
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


def _over_labels(xp: Any, loss: Any, kept: Any, reduction: str, k: int, dtype: Any, weights: Any = None) -> Any:
    """Drop axis k of losses, silence those of ignored labels, and reduce.

    The mean counts the kept ones, or is divided by the sum of their *weights*, which have axis k too.
    """
    loss = xp.reshape(loss, loss.shape[:k] + loss.shape[k + 1 :])
    if kept is None and weights is None:
        return reduced(xp, loss, reduction, dtype)
    loss = loss if kept is None else xp.where(kept, loss, xp.zeros_like(loss))
    if reduction != "mean":
        return reduced(xp, loss, reduction, dtype)
    if weights is None:
        return cast(xp, xp.sum(loss) / cast(xp, xp.sum(kept), loss.dtype), dtype)
    shares = xp.reshape(weights, loss.shape)
    shares = shares if kept is None else xp.where(kept, shares, xp.zeros_like(shares))
    return cast(xp, xp.sum(loss) / xp.sum(shares), dtype)


def _class_weights(xp: Any, name: str, weight: Any, x: Any, k: int) -> Any:
    """Return a weight for each class, in x's wide dtype and shaped to lie along axis k; None stays."""
    if weight is None:
        return None
    if weight.shape != (x.shape[k],):
        raise ShapeError(
            f"cannot weigh the classes of {name} with shape {list(weight.shape)}: there must be one weight for each of "
            f"the {x.shape[k]} classes"
        )
    values = wide(xp, floating(xp, name, weight))
    return xp.reshape(cast(xp, values, wide(xp, x).dtype), (x.shape[k],) + (1,) * (x.ndim - 1 - k))


def _classes_reference(
    np: Any, logp: Any, labels: Any, weight: Any, reduction: str, ignore: Any, smoothing: float
) -> Any:
    k = 0 if logp.ndim == 1 else 1
    weight = np.ones(logp.shape[k]) if weight is None else weight
    along = np.reshape(weight, (-1,) + (1,) * (logp.ndim - 1 - k))
    kept = np.ones(labels.shape, bool) if ignore is None else labels != ignore
    safe = np.where(kept, labels, 0)
    picked = np.take_along_axis(logp * along, np.expand_dims(safe, k), k).squeeze(k)
    loss = np.where(kept, -(1 - smoothing) * picked - smoothing * np.mean(logp * along, axis=k), 0)
    total = np.sum(np.where(kept, weight[safe], 0))
    return {"none": lambda: loss, "sum": lambda: np.sum(loss), "mean": lambda: np.sum(loss) / total}[reduction]()


def _cross_entropy_reference(
    np: Any,
    x: Any,
    labels: Any,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: Any = None,
    label_smoothing: float = 0.0,
) -> Any:
    k = 0 if x.ndim == 1 else 1
    logp = x - np.log(np.sum(np.exp(x), axis=k, keepdims=True))
    if labels.dtype.kind == "f":
        n = x.shape[k]
        along = 1 if weight is None else np.reshape(weight, (-1,) + (1,) * (x.ndim - 1 - k))
        soft = labels * (1 - label_smoothing) + label_smoothing / n
        loss = -np.sum(soft * logp * along, axis=k)
        return {"none": lambda: loss, "sum": lambda: np.sum(loss), "mean": lambda: np.mean(loss)}[reduction]()
    return _classes_reference(np, logp, labels, weight, reduction, ignore_index, label_smoothing)


def _label_samples(*keywords: dict[str, Any]) -> Any:
    def samples(draw: Any) -> Any:
        out: list[Any] = []
        for shape in ((4,), (3, 4), (2, 4, 3)):
            k = 0 if len(shape) == 1 else 1
            labels = draw.ints(shape[:k] + shape[k + 1 :], 0, 3)
            out += [((draw.array(shape, -4, 4), labels), {"reduction": how}) for how in REDUCTIONS]
        out += [((draw.array((5, 4), -4, 4), draw.ints((5,), 0, 3)), more) for more in keywords]
        weighted = draw.array((2, 4, 3), -4, 4), draw.ints((2, 3), 0, 3), draw.array((4,), 0.5, 2)
        return [*out, *((weighted, {"reduction": how, "ignore_index": 1}) for how in REDUCTIONS)]

    return samples


def _soft_samples(draw: Any) -> Any:
    hard = _label_samples({"ignore_index": 1}, {"label_smoothing": 0.1}, {"ignore_index": 2, "reduction": "none"})(draw)
    soft = draw.array((3, 4), -2, 2), draw.array((3, 4), 0, 1)
    weights = draw.array((4,), 0.5, 2)
    smooth = (draw.array((5, 4), -2, 2), draw.ints((5,), 0, 3), weights), {"label_smoothing": 0.3, "ignore_index": 2}
    return [*hard, (soft, {"label_smoothing": 0.2}), ((*soft, weights), {"label_smoothing": 0.2}), smooth]


@composite(reference=_cross_entropy_reference, samples=_soft_samples, tolerance=2.0)  # the sum of many terms
def cross_entropy(
    xp: Any,
    logits: Any,
    labels: Any,
    /,
    weight: Any = None,
    *,
    reduction: Any = "mean",
    ignore_index: Any = None,
    label_smoothing: Any = 0.0,
) -> Any:
    """log(sum(exp(logits))) less the logit of the label, over the axis of classes: axis 1, or the only one.

    Integer labels are positions; float labels of the logits' shape are probabilities. *weight* has one value for each
    class. The mean is over labels other than *ignore_index*, and weighted by their classes' weights.
    """
    check_reduction(reduction)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ShapeError(f"cannot smooth labels by {label_smoothing}: it must be in [0, 1]")
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
    weights = _class_weights(xp, "cross_entropy", weight, x, k)
    if 0 in x.shape:
        return _nothing(xp, x, k, reduction)
    z = below_top(xp, wide(xp, x), (k,))
    total = xp.log(xp.sum_(xp.exp(z), (k,)))
    if soft:
        shares = labels if label_smoothing == 0 else labels * (1.0 - label_smoothing) + label_smoothing / x.shape[k]
        shares = shares if weights is None else shares * weights
        return _over_labels(xp, xp.sum_(shares * (total - z), (k,)), None, reduction, k, x.dtype)
    kept, safe = _kept(xp, labels, ignore_index)
    loss = total - _pick(xp, z, safe, k)
    own = None
    if weights is not None:
        own = _pick(xp, xp.broadcast_to(weights, z.shape), safe, k)
        loss = loss * own
    if label_smoothing:
        rest = total - z if weights is None else (total - z) * weights
        loss = loss * (1.0 - label_smoothing) + xp.mean(rest, axis=k, keepdims=True) * label_smoothing
    return _over_labels(xp, loss, kept, reduction, k, x.dtype, own)


def _nothing(xp: Any, x: Any, k: int, reduction: str) -> Any:
    """Return the loss of no rows: NaN as their mean, 0 as their sum."""
    if x.shape[k] == 0 and shapes.size(x.shape[:k] + x.shape[k + 1 :]):
        raise ShapeError(f"cannot take a loss over shape {list(x.shape)}: axis {k} has no classes")
    loss = xp.zeros(x.shape[:k] + x.shape[k + 1 :], dtype=x.dtype)
    return reduced(xp, loss, reduction, x.dtype)


def _nll_reference(
    np: Any, x: Any, labels: Any, weight: Any = None, reduction: str = "mean", ignore_index: Any = None
) -> Any:
    return _classes_reference(np, x, labels, weight, reduction, ignore_index, 0.0)


@composite(reference=_nll_reference, samples=_label_samples({"ignore_index": 0}))
def nll_loss(
    xp: Any,
    log_probabilities: Any,
    labels: Any,
    /,
    weight: Any = None,
    *,
    reduction: Any = "mean",
    ignore_index: Any = None,
) -> Any:
    """Less the log probability of the label; `cross_entropy` for scores that are normalised already."""
    check_reduction(reduction)
    x = floating(xp, "nll_loss", log_probabilities)
    k = _class_axis("nll_loss", x, labels)
    weights = _class_weights(xp, "nll_loss", weight, x, k)
    if 0 in x.shape:
        return _nothing(xp, x, k, reduction)
    kept, safe = _kept(xp, labels, ignore_index)
    loss = -_pick(xp, wide(xp, x), safe, k)
    own = None
    if weights is not None:
        own = _pick(xp, xp.broadcast_to(weights, x.shape), safe, k)
        loss = loss * own
    return _over_labels(xp, loss, kept, reduction, k, x.dtype, own)
