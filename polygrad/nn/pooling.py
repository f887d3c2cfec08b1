"""Pooling layers.

Here: max and average pooling over one, two and three axes, with windows or to a given size.
Not here: what they compute (`polygrad.ops.pooling`).
"""

from typing import Any

from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.nn.module import Module


class _Pool(Module):
    """What pooling layers with windows share."""

    function = ""

    def __init__(self, kernel_size: Any, stride: Any, padding: Any, **more: Any) -> None:
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.more = more

    def forward(self, x: Array) -> Array:
        """Return the pooled array."""
        return FUNCTIONS[self.function](x, self.kernel_size, self.stride, self.padding, **self.more)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"{self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _MaxPool(_Pool):
    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation=dilation, ceil_mode=ceil_mode)


class _AvgPool(_Pool):
    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode=ceil_mode, count_include_pad=count_include_pad)


class MaxPool1d(_MaxPool):
    """The largest element of each window of the last axis; the stride is the kernel's size unless given."""

    function = "max_pool1d"


class MaxPool2d(_MaxPool):
    """The largest element of each window of the last two axes; the stride is the kernel's size unless given."""

    function = "max_pool2d"


class MaxPool3d(_MaxPool):
    """The largest element of each window of the last three axes; the stride is the kernel's size unless given."""

    function = "max_pool3d"


class AvgPool1d(_AvgPool):
    """The mean of each window of the last axis; the stride is the kernel's size unless given."""

    function = "avg_pool1d"


class AvgPool2d(_AvgPool):
    """The mean of each window of the last two axes; the stride is the kernel's size unless given."""

    function = "avg_pool2d"


class AvgPool3d(_AvgPool):
    """The mean of each window of the last three axes; the stride is the kernel's size unless given."""

    function = "avg_pool3d"


class _Adaptive(Module):
    """What pooling layers to a given size share."""

    function = ""

    def __init__(self, output_size: Any) -> None:
        self.output_size = output_size

    def forward(self, x: Array) -> Array:
        """Return the pooled array."""
        return FUNCTIONS[self.function](x, self.output_size)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the size."""
        return f"{self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """Means of *output_size* windows that cover the last axis evenly."""

    function = "adaptive_avg_pool1d"


class AdaptiveAvgPool2d(_Adaptive):
    """Means of windows that cover the last two axes evenly; *output_size* is an int or a pair, None keeps a size."""

    function = "adaptive_avg_pool2d"


class AdaptiveAvgPool3d(_Adaptive):
    """Means of windows that cover the last three axes evenly."""

    function = "adaptive_avg_pool3d"


class AdaptiveMaxPool1d(_Adaptive):
    """Maxima of *output_size* windows that cover the last axis evenly."""

    function = "adaptive_max_pool1d"


class AdaptiveMaxPool2d(_Adaptive):
    """Maxima of windows that cover the last two axes evenly; *output_size* is an int or a pair, None keeps a size."""

    function = "adaptive_max_pool2d"


class AdaptiveMaxPool3d(_Adaptive):
    """Maxima of windows that cover the last three axes evenly."""

    function = "adaptive_max_pool3d"
