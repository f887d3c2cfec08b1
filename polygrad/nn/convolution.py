"""Convolution layers.

Here: Conv1d, Conv2d, Conv3d and their transposes.
Not here: what they compute (`polygrad.ops.convolution`), pooling.
"""

from typing import Any

from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import ShapeError
from polygrad.nn import init
from polygrad.nn.layers import CLASSIC_GAIN, classic_bias
from polygrad.nn.module import Module
from polygrad.nn.parameter import Parameter
from polygrad.ops.convolution import sizes_of

_MODES = ("zeros", "reflect", "replicate", "circular")


class _Convolution(Module):
    """What all convolutions share: geometry, weights, and their first values."""

    rank = 0
    transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        geometry: dict[str, Any],
        groups: int,
        bias: bool,
        where: dict[str, Any],
    ) -> None:
        name = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"cannot split {in_channels} and {out_channels} channels into {groups} groups: both must divide by "
                "their number"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = sizes_of(name, "kernel_size", kernel_size, 1, self.rank)
        for what, value in geometry.items():
            setattr(self, what, value)
        self.groups = groups
        lead = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        shape = (*lead, *self.kernel_size)
        self.weight = Parameter(init.kaiming_uniform(shape, CLASSIC_GAIN, **where))
        self.bias = classic_bias(init.fans(shape)[0], out_channels, bias, where["dtype"], where["device"])

    def _check(self, x: Array) -> None:
        if x.ndim != self.rank + 2 or x.shape[1] != self.in_channels:
            axes = ", ".join(("L",) if self.rank == 1 else ("D", "H", "W")[-self.rank :])
            raise ShapeError(
                f"cannot apply {type(self).__name__} to shape {list(x.shape)}: it takes [N, {self.in_channels}, {axes}]"
            )

    def extra_repr(self) -> str:
        """Return what was asked for."""
        given = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1, "padding_mode": "zeros"}
        said = [f"{k}={getattr(self, k)}" for k, usual in given.items() if getattr(self, k, usual) != usual]
        said += [] if self.bias is not None else ["bias=False"]
        return ", ".join([f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}", *said])


class _Forward(_Convolution):
    """A convolution, with a border of zeros or of the array's own elements."""

    stride: Any
    padding: Any
    dilation: Any
    padding_mode: str

    def __init__(  # noqa: PLR0913  as PyTorch's
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        if padding_mode not in _MODES:
            raise ShapeError(f"cannot pad in mode {padding_mode!r}: it is one of {', '.join(map(repr, _MODES))}")
        geometry = {"stride": stride, "padding": padding, "dilation": dilation, "padding_mode": padding_mode}
        where = {"dtype": dtype, "device": device}
        super().__init__(in_channels, out_channels, kernel_size, geometry, groups, bias, where)

    def forward(self, x: Array) -> Array:
        """Return the feature maps of [N, in_channels, ...]."""
        self._check(x)
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = self._bordered(x), 0
        call = FUNCTIONS[f"conv{self.rank}d"]
        return call(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)  # type: ignore[no-any-return]

    def _bordered(self, x: Array) -> Array:
        """Return *x* with a border of its own elements."""
        if self.padding == "valid":
            return x
        apart = sizes_of("a convolution", "dilation", self.dilation, 1, self.rank)
        if self.padding == "same":
            spans = [d * (k - 1) for k, d in zip(self.kernel_size, apart, strict=True)]
            pairs = [(n // 2, n - n // 2) for n in spans]
        else:
            pairs = [(p, p) for p in sizes_of("a convolution", "padding", self.padding, 0, self.rank)]
        for k, (before, after) in enumerate(pairs):
            x = _extended(x, x.ndim - self.rank + k, before, after, self.padding_mode)
        return x


def _extended(x: Array, axis: int, before: int, after: int, mode: str) -> Array:
    """Return *x* with elements of its own before and after an axis: mirrored, repeated, or from the other end."""
    n = x.shape[axis]
    most = {"reflect": n - 1, "circular": n, "replicate": max(before, after) if n else 0}[mode]
    if max(before, after) > most:
        raise ShapeError(
            f"cannot pad axis {axis} of shape {list(x.shape)} by {max(before, after)} in mode {mode!r}: at most {most} "
            "elements can come from the array"
        )

    def cut(start: int, stop: int, step: int = 1) -> Array:
        key = [slice(None)] * axis + [slice(start, stop if stop >= 0 else None, step)]
        return x[tuple(key)]

    def repeated(place: int, count: int) -> Array:
        one = cut(place, place + 1)
        shape = tuple(count if k == axis else m for k, m in enumerate(one.shape))
        return FUNCTIONS["broadcast_to"](one, shape)  # type: ignore[no-any-return]

    parts = [x]
    if before:
        first = {
            "reflect": lambda: cut(before, 0, -1),
            "circular": lambda: cut(n - before, n),
            "replicate": lambda: repeated(0, before),
        }
        parts.insert(0, first[mode]())
    if after:
        last = {
            "reflect": lambda: cut(n - 2, n - 2 - after, -1),
            "circular": lambda: cut(0, after),
            "replicate": lambda: repeated(n - 1, after),
        }
        parts.append(last[mode]())
    return FUNCTIONS["concat"](parts, axis=axis) if len(parts) > 1 else x


class Conv1d(_Forward):
    """The cross-correlation of signals [N, C, L] with learnt kernels [out, in / groups, length]; see `Conv2d`."""

    rank = 1


class Conv2d(_Forward):
    """The cross-correlation of images [N, C, H, W] with learnt kernels; weights are [out, in / groups, height, width].

    Parameters
    ----------
    in_channels, out_channels : int
        Numbers of channels.
    kernel_size, stride, dilation : int or pair of int
        As for `conv2d`.
    padding : int, pair of int, "same" or "valid"
        As for `conv2d`.
    groups : int
        Into how many groups the channels are split.
    bias : bool
        Whether there is a bias.
    padding_mode : str
        What the border is made of: "zeros", or elements of the image by "reflect", "replicate" or "circular".
    dtype, device : optional
        Of the parameters; float32 and the default device.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.nn.Conv2d(1, 4, 3, padding=1)(pg.ones((2, 1, 8, 8), dtype=pg.float32)).shape
    (2, 4, 8, 8)
    """

    rank = 2


class Conv3d(_Forward):
    """The cross-correlation of volumes [N, C, D, H, W] with learnt kernels; see `Conv2d`."""

    rank = 3


class _Transposed(_Convolution):
    """The transpose of a convolution: what its gradient computes."""

    transposed = True
    stride: Any
    padding: Any
    output_padding: Any
    dilation: Any

    def __init__(  # noqa: PLR0913  as PyTorch's
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        geometry = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
        where = {"dtype": dtype, "device": device}
        super().__init__(in_channels, out_channels, kernel_size, geometry, groups, bias, where)

    def forward(self, x: Array, output_size: Any = None) -> Array:
        """Return feature maps; *output_size*, the sizes of their last axes, decides where a stride leaves a choice."""
        self._check(x)
        extra = self.output_padding if output_size is None else self._extra(x, tuple(output_size))
        call = FUNCTIONS[f"conv_transpose{self.rank}d"]
        return call(x, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)  # type: ignore[no-any-return]

    def _extra(self, x: Array, wanted: tuple[int, ...]) -> tuple[int, ...]:
        name = type(self).__name__
        step, border, apart = (
            sizes_of(name, what, getattr(self, what), least, self.rank)
            for what, least in (("stride", 1), ("padding", 0), ("dilation", 1))
        )
        facts = zip(x.shape[2:], step, border, apart, self.kernel_size, strict=True)
        least = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in facts]
        wanted = wanted[-self.rank :]
        extra = tuple(w - m for w, m in zip(wanted, least, strict=False))
        if len(wanted) != self.rank or [1 for e, s in zip(extra, step, strict=True) if not 0 <= e < s]:
            most = [m + s - 1 for m, s in zip(least, step, strict=True)]
            raise ShapeError(f"{name} cannot give sizes {list(wanted)}: from this input they are {least} to {most}")
        return extra


class ConvTranspose1d(_Transposed):
    """The transpose of `Conv1d`; weights are [in, out / groups, length]."""

    rank = 1


class ConvTranspose2d(_Transposed):
    """The transpose of `Conv2d`; weights are [in, out / groups, height, width].

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.nn.ConvTranspose2d(4, 2, 2, stride=2)(pg.ones((1, 4, 3, 3), dtype=pg.float32)).shape
    (1, 2, 6, 6)
    """

    rank = 2


class ConvTranspose3d(_Transposed):
    """The transpose of `Conv3d`; weights are [in, out / groups, depth, height, width]."""

    rank = 3
