"""What a kernel means: an interpreter of the fused IR, one instruction at a time over whole NumPy arrays.

Here: the definition. Where `ir.py` says in words what an instruction does, this module says it so that it can be run.
Not here: speed, threads, blocks; whether a kernel is well formed (`verify.py`).

A value is an array with one dimension an axis, of the axis' extent or 1 where the value does not vary along it. Every
index is computed and checked, so nothing outside a buffer is read or written, whatever the kernel. What need not be
correctly rounded (exp, sum, ...) is evaluated one format wider and rounded once: the closest reference there is.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from polygrad.driver.ir import Instr, Kernel, placements
from polygrad.driver.launch import BoundView, Launch, decode

Array = np.ndarray[Any, Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
GREATEST = np.uint64(2**63 - 1)
FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
LONGDOUBLE = np.dtype(np.longdouble)
WIDER: dict[str, np.dtype[Any]] = {"float16": FLOAT64, "bfloat16": FLOAT64, "float32": FLOAT64, "float64": LONGDOUBLE}


def run(
    kernel: Kernel,
    buffers: Sequence[Array],
    ints: Sequence[int],
    scalars: Sequence[bool | int | float],
    exact: bool = False,
) -> None:
    """Run *kernel* once, writing its stores (and its status word) into *buffers*.

    Parameters
    ----------
    kernel : Kernel
    buffers : sequence of 1-D ndarray
        One for each entry of ``kernel.buffers``, of that dtype (bfloat16 is ml_dtypes').
    ints, scalars : sequence
        The launch arguments, as `ir.py` describes them.
    exact : bool
        Compute floats one format wider: float16, bfloat16 and float32 in float64, float64 in longdouble, casts between
        floats without rounding. Float buffers may then be of the wider dtype, and the results stay unrounded.

    Raises
    ------
    IndexError
        If a load or store would leave its buffer.

    Examples
    --------
    >>> from polygrad.driver.ir import Store, View
    >>> double = Kernel(1, 0, ("int32", "int32"), (View(0, "int32", (1,)), View(1, "int32", (1,))), (),
    ...                 (Instr("load", "int32", (), 0), Instr("add", "int32", (0, 0))), (Store(1, 1),))
    >>> out = np.zeros(3, np.int32)
    >>> run(double, [np.array([1, 2, 3], np.int32), out], (3, 0, 0), ())
    >>> out
    array([2, 4, 6], dtype=int32)
    """
    launch = decode(kernel, ints)
    values = evaluate(kernel, buffers, ints, scalars, exact=exact)
    with np.errstate(all="ignore"):
        for store in kernel.stores:
            view = kernel.views[store.view]
            address, value = written(
                kernel, launch, store.view, values[store.value], placements(kernel)[store.value].full
            )
            _check(kernel, launch, store.view, address, len(buffers[view.buffer]))
            buffers[view.buffer][address] = value


def evaluate(
    kernel: Kernel, buffers: Sequence[Array], ints: Sequence[int], scalars: Sequence[Any], *, exact: bool = False
) -> list[Array]:
    """Return the value of every instruction of *kernel*; writes nothing but the status word."""
    launch = decode(kernel, ints)
    values: list[Array] = []
    with np.errstate(all="ignore"):
        for position, instr in enumerate(kernel.body):
            args = [values[a] for a in instr.args]
            if instr.op == "load":
                made = np.True_ if instr.guard < 0 else values[instr.guard]
                value = _load(kernel, launch, position, args, buffers, made)
                value = value.astype(compute_dtype(instr.dtype, exact=exact), copy=False)
            elif instr.op == "iota":
                value = along(launch.extents, instr.attr).astype(instr.dtype)
            elif instr.op in ("const", "scalar"):
                literal = instr.attr if instr.op == "const" else scalars[instr.attr]
                value = np.full((1,) * kernel.rank, literal, compute_dtype(instr.dtype, exact=exact))
            elif instr.op == "reduce":
                value = reduce(instr, args[0], launch.extents, kernel.parallel, exact=exact)
            else:
                value = compute(instr, args, exact=exact)
            values.append(value)
    return values


def compute_dtype(name: str, *, exact: bool = False) -> np.dtype[Any]:
    """Return the NumPy dtype that values of dtype *name* have."""
    if exact and name in WIDER:
        return WIDER[name]
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def compute(instr: Instr, args: Sequence[Array], *, exact: bool = False) -> Array:
    """Return the value of an instruction that depends on nothing but its operands: scalar ops, casts, where."""
    target = compute_dtype(instr.dtype, exact=exact)
    with np.errstate(all="ignore"):
        if instr.op == "cast":
            return _cast(args[0], target)
        if instr.op == "bitcast":
            return _bitcast(args[0], instr.dtype).astype(target, copy=False)
        if instr.op == "where":
            return np.where(args[0], args[1], args[2])
        if instr.op == "nextafter":  # the neighbours of the declared dtype, exact or not
            return np.asarray(np.nextafter(*(a.astype(instr.dtype) for a in args))).astype(target)
        if instr.op in ROUNDED_ONCE:
            wide = (a.astype(WIDER.get(a.dtype.name, a.dtype)) for a in args)
            return np.asarray(FUNCTIONS[instr.op](*wide)).astype(target)
        return np.asarray(FUNCTIONS[instr.op](*args))


def reduce(instr: Instr, a: Array, extents: Sequence[int], parallel: int, *, exact: bool = False) -> Array:
    """Return *a* reduced over all axes from *parallel* on, which stay as dimensions of size 1."""
    axes = tuple(range(parallel, len(extents)))
    full = np.broadcast_to(a, (*a.shape[:parallel], *extents[parallel:]))
    target = compute_dtype(instr.dtype, exact=exact)
    with np.errstate(all="ignore"):
        return _REDUCERS[instr.attr](full, axes).astype(target)


def _sum(a: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.add.reduce(a, axis=axes, dtype=WIDER.get(a.dtype.name, a.dtype), keepdims=True))


def _prod(a: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.multiply.reduce(a, axis=axes, dtype=WIDER.get(a.dtype.name, a.dtype), keepdims=True))


_REDUCERS: dict[str, Callable[[Array, tuple[int, ...]], Array]] = {
    "sum": _sum,
    "prod": _prod,
    "max": lambda a, axes: np.asarray(np.maximum.reduce(a, axis=axes, keepdims=True)),
    "min": lambda a, axes: np.asarray(np.minimum.reduce(a, axis=axes, keepdims=True)),
}


def _cast(a: Array, target: np.dtype[Any]) -> Array:
    if target == np.bool_:
        return np.asarray(a.astype(FLOAT32) != 0) if a.dtype == BFLOAT16 else np.asarray(a != 0)
    if target == BFLOAT16 and a.dtype.itemsize > BFLOAT16.itemsize and a.dtype != FLOAT32:
        return _through_odd(a).astype(BFLOAT16)
    return a.astype(target)


def _through_odd(a: Array) -> Array:
    """Round *a* to float32 "to odd", so that rounding it again to bfloat16 gives what one rounding would have given."""
    wide = a.astype(LONGDOUBLE)
    near = a.astype(FLOAT32)
    below = np.where(np.abs(near.astype(LONGDOUBLE)) > np.abs(wide), np.nextafter(near, np.float32(0)), near)
    inexact = np.asarray(below.astype(LONGDOUBLE) != wide)
    odd = np.bitwise_or(np.ascontiguousarray(below).view(np.uint32), inexact, dtype=np.uint32)
    return np.asarray(odd).view(FLOAT32).reshape(a.shape)


def _bitcast(a: Array, dtype: str) -> Array:
    """Reinterpret bits; a value that `exact` holds in a wider format is rounded to the dtype of that width first."""
    target = compute_dtype(dtype)
    if a.dtype.kind == "f" and a.dtype.itemsize != target.itemsize:
        a = a.astype(f"float{8 * target.itemsize}")
    return np.ascontiguousarray(a).view(target).reshape(a.shape)


def _quotient(a: Array, b: Array) -> Array:
    divisor = np.where(b == 0, np.ones_like(b), b)
    return np.where(b == 0, np.zeros_like(a), (a - np.fmod(a, divisor)) // divisor)


def _modulo(a: Array, b: Array) -> Array:
    return np.where(b == 0, np.zeros_like(a), np.fmod(a, np.where(b == 0, np.ones_like(b), b)))


def _left_shift(a: Array, b: Array) -> Array:
    beyond = (b < 0) | (b >= 8 * a.dtype.itemsize)
    return np.where(beyond, np.zeros_like(a), np.left_shift(a, np.where(beyond, np.zeros_like(b), b)))


def _right_shift(a: Array, b: Array) -> Array:
    beyond = (b < 0) | (b >= 8 * a.dtype.itemsize)
    sign = np.where(a < 0, np.invert(np.zeros_like(a)), np.zeros_like(a))
    return np.where(beyond, sign, np.right_shift(a, np.where(beyond, np.zeros_like(b), b)))


# NumPy has no erf; math.erf is good to the last digit of float64, so `exact` float64 is no wider than that here.
_erf = np.vectorize(math.erf, otypes=[np.float64])

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "negative": np.negative, "divide": np.divide,
    "quotient": _quotient, "modulo": _modulo, "maximum": np.maximum, "minimum": np.minimum,
    "less": np.less, "less_equal": np.less_equal, "equal": np.equal, "not_equal": np.not_equal,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "bitwise_invert": np.invert, "bitwise_left_shift": _left_shift, "bitwise_right_shift": _right_shift,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint, "sqrt": np.sqrt,
    "absolute": np.absolute, "copysign": np.copysign, "nextafter": np.nextafter, "rsqrt": lambda a: 1 / np.sqrt(a),
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "pow": np.power, "erf": _erf, "fmod": np.fmod,
}  # fmt: skip

ROUNDED_ONCE = frozenset(
    (
        *("rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "erf"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
        *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    )
)


def along(extents: Sequence[int], axis: int) -> Array:
    """Return the index along *axis*, as an array that varies along that axis alone."""
    shape = [1] * len(extents)
    shape[axis] = extents[axis]
    return np.arange(extents[axis], dtype=np.int64).reshape(shape)


def addresses(bound: BoundView, extents: Sequence[int]) -> Array:
    """Return offset + sum(stride * index) at every index, before gathers and parts."""
    address = np.full((1,) * len(extents), bound.offset, np.int64)
    for axis, stride in enumerate(bound.strides):
        if stride:
            address = address + stride * along(extents, axis)
    return address


def inside(bound: BoundView, extents: Sequence[int]) -> Array:
    """Return where every index lies in its window."""
    mask = np.ones((1,) * len(extents), np.bool_)
    for axis, lo, hi in bound.window:
        index = along(extents, axis)
        mask = mask & (lo <= index) & (index < hi)
    return mask


def _load(
    kernel: Kernel, launch: Launch, position: int, indices: Sequence[Array], buffers: Sequence[Array], made: Any
) -> Array:
    """Return what a load gives; *made* says where its guard is true, and with it whether a bad index is reported."""
    number = kernel.body[position].attr
    view, bound = kernel.views[number], launch.views[number]
    address, mask = addresses(bound, launch.extents), inside(bound, launch.extents)
    for index, (stride, size) in zip(indices, bound.gathers, strict=True):
        # Only uint64 holds indices beyond int64, and the greatest int64 is as far outside of any axis as they are.
        signed = (np.minimum(index, GREATEST) if index.dtype == np.uint64 else index).astype(np.int64)
        _report(kernel, launch, position, index, ((signed < -size) | (signed >= size)) & mask & made, buffers)
        address = address + stride * _clamped(signed, size)
    buffer = buffers[view.buffer]
    address, mask = np.broadcast_arrays(address, mask)
    _check(kernel, launch, number, address[mask], len(buffer))
    value = np.full(address.shape, view.fill, buffer.dtype)
    value[mask] = buffer[address[mask]]
    return value


def _clamped(index: Array, size: int) -> Array:
    """Return the place that *index* stands for: from the end if negative, the nearest there is if there is none."""
    return np.clip(np.where(index < 0, index + size, index), 0, size - 1)


def _report(kernel: Kernel, launch: Launch, position: int, index: Array, bad: Array, buffers: Sequence[Array]) -> None:
    """Write the first bad index, in C order, to the status word, unless one is there already."""
    status = buffers[kernel.status]
    if bad.any() and status[0] == 0:
        first = int(np.broadcast_to(index, bad.shape)[bad][0])
        low, high = (np.uint32(first >> shift & 0xFFFFFFFF).astype(np.int32) for shift in (0, 32))
        status[:4] = launch.tag, position, low, high


def written(kernel: Kernel, launch: Launch, number: int, value: Array, full: bool) -> tuple[Array, Array]:
    """Return the addresses that a store through view *number* writes, and what it writes there."""
    bound, extents, parallel = launch.views[number], launch.extents, kernel.parallel
    address = addresses(bound, extents)
    if not kernel.views[number].partial:
        shape = extents if full else (*extents[:parallel], *(1,) * kernel.reduced)
        return np.broadcast_to(address, shape), np.broadcast_to(value, shape)
    rows = np.broadcast_to(value, extents).reshape(-1, *extents[parallel:])
    height = -(-len(rows) // bound.parts)
    parts = [_sum(rows[p * height : (p + 1) * height], (0,)) for p in range(bound.parts)]
    step = bound.part_stride * np.arange(bound.parts, dtype=np.int64).reshape(-1, *(1,) * kernel.reduced)
    address = address.reshape(address.shape[parallel:])[None] + step
    value = np.concatenate(parts).astype(value.dtype)
    return np.broadcast_to(address, value.shape), value


def _check(kernel: Kernel, launch: Launch, number: int, address: Array, size: int) -> None:
    if address.size and (address.min() < 0 or address.max() >= size):
        bound = launch.views[number]
        reach = [abs(s) * (n - 1) for s, n in zip(bound.strides, launch.extents, strict=True)]
        widest = f"; axis {reach.index(max(reach))} reaches furthest" if reach else ""
        raise IndexError(
            f"view {number} addresses elements {address.min()} to {address.max()} of buffer "
            f"{kernel.views[number].buffer}, which has {size} (offset {bound.offset}, strides {bound.strides}, "
            f"extents {launch.extents}){widest}"
        )
