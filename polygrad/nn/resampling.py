"""Layers that change the size of images.

Here: Upsample, PixelShuffle.
Not here: what they compute (`polygrad.ops.resampling`), transposed convolutions, pooling.
"""

from typing import Any

from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.nn.module import Module


class Upsample(Module):
    """[N, C, ...] with other sizes of the axes after the first two; see `interpolate`.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.nn.Upsample(scale_factor=2, mode="bilinear")(pg.ones((1, 3, 4, 5), dtype=pg.float32)).shape
    (1, 3, 8, 10)
    """

    def __init__(
        self, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool = False
    ) -> None:
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners

    def forward(self, x: Array) -> Array:
        """Return the resized array."""
        call = FUNCTIONS["interpolate"]
        return call(x, self.size, self.scale_factor, self.mode, self.align_corners)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"size={self.size}, scale_factor={self.scale_factor}, mode={self.mode!r}"


class PixelShuffle(Module):
    """[N, C * r * r, H, W] as [N, C, H * r, W * r]."""

    def __init__(self, upscale_factor: int) -> None:
        self.upscale_factor = upscale_factor

    def forward(self, x: Array) -> Array:
        """Apply `pixel_shuffle`."""
        return FUNCTIONS["pixel_shuffle"](x, self.upscale_factor)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the factor."""
        return f"{self.upscale_factor}"
