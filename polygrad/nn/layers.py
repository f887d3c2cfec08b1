"""Layers with weights over the last axis, and the plumbing between layers.

Here: Linear, Bilinear, Embedding, Flatten, Unflatten, the dropouts, Identity.
Not here: convolutions, pooling, normalisation, activations and containers (modules of these names), what the functions
compute (`polygrad.ops`).
"""

import math
from collections.abc import Sequence
from typing import Any

from polygrad import shapes
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import ShapeError
from polygrad.nn import init
from polygrad.nn.functional import alpha_dropout, dropout, feature_dropout
from polygrad.nn.module import Module
from polygrad.nn.parameter import Parameter

CLASSIC_GAIN = 1.0 / math.sqrt(3.0)  # uniform in +-1/sqrt(inputs), the usual start of linear and convolution layers


def classic_bias(inputs: int, outputs: int, wanted: bool, dtype: Any, device: Any) -> Parameter | None:
    """Return a bias, uniform in +-1/sqrt(inputs) and not decayed, or None if none is wanted."""
    if not wanted:
        return None
    limit = 1.0 / math.sqrt(max(1, inputs))
    return Parameter(init.uniform((outputs,), -limit, limit, dtype=dtype, device=device), no_decay=True)


class Linear(Module):
    """``x @ weight.T + bias`` over the last axis.

    Parameters
    ----------
    in_features, out_features : int
        Sizes of the last axis before and after.
    bias : bool
        Whether there is a bias.
    dtype, device : optional
        Of the parameters; float32 and the default device.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.nn.Linear(3, 5)(pg.ones((2, 3), dtype=pg.float32)).shape
    (2, 5)
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = None, device: Any = None
    ) -> None:
        self.in_features = in_features
        self.out_features = out_features
        shape = (out_features, in_features)
        self.weight = Parameter(init.kaiming_uniform(shape, CLASSIC_GAIN, dtype=dtype, device=device))
        self.bias = classic_bias(in_features, out_features, bias, dtype, device)

    def forward(self, x: Array) -> Array:
        """Return the outputs for inputs of shape [..., in_features]."""
        if x.ndim == 0 or x.shape[-1] != self.in_features:
            raise ShapeError(
                f"cannot apply Linear({self.in_features}, {self.out_features}) to shape {list(x.shape)}: the last axis "
                f"must have {self.in_features} elements"
            )
        return FUNCTIONS["linear"](x, self.weight, self.bias)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.in_features}, {self.out_features}" + ("" if self.bias is not None else ", bias=False")


class Bilinear(Module):
    """The sum of x1[i] * weight[o, i, j] * x2[j] over i and j, plus a bias."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        limit = 1.0 / math.sqrt(max(1, in1_features))
        shape = (out_features, in1_features, in2_features)
        self.weight = Parameter(init.uniform(shape, -limit, limit, dtype=dtype, device=device))
        self.bias = classic_bias(in1_features, out_features, bias, dtype, device)

    def forward(self, x1: Array, x2: Array) -> Array:
        """Return the outputs for inputs of shapes [..., in1_features] and [..., in2_features]."""
        return FUNCTIONS["bilinear"](x1, x2, self.weight, self.bias)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.in1_features}, {self.in2_features}, {self.out_features}"


class Embedding(Module):
    """A row of the weight for each integer.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        How many rows there are, and of which size.
    padding_idx : int, optional
        A row that starts as zeros and gets no gradient.
    dtype, device : optional
        Of the weight; float32 and the default device.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.nn.Embedding(10, 4)(pg.asarray([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        start = init.normal((num_embeddings, embedding_dim), dtype=dtype, device=device)
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ShapeError(f"cannot pad with row {padding_idx} of {num_embeddings} rows: there is no such row")
            rows = FUNCTIONS["arange"](num_embeddings, device=start.device)
            padded = FUNCTIONS["expand_dims"](rows == padding_idx % num_embeddings, -1)
            start = FUNCTIONS["where"](padded, 0.0, start)
        self.weight = Parameter(start)

    def forward(self, indices: Array) -> Array:
        """Return shape [*indices, embedding_dim]; an index outside of the rows raises OutOfBounds at the next read."""
        return FUNCTIONS["embedding"](indices, self.weight, self.padding_idx)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the sizes."""
        padded = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padded}"


class Flatten(Module):
    """All axes from *start_dim* to *end_dim* as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Array) -> Array:
        """Return shape [..., product of the axes, ...]."""
        first = shapes.axis("flatten", self.start_dim, x.ndim)
        last = shapes.axis("flatten", self.end_dim, x.ndim)
        if last < first:
            raise ShapeError(
                f"cannot flatten axes {first} to {last} of shape {list(x.shape)}: they are in reverse order"
            )
        middle = math.prod(x.shape[first : last + 1])
        return FUNCTIONS["reshape"](x, (*x.shape[:first], middle, *x.shape[last + 1 :]))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the axes."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One axis as several, of the sizes given; one of them may be -1."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, x: Array) -> Array:
        """Return shape [..., *unflattened_size, ...]."""
        k = shapes.axis("unflatten", self.dim, x.ndim)
        sizes = self.unflattened_size
        if -1 in sizes:
            rest = -math.prod(sizes)
            sizes = tuple(x.shape[k] // max(1, rest) if n == -1 else n for n in sizes)
        if math.prod(sizes) != x.shape[k]:
            raise ShapeError(
                f"cannot make axis {k} of shape {list(x.shape)} into {list(self.unflattened_size)}: it has "
                f"{x.shape[k]} elements"
            )
        return FUNCTIONS["reshape"](x, (*x.shape[:k], *sizes, *x.shape[k + 1 :]))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return axis and sizes."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class Dropout(Module):
    """`dropout` in training mode, nothing in evaluation mode."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0.0 <= p <= 1.0:
            raise ShapeError(f"cannot drop elements with probability {p}: it must be in [0, 1]")
        self.p = p

    def forward(self, x: Array) -> Array:
        """Return *x* with elements dropped."""
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """Return the probability."""
        return f"{self.p}"


class _ChannelDropout(Dropout):
    """What dropouts of whole channels share."""

    rank = 0

    def forward(self, x: Array) -> Array:
        """Return *x* with channels dropped."""
        if x.ndim not in (self.rank + 1, self.rank + 2):
            raise ShapeError(
                f"cannot apply {type(self).__name__} to shape {list(x.shape)}: it takes {self.rank + 2} axes, "
                "[N, C, ...]"
            )
        return feature_dropout(x, self.p, self.training, 1 if x.ndim == self.rank + 1 else 2)


class Dropout1d(_ChannelDropout):
    """Whole channels of [N, C, L] or [C, L] are zero with probability *p*."""

    rank = 1


class Dropout2d(_ChannelDropout):
    """Whole channels of [N, C, H, W] or [C, H, W] are zero with probability *p*."""

    rank = 2


class Dropout3d(_ChannelDropout):
    """Whole channels of [N, C, D, H, W] or [C, D, H, W] are zero with probability *p*."""

    rank = 3


class AlphaDropout(Dropout):
    """Dropout for SELU: elements go to its lower limit, and mean 0 and variance 1 are kept."""

    def forward(self, x: Array) -> Array:
        """Return *x* with elements dropped."""
        return alpha_dropout(x, self.p, self.training)


class Identity(Module):
    """The input, unchanged; arguments of the constructor are taken and not used."""

    def __init__(self, *_args: Any, **_keywords: Any) -> None: ...

    def forward(self, x: Any) -> Any:
        """Return *x*."""
        return x
