"""Kernels on a device that has an op library and no compiler: each instruction is an op on whole strided tensors.

Here: `run`, and what the driver's ops share with it. Not here: memory, devices.

A value is a tensor with one dimension an axis, of size 1 where it does not vary along it. PyTorch does not compute with
uint16 and uint32: their values are held as int64 and brought back into range after each instruction.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from polygrad.driver import Kernel, Ref, placements
from polygrad.driver.ir import ITEMSIZE
from polygrad.driver.launch import Launch, decode

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


def load(ref: Ref) -> T:
    """Return the value in memory."""
    tensor, back = strided(ref)
    return within(tensor.flip(back) if back else tensor, ref.dtype)


def store(ref: Ref, value: T) -> None:
    """Write *value*, broadcast, to memory."""
    tensor, back = strided(ref)
    tensor.copy_(value.expand(tensor.shape).flip(back) if back else value)


def within(value: T, dtype: str) -> T:
    """Return *value* as values of *dtype* are held: of that dtype, or int64 brought into range."""
    return value.to(torch.int64) & HELD[dtype][1] if dtype in HELD else value.to(memory(dtype))


def cast(a: T, dtype: str) -> T:
    """Return *a* as *dtype*; a wide number is rounded to 16 bits once, by way of a float32 rounded to odd."""
    if dtype in ("float16", "bfloat16") and a.dtype.itemsize > ITEMSIZE[dtype]:
        if a.dtype == torch.int64:  # beyond 2**53 the last bits become one that says whether there are any
            a = torch.where(a.abs() >> 53 == 0, a, (a & -2048) | ((a & 2047 != 0) * 1024))
        wide, near = a.double(), a.double().float()
        below = torch.where(near.double().abs() > wide.abs(), near.nextafter(torch.zeros_like(near)), near)
        a = (below.view(torch.int32) | (near.double() != wide)).view(torch.float32)
    return a != 0 if dtype == "bool" else within(a, dtype)


def constant(value: bool | int | float, dtype: str, rank: int) -> T:
    """Return a number as a value."""
    return cast(torch.full((1,) * rank, value, dtype=torch.float64 if "float" in dtype else torch.int64), dtype)


def along(extents: Sequence[int], axis: int) -> T:
    """Return the index along *axis*."""
    return torch.arange(extents[axis]).view([-1 if k == axis else 1 for k in range(len(extents))])


def read(kernel: Kernel, launch: Launch, position: int, buffers: Sequence[T]) -> T:
    """Return the value of a load without indices: strided memory, and around its windows the fill."""
    number, extents = kernel.body[position].attr, launch.extents
    view, bound = kernel.views[number], launch.views[number]
    windows = {axis: (max(lo, 0), min(hi, extents[axis])) for axis, lo, hi in bound.window}
    inside = [windows.get(k, (0, extents[k] if stride else 1)) for k, stride in enumerate(bound.strides)]
    padded = constant(view.fill, view.dtype, kernel.rank)
    if any(lo >= hi for lo, hi in windows.values()):
        return padded
    offset = bound.offset + sum(stride * lo for stride, (lo, _) in zip(bound.strides, inside, strict=True))
    value = load(Ref(buffers[view.buffer], offset, tuple(hi - lo for lo, hi in inside), bound.strides, view.dtype))
    if windows:
        padded = padded.expand([extents[k] if k in windows else n for k, n in enumerate(value.shape)]).clone()
        padded[tuple(slice(*windows.get(k, (None, None))) for k in range(kernel.rank))] = value
        return padded
    in_place = any(buffers[kernel.views[s.view].buffer] is buffers[view.buffer] for s in kernel.stores)
    return value.clone() if in_place else value


def gather(kernel: Kernel, launch: Launch, position: int, indices: Sequence[T], buffers: Sequence[T]) -> T:
    """Return the value of a load with indices, element by element; the first bad index is reported."""
    number, extents, rank = kernel.body[position].attr, launch.extents, kernel.rank
    bound, handle, dtype = launch.views[number], buffers[kernel.views[number].buffer], kernel.views[number].dtype
    address, inside = torch.full((1,) * rank, bound.offset), torch.ones((1,) * rank, dtype=torch.bool)
    for axis, stride in enumerate(bound.strides):
        address = address + stride * along(extents, axis) if stride else address
    for axis, lo, hi in bound.window:
        inside = inside & (along(extents, axis) >= lo) & (along(extents, axis) < hi)
    for index, (stride, size) in zip([index.long() for index in indices], bound.gathers, strict=True):
        bad, status = ((index < -size) | (index >= size)) & inside, buffers[kernel.status].view(torch.int32)
        if bad.any() and status[0] == 0:
            first = int(index.expand(bad.shape)[bad][0])
            status[:4] = torch.tensor((launch.tag, position, first, first >> 32)).to(torch.int32)
        address = address + stride * torch.where(index < 0, index + size, index).clamp(0, size - 1)
    flat = load(Ref(handle, 0, (handle.numel() // ITEMSIZE[dtype],), (1,), dtype))
    return torch.where(inside, flat[torch.where(inside, address, 0)], constant(kernel.views[number].fill, dtype, rank))


def write(kernel: Kernel, launch: Launch, number: int, value: T, ref: Ref) -> None:
    """Store a value in *ref*, its memory at the origin; a partial one is summed over rows part by part."""
    bound, reduced = launch.views[number], launch.extents[kernel.parallel :]
    if not kernel.views[number].partial:
        store(ref, value)
        return
    rows = value.expand(launch.extents).reshape(-1, *reduced)
    for p, part in enumerate(torch.split(rows, -(-len(rows) // bound.parts))):
        place = bound.offset + p * bound.part_stride, reduced, bound.strides[kernel.parallel :]
        store(Ref(ref.handle, *place, ref.dtype), part.sum(0, dtype=value.dtype))


def run(kernel: Kernel, buffers: Sequence[T], ints: tuple[int, ...], scalars: Sequence[Any]) -> None:
    """Run a kernel: every value, then every store."""
    launch, values, parallel = decode(kernel, ints), list[T](), kernel.parallel
    rows, reduced = launch.extents[:parallel], launch.extents[parallel:]
    for position, (op, dtype, places, attr, _) in enumerate(kernel.body):
        args = [values[a] for a in places]
        if op == "load":
            value = gather(kernel, launch, position, args, buffers) if args else read(kernel, launch, position, buffers)
        elif op in ("const", "scalar"):
            value = constant(attr if op == "const" else scalars[attr], dtype, kernel.rank)
        elif op == "iota":
            value = along(launch.extents, attr)
        elif op == "cast":
            value = cast(args[0], dtype)
        elif op == "bitcast":
            value = args[0].to(memory(kernel.body[places[0]].dtype)).contiguous().view(memory(dtype))
        elif op == "reduce":
            flat = args[0].expand(*args[0].shape[:parallel], *reduced).flatten(parallel)
            value = (
                getattr(flat, attr)(-1, dtype=flat.dtype) if attr in ("sum", "prod") else getattr(flat, f"a{attr}")(-1)
            )
            value = value.reshape(*value.shape, *(1,) * len(reduced))
        else:
            value = FUNCTIONS[op](*args)
        values.append(within(value, dtype))
    for number, v in kernel.stores:
        shape = (*rows, *reduced) if placements(kernel)[number].full else (*rows, *(1,) * len(reduced))
        handle, dtype = buffers[kernel.views[v].buffer], kernel.views[v].dtype
        write(
            kernel,
            launch,
            v,
            values[number],
            Ref(handle, launch.views[v].offset, shape, launch.views[v].strides, dtype),
        )
