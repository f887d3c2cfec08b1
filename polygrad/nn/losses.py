"""Losses as modules.

Here: one class for each function; weights of classes are buffers, which move with the module.
Not here: the functions (`polygrad.ops.losses` and its neighbours).
"""

from typing import Any

from polygrad.array.creation import asarray
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import ShapeError
from polygrad.nn.module import Module

IGNORED = -100  # the label that PyTorch's losses pass over unless told otherwise


class _Loss(Module):
    """What losses share: a reduction, "mean", "sum" or "none"."""

    def __init__(self, reduction: str) -> None:
        if reduction not in ("mean", "sum", "none", "batchmean"):
            raise ShapeError(f"cannot reduce a loss by {reduction!r}: it is one of 'mean', 'sum', 'none'")
        self.reduction = reduction

    def _buffer(self, name: str, value: Any) -> None:
        setattr(self, name, None)
        if value is not None:
            self.register_buffer(name, asarray(value), persistent=False)

    def extra_repr(self) -> str:
        """Return the reduction."""
        return f"reduction={self.reduction!r}"


class CrossEntropyLoss(_Loss):
    """Less the log of the softmax at the label, over the axis of classes; see `cross_entropy`.

    Parameters
    ----------
    weight : Array, optional
        A weight for each class.
    ignore_index : int or None
        A label that counts for nothing, also in the mean; -100 as in PyTorch, None for none.
    reduction : str
        "mean", "sum" or "none"; the mean is weighted by the labels' weights.
    label_smoothing : float
        The share of a label that is spread over all classes.

    Examples
    --------
    >>> import polygrad as pg
    >>> logits = pg.zeros((2, 4), dtype=pg.float32)
    >>> round(float(pg.nn.CrossEntropyLoss()(logits, pg.asarray([1, -100]))), 4)
    1.3863
    """

    weight: Array | None

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int | None = IGNORED,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        self._buffer("weight", weight)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, logits: Array, labels: Array) -> Array:
        """Apply `cross_entropy`."""
        return FUNCTIONS["cross_entropy"](  # type: ignore[no-any-return]
            logits,
            labels,
            self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )


