"""Losses of distances and margins, and the distances themselves.

Here: normalize, cosine_similarity, pairwise_distance; hinge, ranking, cosine and triplet losses, each with reduction
"mean", "sum" or "none".
Not here: norms (`linalg_norms.py`), losses over labels (`losses.py`).
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import ShapeError
from polygrad.ops.activations import downhill, ramp
from polygrad.ops.internal import cast
from polygrad.ops.losses import REDUCTIONS, check_reduction, reduced
from polygrad.ops.statistics import floating, wide
from polygrad.ops.table import composite


def _norm(xp: Any, x: Any, p: float, axis: Any, keepdims: bool) -> Any:
    """Return the p-norm along an axis, with slope 0 at 0."""
    if p == 1:
        return xp.sum(xp.abs(x), axis=axis, keepdims=keepdims)
    total = xp.sum(x * x if p == 2 else xp.pow(xp.abs(x), p), axis=axis, keepdims=keepdims)
    none = xp.equal(total, 0.0)
    safe = xp.where(none, xp.ones_like(total), total)
    root = xp.sqrt(safe) if p == 2 else xp.pow(safe, 1.0 / p)
    return xp.where(none, xp.zeros_like(root), root)


def _norm_reference(np: Any, x: Any, p: float, axis: Any, keepdims: bool = False) -> Any:
    return np.sum(np.abs(x) ** p, axis=axis, keepdims=keepdims) ** (1 / p)


@composite(
    reference=lambda np, x, p=2.0, axis=1, eps=1e-12: x / np.maximum(_norm_reference(np, x, p, axis, True), eps),
    samples=lambda draw: [
        ((draw.array((3, 4), 0.2, 2),), {}),
        ((draw.array((3, 4), -2, 2),), {"p": 1.0, "axis": 0}),
        ((draw.array((2, 3), 0.2, 2),), {"p": 3.0, "eps": 1.0}),
    ],
    tolerance=2.0,
)
def normalize(xp: Any, x: Any, /, p: Any = 2.0, axis: Any = 1, eps: Any = 1e-12) -> Any:
    """x over its p-norm along an axis, which counts as *eps* where it is less."""
    x = floating(xp, "normalize", x)
    k = shapes.axis("normalize", axis, x.ndim)
    values = wide(xp, x)
    return cast(xp, values / xp.maximum(_norm(xp, values, p, k, True), eps), x.dtype)


def _pair(xp: Any, name: str, x1: Any, x2: Any) -> tuple[Any, Any, Any]:
    """Return two float operands that broadcast, wide, and the dtype of the result."""
    a, b = floating(xp, name, x1), floating(xp, name, x2)
    shapes.broadcast(f"apply {name} to", a.shape, b.shape)
    return wide(xp, a), wide(xp, b), dtypes.promote(a.dtype, b.dtype)


def _cosine(xp: Any, a: Any, b: Any, axis: Any, eps: float) -> Any:
    dot = xp.sum(a * b, axis=axis)
    return dot / (xp.maximum(_norm(xp, a, 2, axis, False), eps) * xp.maximum(_norm(xp, b, 2, axis, False), eps))


def _cosine_reference(np: Any, a: Any, b: Any, axis: int = 1, eps: float = 1e-8) -> Any:
    sizes = [np.maximum(_norm_reference(np, v, 2, axis), eps) for v in (a, b)]
    return np.sum(a * b, axis=axis) / (sizes[0] * sizes[1])


@composite(
    reference=_cosine_reference,
    samples=lambda draw: [
        ((draw.array((3, 4), 0.2, 2), draw.array((3, 4), -2, 2)), {}),
        ((draw.array((4, 3), 0.2, 2), draw.array((4, 1), 0.2, 2)), {"axis": 0}),
    ],
    tolerance=2.0,
)
def cosine_similarity(xp: Any, x1: Any, x2: Any, /, axis: Any = 1, eps: Any = 1e-8) -> Any:
    """The product of two arrays along an axis over that of their norms, each counted as at least *eps*."""
    a, b, dtype = _pair(xp, "cosine_similarity", x1, x2)
    return cast(xp, _cosine(xp, a, b, axis, eps), dtype)


@composite(
    reference=lambda np, a, b, p=2.0, eps=1e-6, keepdims=False: _norm_reference(np, a - b + eps, p, -1, keepdims),
    samples=lambda draw: [
        ((draw.array((3, 4), 0.2, 2), draw.array((3, 4), -2, 0)), {}),
        ((draw.array((3, 4), 0.2, 2), draw.array((4,), -2, 0)), {"p": 3.0, "keepdims": True}),
    ],
    tolerance=2.0,
)
def pairwise_distance(xp: Any, x1: Any, x2: Any, /, p: Any = 2.0, eps: Any = 1e-6, keepdims: Any = False) -> Any:
    """The p-norm of x1 - x2 + eps along the last axis."""
    a, b, dtype = _pair(xp, "pairwise_distance", x1, x2)
    return cast(xp, _norm(xp, a - b + eps, p, -1, keepdims), dtype)


def _over(np: Any, loss: Any, reduction: str) -> Any:
    return {"none": lambda: loss, "sum": lambda: np.sum(loss), "mean": lambda: np.mean(loss)}[reduction]()


def _signs(draw: Any, *shape: int) -> Any:
    """Return +-1 at random, as integers: the derivative by them is not asked for."""
    return draw.ints(shape, 0, 1) * 2 - 1


def _signed_samples(low: float, high: float, *keywords: dict[str, Any]) -> Any:
    def samples(draw: Any) -> Any:
        x, y = draw.array((3, 4), low, high), _signs(draw, 3, 4)
        return [((x, y), {"reduction": how, **more}) for how, more in zip(REDUCTIONS, keywords, strict=True)]

    return samples


def _sided(xp: Any, name: str, x: Any, target: Any) -> tuple[Any, Any]:
    """Return a float operand, wide, and a target of its shape."""
    x = floating(xp, name, x)
    if target.shape != x.shape:
        raise ShapeError(
            f"cannot take {name} of shapes {list(x.shape)} and {list(target.shape)}: they must be equal, as a loss "
            "does not broadcast"
        )
    return wide(xp, x), target


@composite(
    reference=lambda np, x, y, margin=1.0, reduction="mean": _over(
        np, np.where(y == 1, x, np.maximum(0, margin - x)), reduction
    ),
    samples=_signed_samples(-1.9, 1.9, {}, {"margin": 0.5}, {}),
)
def hinge_embedding_loss(xp: Any, x: Any, target: Any, /, margin: Any = 1.0, reduction: Any = "mean") -> Any:
    """x where the target is 1, and max(0, margin - x) where it is -1."""
    check_reduction(reduction)
    values, y = _sided(xp, "hinge_embedding_loss", x, target)
    loss = xp.where(xp.equal(y, 1), values, xp.relu(margin - values))
    return reduced(xp, loss, reduction, x.dtype)


@composite(
    reference=lambda np, x, y, reduction="mean": _over(np, np.logaddexp(0, -y * x), reduction),
    samples=_signed_samples(-9, 9, {}, {}, {}),
    tolerance=2.0,
)
def soft_margin_loss(xp: Any, x: Any, target: Any, /, reduction: Any = "mean") -> Any:
    """log(1 + exp(-target * x)) for targets 1 and -1."""
    check_reduction(reduction)
    values, y = _sided(xp, "soft_margin_loss", x, target)
    z = -(values * y)
    return reduced(xp, ramp(xp, z) + xp.log1p(xp.exp(downhill(xp, z))), reduction, x.dtype)


@composite(
    reference=lambda np, a, b, y, margin=0.0, reduction="mean": _over(
        np, np.maximum(0, -y * (a - b) + margin), reduction
    ),
    samples=lambda draw: [
        ((draw.array((5,), 0, 2), draw.array((5,), -2, -0.1), _signs(draw, 5)), {"reduction": how, "margin": 0.1})
        for how in REDUCTIONS
    ],
)
def margin_ranking_loss(xp: Any, x1: Any, x2: Any, target: Any, /, margin: Any = 0.0, reduction: Any = "mean") -> Any:
    """max(0, margin - target * (x1 - x2)): the first is to be the greater where the target is 1, the less at -1."""
    check_reduction(reduction)
    a, b, dtype = _pair(xp, "margin_ranking_loss", x1, x2)
    d, y = _sided(xp, "margin_ranking_loss", a - b, target)
    return reduced(xp, xp.relu(margin - d * y), reduction, dtype)


@composite(
    reference=lambda np, a, b, y, margin=0.0, reduction="mean": _over(
        np,
        np.where(y == 1, 1 - _cosine_reference(np, a, b, -1), np.maximum(0, _cosine_reference(np, a, b, -1) - margin)),
        reduction,
    ),
    samples=lambda draw: [
        ((draw.array((5, 3), 0.2, 2), draw.array((5, 3), 0.2, 2), _signs(draw, 5)), {"reduction": how, "margin": 0.1})
        for how in REDUCTIONS
    ],
    tolerance=4.0,  # 1 less a cosine near 1
)
def cosine_embedding_loss(xp: Any, x1: Any, x2: Any, target: Any, /, margin: Any = 0.0, reduction: Any = "mean") -> Any:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1; cos is taken along the last axis."""
    check_reduction(reduction)
    a, b, dtype = _pair(xp, "cosine_embedding_loss", x1, x2)
    cos, y = _sided(xp, "cosine_embedding_loss", _cosine(xp, a, b, -1, 1e-8), target)
    return reduced(xp, xp.where(xp.equal(y, 1), 1.0 - cos, xp.relu(cos - margin)), reduction, dtype)


