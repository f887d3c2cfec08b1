"""PyTorch as the op library that polygrad's `unfuse` runs kernels with.

Here: one method for each thing that `unfuse` asks for, and the scalar ops. Not here: memory, devices (`driver.py`).

PyTorch does not compute with uint16 and uint32: their values are held as int64, brought back into range after each op.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from polygrad.driver import Ref
from polygrad.driver.ir import ITEMSIZE
from polygrad.driver.unfuse import Library

T = torch.Tensor
HELD = {"uint16": (torch.int16, 0xFFFF), "uint32": (torch.int32, 0xFFFFFFFF)}  # dtype in memory, mask
NAMES = (
    "add subtract multiply negative divide maximum less less_equal equal=eq not_equal bitwise_and bitwise_or"
    " bitwise_xor bitwise_invert=bitwise_not bitwise_left_shift bitwise_right_shift floor where minimum absolute"
    " ceil trunc round copysign nextafter rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2"
    " sinh cosh tanh asinh acosh atanh pow erf"
)
FUNCTIONS: dict[str, Any] = {n.partition("=")[0]: getattr(torch, n.split("=")[-1]) for n in NAMES.split()}


def quotient(a: T, b: T) -> T:
    """Return a / b truncated, 0 where b is 0; processors trap at least / -1 as they do at x / 0."""
    minus = (b == -1) & b.dtype.is_signed
    whole = torch.div(a, torch.where((b == 0) | minus, 1, b), rounding_mode="trunc")
    return torch.where(b == 0, 0, torch.where(minus, -a, whole))


def sqrt(a: T) -> T:
    """Return the square root by NumPy, rounded right; PyTorch takes MKL's, which is up to 0.74 ULP off."""
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(np.sqrt(a.numpy())))


FUNCTIONS |= {"quotient": quotient, "sqrt": sqrt, "modulo": lambda a, b: torch.where(b == 0, 0, a - quotient(a, b) * b)}


def memory(dtype: str) -> torch.dtype:
    """Return the dtype that *dtype* has in memory, as far as PyTorch can copy it."""
    return HELD[dtype][0] if dtype in HELD else getattr(torch, dtype)


def strided(ref: Ref) -> tuple[T, list[int]]:
    """Return memory as a tensor, and the dimensions along which it is reversed: PyTorch has no negative strides."""
    size = ITEMSIZE[ref.dtype]
    flat = ref.handle[: ref.handle.numel() // size * size].view(memory(ref.dtype))
    back = [k for k, stride in enumerate(ref.strides) if stride < 0]
    offset = ref.offset + sum(ref.strides[k] * (ref.shape[k] - 1) for k in back)
    return flat.as_strided(ref.shape, [abs(stride) for stride in ref.strides], offset), back


class TorchLibrary(Library):
    """Values are tensors on the CPU."""

    functions = FUNCTIONS
    reshape, broadcast = staticmethod(torch.reshape), staticmethod(torch.broadcast_to)
    arange, copy, take = staticmethod(torch.arange), staticmethod(torch.clone), staticmethod(operator.getitem)

    def load(self, ref: Ref) -> T:
        tensor, back = strided(ref)
        return self.hold(tensor.flip(back) if back else tensor, ref.dtype)

    def store(self, ref: Ref, value: T) -> None:
        tensor, back = strided(ref)
        tensor.copy_(value.expand(tensor.shape).flip(back) if back else value)

    def hold(self, value: T, dtype: str) -> T:
        return value.to(torch.int64) & HELD[dtype][1] if dtype in HELD else value.to(memory(dtype))

    def constant(self, number: bool | int | float, dtype: str, rank: int) -> T:
        wide = "float64" if "float" in dtype else "int64"
        return self.cast(torch.full((1,) * rank, number, dtype=memory(wide)), wide, dtype)

    def cast(self, value: T, source: str, dtype: str) -> T:
        if dtype in ("float16", "bfloat16") and ITEMSIZE[source] > ITEMSIZE[dtype]:
            # Rounded once, by way of a float32 rounded to odd; of an int64 beyond 2**53 the last bits become one.
            if source == "int64":
                value = torch.where(value.abs() >> 53 == 0, value, (value & -2048) | ((value & 2047 != 0) * 1024))
            wide, near = value.double(), value.double().float()
            below = torch.where(near.double().abs() > wide.abs(), near.nextafter(torch.zeros_like(near)), near)
            value = (below.view(torch.int32) | (near.double() != wide)).view(torch.float32)
        return value != 0 if dtype == "bool" else self.hold(value, dtype)

    def bitcast(self, value: T, source: str, dtype: str) -> T:
        return self.hold(value.to(memory(source)).contiguous().view(memory(dtype)), dtype)

    def pad(self, value: T, widths: Sequence[tuple[int, int]], fill: bool | int | float) -> T:
        # Not by torch.nn.functional.pad: its fill is a float64, which has too few bits for an int64.
        whole = torch.full([a + n + b for n, (a, b) in zip(value.shape, widths, strict=True)], fill, dtype=value.dtype)
        whole[tuple(slice(a, a + n) for n, (a, _) in zip(value.shape, widths, strict=True))] = value
        return whole

    def first(self, value: T, mask: T) -> int | None:
        return int(value[mask][0]) if mask.any() else None

    def reduce(self, name: str, value: T, axis: int, dtype: str) -> T:
        return (
            getattr(value, name)(axis, dtype=value.dtype)
            if name in ("sum", "prod")
            else getattr(value, f"a{name}")(axis)
        )