class NLLLoss(_Loss):
    """Less the log probability at the label; see `nll_loss`, and `CrossEntropyLoss` for the parameters."""

    weight: Array | None

    def __init__(self, weight: Any = None, ignore_index: int | None = IGNORED, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._buffer("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, log_probabilities: Array, labels: Array) -> Array:
        """Apply `nll_loss`."""
        call = FUNCTIONS["nll_loss"]
        return call(  # type: ignore[no-any-return]
            log_probabilities, labels, self.weight, reduction=self.reduction, ignore_index=self.ignore_index
        )


class BCELoss(_Loss):
    """Binary cross-entropy of probabilities; see `binary_cross_entropy`."""

    weight: Array | None

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._buffer("weight", weight)

    def forward(self, probabilities: Array, target: Array) -> Array:
        """Apply `binary_cross_entropy`."""
        call = FUNCTIONS["binary_cross_entropy"]
        return call(probabilities, target, self.weight, reduction=self.reduction)  # type: ignore[no-any-return]


class BCEWithLogitsLoss(_Loss):
    """Binary cross-entropy of logits; *pos_weight* multiplies the part of the targets.

    See `binary_cross_entropy_with_logits`.
    """

    weight: Array | None
    pos_weight: Array | None

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self._buffer("weight", weight)
        self._buffer("pos_weight", pos_weight)

    def forward(self, logits: Array, target: Array) -> Array:
        """Apply `binary_cross_entropy_with_logits`."""
        call = FUNCTIONS["binary_cross_entropy_with_logits"]
        return call(logits, target, self.weight, self.pos_weight, reduction=self.reduction)  # type: ignore[no-any-return]


class MSELoss(_Loss):
    """The squared difference; see `mse_loss`."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, x: Array, target: Array) -> Array:
        """Apply `mse_loss`."""
        return FUNCTIONS["mse_loss"](x, target, reduction=self.reduction)  # type: ignore[no-any-return]


class L1Loss(_Loss):
    """The absolute difference; see `l1_loss`."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, x: Array, target: Array) -> Array:
        """Apply `l1_loss`."""
        return FUNCTIONS["l1_loss"](x, target, reduction=self.reduction)  # type: ignore[no-any-return]


class HuberLoss(_Loss):
    """Half the squared difference up to *delta*, a straight line beyond it; see `huber_loss`."""

    def __init__(self, delta: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, x: Array, target: Array) -> Array:
        """Apply `huber_loss`."""
        return FUNCTIONS["huber_loss"](x, target, delta=self.delta, reduction=self.reduction)  # type: ignore[no-any-return]


class SmoothL1Loss(_Loss):
    """The absolute difference, rounded off below *beta*; see `smooth_l1_loss`."""

    def __init__(self, beta: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, x: Array, target: Array) -> Array:
        """Apply `smooth_l1_loss`."""
        return FUNCTIONS["smooth_l1_loss"](x, target, beta=self.beta, reduction=self.reduction)  # type: ignore[no-any-return]


class KLDivLoss(_Loss):
    """target * (log(target) - x), for log probabilities x; see `kl_div`."""

    def __init__(self, log_target: bool = False, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.log_target = log_target

    def forward(self, x: Array, target: Array) -> Array:
        """Apply `kl_div`."""
        return FUNCTIONS["kl_div"](x, target, log_target=self.log_target, reduction=self.reduction)  # type: ignore[no-any-return]


class PoissonNLLLoss(_Loss):
    """exp(x) - target * x; see `poisson_nll_loss`."""

    def __init__(self, log_input: bool = True, eps: float = 1e-8, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.log_input = log_input
        self.eps = eps

    def forward(self, x: Array, target: Array) -> Array:
        """Apply `poisson_nll_loss`."""
        call = FUNCTIONS["poisson_nll_loss"]
        return call(x, target, log_input=self.log_input, eps=self.eps, reduction=self.reduction)  # type: ignore[no-any-return]


class HingeEmbeddingLoss(_Loss):
    """x where the target is 1, max(0, margin - x) where it is -1; see `hinge_embedding_loss`."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, x: Array, target: Array) -> Array:
        """Apply `hinge_embedding_loss`."""
        return FUNCTIONS["hinge_embedding_loss"](x, target, margin=self.margin, reduction=self.reduction)  # type: ignore[no-any-return]


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target * x)); see `soft_margin_loss`."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, x: Array, target: Array) -> Array:
        """Apply `soft_margin_loss`."""
        return FUNCTIONS["soft_margin_loss"](x, target, reduction=self.reduction)  # type: ignore[no-any-return]


class GaussianNLLLoss(_Loss):
    """Half of log(var) + (x - target)**2 / var; see `gaussian_nll_loss`."""

    def __init__(self, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full = full
        self.eps = eps

    def forward(self, x: Array, target: Array, var: Array) -> Array:
        """Apply `gaussian_nll_loss`."""
        return FUNCTIONS["gaussian_nll_loss"](x, target, var, full=self.full, eps=self.eps, reduction=self.reduction)  # type: ignore[no-any-return]


class MarginRankingLoss(_Loss):
    """max(0, margin - target * (x1 - x2)); see `margin_ranking_loss`."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, x1: Array, x2: Array, target: Array) -> Array:
        """Apply `margin_ranking_loss`."""
        return FUNCTIONS["margin_ranking_loss"](x1, x2, target, margin=self.margin, reduction=self.reduction)  # type: ignore[no-any-return]


class CosineEmbeddingLoss(_Loss):
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1; see `cosine_embedding_loss`."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, x1: Array, x2: Array, target: Array) -> Array:
        """Apply `cosine_embedding_loss`."""
        return FUNCTIONS["cosine_embedding_loss"](x1, x2, target, margin=self.margin, reduction=self.reduction)  # type: ignore[no-any-return]


class TripletMarginLoss(_Loss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin); see `triplet_margin_loss`."""

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.margin = margin
        self.p = p
        self.eps = eps
        self.swap = swap

    def forward(self, anchor: Array, positive: Array, negative: Array) -> Array:
        """Apply `triplet_margin_loss`."""
        settings: dict[str, Any] = {"margin": self.margin, "p": self.p, "eps": self.eps, "swap": self.swap}
        call = FUNCTIONS["triplet_margin_loss"]
        return call(anchor, positive, negative, **settings, reduction=self.reduction)  # type: ignore[no-any-return]