_TRIPLETS: tuple[dict[str, Any], ...] = ({}, {"swap": True}, {"p": 3.0})


def _triplet_reference(
    np: Any,
    a: Any,
    b: Any,
    c: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    near, far = _norm_reference(np, a - b + eps, p, -1), _norm_reference(np, a - c + eps, p, -1)
    if swap:
        far = np.minimum(far, _norm_reference(np, b - c + eps, p, -1))
    return _over(np, np.maximum(0, near - far + margin), reduction)


@composite(
    reference=_triplet_reference,
    samples=lambda draw: [
        (tuple(draw.array((5, 3), -1, 1) for _ in range(3)), {"reduction": how, "margin": 2.5, **more})
        for how, more in zip(REDUCTIONS, _TRIPLETS, strict=True)
    ],
    tolerance=4.0,  # a difference of distances
)
def triplet_margin_loss(
    xp: Any,
    anchor: Any,
    positive: Any,
    negative: Any,
    /,
    margin: Any = 1.0,
    p: Any = 2.0,
    eps: Any = 1e-6,
    *,
    swap: Any = False,
    reduction: Any = "mean",
) -> Any:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d being `pairwise_distance`.

    With *swap* the negative may be nearer to the positive than to the anchor, and that distance counts.
    """
    check_reduction(reduction)
    near = xp.pairwise_distance(anchor, positive, p, eps)
    far = xp.pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = xp.minimum(far, xp.pairwise_distance(positive, negative, p, eps))
    return reduced(xp, xp.relu(near - far + margin), reduction, near.dtype)
