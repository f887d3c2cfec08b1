"""Layers with weights, and the plumbing between them.

Here: Linear, Embedding, Conv2d, pooling, Flatten, Dropout, Identity, Sequential.
Not here: normalisation and activations (modules of these names), what the functions compute (`polygrad.ops`).
"""

import math
from collections.abc import Iterator
from typing import Any

from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import ShapeError
from polygrad.nn import init
from polygrad.nn.functional import dropout
from polygrad.nn.module import Module
from polygrad.nn.parameter import Parameter

_CLASSIC_GAIN = 1.0 / math.sqrt(3.0)  # uniform in +-1/sqrt(inputs), the usual start of linear and convolution layers


class Linear(Module):
    """``x @ weight.T + bias`` over the last axis.

    Parameters
    ----------
    inputs, outputs : int
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

    def __init__(self, inputs: int, outputs: int, bias: bool = True, *, dtype: Any = None, device: Any = None) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.weight = Parameter(init.kaiming_uniform((outputs, inputs), _CLASSIC_GAIN, dtype=dtype, device=device))
        self.bias: Parameter | None = None
        if bias:
            limit = 1.0 / math.sqrt(max(1, inputs))
            start = init.uniform((outputs,), -limit, limit, dtype=dtype, device=device)
            self.bias = Parameter(start, no_decay=True)

    def forward(self, x: Array) -> Array:
        """Return the outputs for inputs of shape [..., inputs]."""
        if x.ndim == 0 or x.shape[-1] != self.inputs:
            raise ShapeError(
                f"cannot apply Linear({self.inputs}, {self.outputs}) to shape {list(x.shape)}: the last axis must have "
                f"{self.inputs} elements"
            )
        out = FUNCTIONS["matmul"](x, self.weight.mT)
        return out if self.bias is None else out + self.bias  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.inputs}, {self.outputs}" + ("" if self.bias is not None else ", bias=False")


class Embedding(Module):
    """A row of the weight for each integer.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.nn.Embedding(10, 4)(pg.asarray([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(self, count: int, size: int, *, dtype: Any = None, device: Any = None) -> None:
        self.count = count
        self.size = size
        self.weight = Parameter(init.normal((count, size), dtype=dtype, device=device))

    def forward(self, indices: Array) -> Array:
        """Return shape [*indices, size]; an index outside of the rows raises OutOfBounds when the value is read."""
        rows = FUNCTIONS["take"](self.weight, FUNCTIONS["reshape"](indices, (-1,)), axis=0)
        return FUNCTIONS["reshape"](rows, (*indices.shape, self.size))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.count}, {self.size}"


class Conv2d(Module):
    """The cross-correlation of images [N, C, H, W] with learnt kernels; weights are [out, in / groups, height, width].

    Parameters
    ----------
    inputs, outputs : int
        Numbers of channels.
    kernel_size, stride, dilation : int or pair of int
        As for `conv2d`.
    padding : int, pair of int, "same" or "valid"
        As for `conv2d`.
    groups : int
        Into how many groups the channels are split.
    bias : bool
        Whether there is a bias.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.nn.Conv2d(1, 4, 3, padding=1)(pg.ones((2, 1, 8, 8), dtype=pg.float32)).shape
    (2, 4, 8, 8)
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        *,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        kernel = tuple(kernel_size) if isinstance(kernel_size, (tuple, list)) else (kernel_size, kernel_size)
        if groups < 1 or inputs % groups or outputs % groups:
            raise ShapeError(
                f"cannot split {inputs} and {outputs} channels into {groups} groups: both must divide by their number"
            )
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups
        shape = (outputs, inputs // groups, *kernel)
        self.weight = Parameter(init.kaiming_uniform(shape, _CLASSIC_GAIN, dtype=dtype, device=device))
        self.bias: Parameter | None = None
        if bias:
            limit = 1.0 / math.sqrt(max(1, init.fans(shape)[0]))
            start = init.uniform((outputs,), -limit, limit, dtype=dtype, device=device)
            self.bias = Parameter(start, no_decay=True)

    def forward(self, x: Array) -> Array:
        """Return the feature maps of images [N, C, H, W]."""
        return FUNCTIONS["conv2d"](x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        outputs, inputs, high, across = self.weight.shape
        return (
            f"{inputs * self.groups}, {outputs}, ({high}, {across}), stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, groups={self.groups}, bias={self.bias is not None}"
        )


class _Pool2d(Module):
    """What the two pooling layers share."""

    function = ""

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding

    def forward(self, x: Array) -> Array:
        """Return the pooled images."""
        return FUNCTIONS[self.function](x, self.kernel_size, self.stride, self.padding)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"{self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxPool2d(_Pool2d):
    """The largest element of each window of images [N, C, H, W]; the stride is the kernel's size unless given."""

    function = "max_pool2d"


class AvgPool2d(_Pool2d):
    """The mean of each window of images [N, C, H, W]; the stride is the kernel's size unless given."""

    function = "avg_pool2d"


class Flatten(Module):
    """All axes from *start* on as one."""

    def __init__(self, start: int = 1) -> None:
        self.start = start

    def forward(self, x: Array) -> Array:
        """Return shape [..., product of the rest]."""
        kept = x.shape[: self.start]
        return FUNCTIONS["reshape"](x, (*kept, math.prod(x.shape[self.start :])))  # type: ignore[no-any-return]


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


class Identity(Module):
    """The input, unchanged."""

    def forward(self, x: Array) -> Array:
        """Return *x*."""
        return x


class Sequential(Module):
    """Modules, or any functions of an array, one after the other.

    Examples
    --------
    >>> import polygrad as pg
    >>> net = pg.nn.Sequential(pg.nn.Linear(4, 8), pg.nn.ReLU(), pg.nn.Linear(8, 2))
    >>> net(pg.ones((1, 4), dtype=pg.float32)).shape, len(net), net.num_parameters()
    ((1, 2), 3, 58)
    """

    def __init__(self, *steps: Any) -> None:
        for step in steps:
            self.append(step)

    @property
    def steps(self) -> list[Any]:
        """The steps, in order."""
        own = vars(self)
        return [own[str(k)] for k in range(sum(name.isdigit() for name in own))]

    def forward(self, x: Any) -> Any:
        """Return the last step's output."""
        for step in self.steps:
            x = step(x)
        return x

    def append(self, step: Any) -> "Sequential":
        """Add a step at the end; return self."""
        setattr(self, str(len(self)), step)  # so that its parameters are called 0.weight, 1.weight, ...
        return self

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.steps)

    def __getitem__(self, key: Any) -> Any:
        return Sequential(*self.steps[key]) if isinstance(key, slice) else self.steps[key]
