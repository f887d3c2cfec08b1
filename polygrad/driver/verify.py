"""The guard of the fused IR: nothing that is not well formed reaches a driver.

Here: `verify` (structure, once for each program that is built) and `verify_launch` (the ints
and scalars of one launch).
Not here: what a kernel computes (`oracle.py`), what a device can take (its limits are the schedule's business).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from polygrad.driver.ir import (
    ARITHMETIC,
    DTYPES,
    ITEMSIZE,
    REDUCTIONS,
    SCALAR_OPS,
    STORAGE,
    Instr,
    Kernel,
    Store,
    View,
    kind,
    placements,
)
from polygrad.driver.launch import BoundView, Launch, decode
from polygrad.driver.regions import Region, disjoint, injective
from polygrad.errors import PolygradError

LEAST_INT32, GREATEST_INT32 = -(2**31), 2**31 - 1
STATUS_WORDS = 4


class VerifyError(PolygradError, ValueError):
    """A kernel or a launch breaks a rule of the fused IR: a mistake of whoever built it, never of the user."""


def verify(kernel: Kernel) -> None:
    """Raise unless *kernel* is well formed; costs a few microseconds an instruction.

    Raises
    ------
    VerifyError
        One sentence that names the instruction, view or store and the rule.

    Examples
    --------
    >>> verify(Kernel(1, 0, ("float32",), (View(0, "float32", (1,)),), (), (Instr("iota", "float32", (), 0),), ()))
    Traceback (most recent call last):
    polygrad.driver.verify.VerifyError: %0 = iota: its dtype is float32; it must be int32 or int64
    """
    _header(kernel)
    for number, view in enumerate(kernel.views):
        _view(kernel, number, view)
    for position, instr in enumerate(kernel.body):
        _instruction(kernel, position, instr)
    places = placements(kernel)  # not before every instruction is known to be well formed
    for position, instr in enumerate(kernel.body):
        if instr.op == "reduce" and not places[instr.args[0]].full:
            raise VerifyError(
                f"%{position} = reduce: its operand %{instr.args[0]} is a ROW value; it must be a FULL one"
            )
    if not kernel.stores:
        raise VerifyError("the kernel stores nothing; a kernel without a store has no effect")
    for position, store in enumerate(kernel.stores):
        _store(kernel, position, store)
    _status(kernel)


def _header(kernel: Kernel) -> None:
    if not (_is_int(kernel.parallel) and _is_int(kernel.reduced) and kernel.parallel >= 0 and kernel.reduced >= 0):
        raise VerifyError(f"the kernel has {kernel.parallel} parallel and {kernel.reduced} reduced axes; both are >= 0")
    for what, dtypes in (("buffer", kernel.buffers), ("scalar", kernel.scalars)):
        for number, dtype in enumerate(dtypes):
            if dtype not in DTYPES:
                raise VerifyError(f"{what} {number} has dtype {dtype!r}; the IR has {', '.join(DTYPES)}")


def _view(kernel: Kernel, number: int, view: View) -> None:
    def wrong(why: str) -> NoReturn:
        raise VerifyError(f"view {number}: {why}")

    if not (_is_int(view.buffer) and 0 <= view.buffer < len(kernel.buffers)):
        wrong(f"there is no buffer {view.buffer}; the kernel has {len(kernel.buffers)}")
    if view.buffer == kernel.status:
        wrong(f"it addresses buffer {view.buffer}, the status word, which only gathers write")
    if view.dtype != kernel.buffers[view.buffer]:
        wrong(
            f"its dtype is {view.dtype}, that of buffer {view.buffer} is {kernel.buffers[view.buffer]}; they must agree"
        )
    if len(view.strides) != kernel.rank:
        wrong(f"it has {len(view.strides)} strides; the kernel has {kernel.rank} axes")
    if any(not (stride is None or (_is_int(stride) and stride in (0, 1))) for stride in view.strides):
        wrong(f"its strides are {view.strides}; each is 0, 1 or None (a launch argument)")
    if any(not 0 <= axis < kernel.rank for axis in view.window) or len(set(view.window)) != len(view.window):
        wrong(f"its window names axes {view.window}; each is an axis of the kernel's {kernel.rank}, named once")
    if not (_is_int(view.gathers) and view.gathers >= 0):
        wrong(f"it has {view.gathers} gathers; there are 0 or more")
    _literal(view.fill, view.dtype, lambda why: wrong(f"its fill {why}"))


def _instruction(kernel: Kernel, position: int, instr: Instr) -> None:
    def wrong(why: str) -> NoReturn:
        raise VerifyError(f"%{position} = {instr.op}: {why}")

    if instr.dtype not in DTYPES:
        wrong(f"its dtype is {instr.dtype!r}; the IR has {', '.join(DTYPES)}")
    for arg in instr.args:
        if not (_is_int(arg) and 0 <= arg < position):
            wrong(f"it uses %{arg}, which does not come before it")
    if instr.guard != -1:
        if instr.op != "load":
            wrong("it has a guard; only a load may have one")
        if not 0 <= instr.guard < position:
            wrong(f"its guard is %{instr.guard}, which does not come before it")
        if kernel.body[instr.guard].dtype != "bool":
            wrong(f"its guard %{instr.guard} is {kernel.body[instr.guard].dtype}; it must be bool")
    if instr.op in SCALAR_OPS:
        _scalar_op(kernel, instr, wrong)
    elif instr.op in _RULES:
        _RULES[instr.op](kernel, instr, wrong)
    else:
        wrong("there is no such instruction; ir.py lists them")


Wrong = Callable[[str], NoReturn]


def _arity(instr: Instr, count: int, wrong: Wrong) -> None:
    if len(instr.args) != count:
        wrong(f"it has {len(instr.args)} operands; it takes {count}")


def _no_attr(instr: Instr, wrong: Wrong) -> None:
    if instr.attr is not None:
        wrong(f"its attr is {instr.attr!r}; it takes none")


def _scalar_op(kernel: Kernel, instr: Instr, wrong: Wrong) -> None:
    op = SCALAR_OPS[instr.op]
    _arity(instr, op.arity, wrong)
    _no_attr(instr, wrong)
    dtypes = [kernel.body[a].dtype for a in instr.args]
    if len(set(dtypes)) > 1:
        wrong(f"its operands are {' and '.join(dtypes)}; they must have one dtype")
    if dtypes[0] in STORAGE:
        wrong(f"its operands are {dtypes[0]}, which is storage only; cast them to float32 first")
    if kind(dtypes[0]) not in op.kinds.split():
        wrong(f"its operands are {dtypes[0]}; it takes {op.kinds.replace(' ', ' or ')}")
    result = "bool" if op.compares else dtypes[0]
    if instr.dtype != result:
        wrong(f"its dtype is {instr.dtype}; on {dtypes[0]} operands it is {result}")


def _load(kernel: Kernel, instr: Instr, wrong: Wrong) -> None:
    if not (_is_int(instr.attr) and 0 <= instr.attr < len(kernel.views)):
        wrong(f"there is no view {instr.attr!r}; the kernel has {len(kernel.views)}")
    view = kernel.views[instr.attr]
    if view.partial:
        wrong(f"view {instr.attr} is partial; only a store may use it")
    if view.dtype != instr.dtype:
        wrong(f"its dtype is {instr.dtype}, that of view {instr.attr} is {view.dtype}; they must agree")
    _arity(instr, view.gathers, wrong)
    for arg in instr.args:
        if kind(kernel.body[arg].dtype) != "int":
            wrong(f"its gather index %{arg} is {kernel.body[arg].dtype}; it must be an integer")


def _launch_scalar(kernel: Kernel, instr: Instr, wrong: Wrong) -> None:
    _arity(instr, 0, wrong)
    if not (_is_int(instr.attr) and 0 <= instr.attr < len(kernel.scalars)):
        wrong(f"there is no scalar {instr.attr!r}; the kernel has {len(kernel.scalars)}")
    if instr.dtype != kernel.scalars[instr.attr]:
        wrong(
            f"its dtype is {instr.dtype}, that of scalar {instr.attr} is {kernel.scalars[instr.attr]}; they must agree"
        )


def _const(kernel: Kernel, instr: Instr, wrong: Wrong) -> None:  # noqa: ARG001  one signature for all rules
    _arity(instr, 0, wrong)
    _literal(instr.attr, instr.dtype, lambda why: wrong(f"its value {why}"))


def _iota(kernel: Kernel, instr: Instr, wrong: Wrong) -> None:
    _arity(instr, 0, wrong)
    if instr.dtype not in ("int32", "int64"):
        wrong(f"its dtype is {instr.dtype}; it must be int32 or int64")
    if not (_is_int(instr.attr) and 0 <= instr.attr < kernel.rank):
        wrong(f"there is no axis {instr.attr!r}; the kernel has {kernel.rank}")


def _cast(kernel: Kernel, instr: Instr, wrong: Wrong) -> None:  # noqa: ARG001  one signature for all rules
    _arity(instr, 1, wrong)
    _no_attr(instr, wrong)


def _bitcast(kernel: Kernel, instr: Instr, wrong: Wrong) -> None:
    _cast(kernel, instr, wrong)
    source = kernel.body[instr.args[0]].dtype
    if "bool" in (source, instr.dtype):
        wrong(f"it goes from {source} to {instr.dtype}; the bits of a bool are the driver's own, use cast")
    if ITEMSIZE[source] != ITEMSIZE[instr.dtype]:
        wrong(f"it goes from {source} to {instr.dtype}; both must have one width")


def _where(kernel: Kernel, instr: Instr, wrong: Wrong) -> None:
    _arity(instr, 3, wrong)
    _no_attr(instr, wrong)
    condition, *arms = (kernel.body[a].dtype for a in instr.args)
    if condition != "bool":
        wrong(f"its condition %{instr.args[0]} is {condition}; it must be bool")
    if any(arm != instr.dtype for arm in arms):
        wrong(f"its arms are {' and '.join(arms)} and its dtype is {instr.dtype}; all three must agree")


def _reduce(kernel: Kernel, instr: Instr, wrong: Wrong) -> None:
    _arity(instr, 1, wrong)
    if instr.attr not in REDUCTIONS:
        wrong(f"its attr is {instr.attr!r}; it is one of {', '.join(REDUCTIONS)}")
    source = kernel.body[instr.args[0]].dtype
    if source not in ARITHMETIC:
        wrong(f"its operand is {source}, which is storage only; cast it to float32 first")
    if source == "bool" and instr.attr in ("sum", "prod"):
        wrong(f"{instr.attr} does not take bool; cast it to an integer first")
    if instr.dtype != source:
        wrong(f"its dtype is {instr.dtype}, that of its operand is {source}; they must agree")


_RULES: dict[str, Callable[[Kernel, Instr, Wrong], None]] = {
    "load": _load, "scalar": _launch_scalar, "const": _const, "iota": _iota,
    "cast": _cast, "bitcast": _bitcast, "where": _where, "reduce": _reduce,
}  # fmt: skip


def _literal(value: Any, dtype: str, wrong: Callable[[str], NoReturn]) -> None:
    """Refuse a literal that does not fit *dtype*, or that cannot be part of a cache key."""
    if isinstance(value, float):
        if value == 0 and math.copysign(1, value) < 0:
            wrong("is -0.0, which equals 0.0 as part of a cache key; pass it as a launch scalar")
        if math.isnan(value) and value is not math.nan:  # noqa: PLW0177  which object it is matters, not its value
            wrong("is a NaN other than math.nan, the only one that equals itself as part of a cache key; give that one")
    _scalar(value, dtype, wrong)


def _scalar(value: Any, dtype: str, wrong: Callable[[str], NoReturn]) -> None:
    of = kind(dtype)
    if of == "bool":
        if not (isinstance(value, int) and 0 <= value <= 1):
            wrong(f"is {value!r}; a bool is True or False")
    elif of == "int":
        bits = 8 * ITEMSIZE[dtype]
        least, beyond = (0, 2**bits) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        if not (_is_int(value) and least <= value < beyond):
            wrong(f"is {value!r}; it must be an int that {dtype} can hold")
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        wrong(f"is {value!r}; a {dtype} is given as a float")


def _store(kernel: Kernel, position: int, store: Store) -> None:
    def wrong(why: str) -> NoReturn:
        raise VerifyError(f"store {position} of %{store.value}: {why}")

    if not 0 <= store.value < len(kernel.body):
        wrong(f"the kernel has {len(kernel.body)} instructions")
    if not 0 <= store.view < len(kernel.views):
        wrong(f"there is no view {store.view}; the kernel has {len(kernel.views)}")
    view, dtype, full = kernel.views[store.view], kernel.body[store.value].dtype, placements(kernel)[store.value].full
    if dtype != view.dtype:
        wrong(f"the value is {dtype}, view {store.view} is {view.dtype}; they must agree")
    if view.window or view.gathers:
        wrong(f"view {store.view} has a window or gathers; only a load may use it")
    if any(other.view == store.view for other in kernel.stores[:position]):
        wrong(f"view {store.view} is stored to twice; stores may not overlap")
    if view.partial:
        if not full:
            wrong("it is partial and the value is a ROW value; only a FULL value is summed over parallel axes")
        if dtype == "bool" or dtype in STORAGE:
            wrong(f"it is partial and the value is {dtype}; a sum takes an arithmetic number")
        if any(stride != 0 for stride in view.strides[: kernel.parallel]):
            wrong(f"it is partial and its strides are {view.strides}; along parallel axes they must be 0")
    elif not full and any(stride != 0 for stride in view.strides[kernel.parallel :]):
        wrong(f"it stores a ROW value and its strides are {view.strides}; along reduced axes they must be 0")


def _status(kernel: Kernel) -> None:
    gathers = any(instr.op == "load" and instr.args for instr in kernel.body)
    if gathers != (kernel.status >= 0):
        raise VerifyError(
            "the kernel gathers and has no status word; it needs one for bad indices"
            if gathers
            else f"buffer {kernel.status} is declared a status word, but no load gathers"
        )
    if kernel.status >= 0 and (kernel.status >= len(kernel.buffers) or kernel.buffers[kernel.status] != "int32"):
        raise VerifyError(f"the status word is buffer {kernel.status}; that must be an int32 buffer of the kernel")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def verify_launch(
    kernel: Kernel, sizes: Sequence[int], ints: Sequence[int], scalars: Sequence[bool | int | float]
) -> None:
    """Raise unless a launch of a verified *kernel* stays inside its buffers and writes each element at most once.

    Parameters
    ----------
    kernel : Kernel
    sizes : sequence of int
        The elements of each buffer. Different buffers are taken to be different memory.
    ints, scalars : sequence
        The launch arguments.

    Raises
    ------
    VerifyError
        One sentence that names the axis, view or store.
    """
    launch = _arguments(kernel, sizes, ints, scalars)
    stored: list[tuple[str, int, Region]] = []
    for position, store in enumerate(kernel.stores):
        name = f"store {position} of %{store.value}"
        bound = launch.views[store.view]
        region = _stored_region(kernel, launch, store, name)
        _in_bounds(region, sizes[kernel.views[store.view].buffer], name, bound)
        buffer = kernel.views[store.view].buffer
        for other, where, taken in stored:
            if where == buffer and not disjoint(region, taken):
                raise VerifyError(f"{name} may overlap {other} in buffer {buffer}; stores write disjoint elements")
        stored.append((name, buffer, region))
    for position, instr in enumerate(kernel.body):
        if instr.op == "load":
            _loaded(kernel, launch, position, sizes, stored)


def _arguments(kernel: Kernel, sizes: Sequence[int], ints: Sequence[int], scalars: Sequence[Any]) -> Launch:
    for what, have, need in (
        ("buffers", sizes, kernel.buffers), ("ints", ints, kernel.int_names), ("scalars", scalars, kernel.scalars),
    ):  # fmt: skip
        if len(have) != len(need):
            raise VerifyError(f"the launch has {len(have)} {what}; the kernel takes {len(need)}")
    for name, value in zip(kernel.int_names, ints, strict=True):
        if not _is_int(value):
            raise VerifyError(f"launch int {name} is {value!r}; it must be a Python int")
    for slot, (dtype, value) in enumerate(zip(kernel.scalars, scalars, strict=True)):
        _scalar(value, dtype, _refuse(f"scalar {slot}"))
    launch = decode(kernel, ints)
    for axis, extent in enumerate(launch.extents):
        if extent < 1:
            raise VerifyError(f"axis {axis} has extent {extent}; empty work never reaches a driver")
    for position, instr in enumerate(kernel.body):
        if instr.op == "iota" and instr.dtype == "int32" and launch.extents[instr.attr] - 1 > GREATEST_INT32:
            raise VerifyError(
                f"%{position} = iota: axis {instr.attr} has extent {launch.extents[instr.attr]}; use int64"
            )
    if kernel.status >= 0:
        if launch.tag == 0 or not LEAST_INT32 <= launch.tag <= GREATEST_INT32:
            raise VerifyError(f"the tag is {launch.tag}; it must be an int32 other than 0")
        if sizes[kernel.status] < STATUS_WORDS:
            raise VerifyError(f"the status buffer has {sizes[kernel.status]} elements; it needs {STATUS_WORDS}")
    return launch


def _refuse(name: str) -> Callable[[str], NoReturn]:
    def wrong(why: str) -> NoReturn:
        raise VerifyError(f"{name} {why}")

    return wrong


def _stored_region(kernel: Kernel, launch: Launch, store: Store, name: str) -> Region:
    bound, view = launch.views[store.view], kernel.views[store.view]
    first, last = 0, kernel.rank
    extra: tuple[tuple[int, int], ...] = ()
    if view.partial:
        first = kernel.parallel
        extra = ((bound.part_stride, bound.parts),)
        rows = math.prod(launch.extents[: kernel.parallel])
        if not 1 <= bound.parts <= rows or (bound.parts - 1) * -(-rows // bound.parts) >= rows:
            raise VerifyError(f"{name}: {bound.parts} parts of {rows} rows; no part may be empty")
    elif not placements(kernel)[store.value].full:
        last = kernel.parallel
    axes = (*zip(bound.strides[first:last], launch.extents[first:last], strict=True), *extra)
    region = Region.of(bound.offset, axes)
    if any(extent > 1 and stride == 0 for stride, extent in axes) or not injective(region.axes):
        raise VerifyError(
            f"{name}: strides {tuple(s for s, _ in axes)} over extents {tuple(n for _, n in axes)} may write one "
            "element twice; a store must be injective"
        )
    return region


def _in_bounds(region: Region, size: int, name: str, bound: BoundView) -> None:
    if region.base < 0 or region.top >= size:
        raise VerifyError(
            f"{name}: addresses {region.base} to {region.top} leave a buffer of {size} elements "
            f"(offset {bound.offset}, strides {bound.strides})"
        )


def _loaded(
    kernel: Kernel, launch: Launch, position: int, sizes: Sequence[int], stored: Sequence[tuple[str, int, Region]]
) -> None:
    number = kernel.body[position].attr
    view, bound, name = kernel.views[number], launch.views[number], f"%{position} = load of view {number}"
    if any(size < 1 for _, size in bound.gathers):
        raise VerifyError(
            f"{name}: it gathers from an axis of size {min(n for _, n in bound.gathers)}; there is no index"
        )
    lows, extents = [0] * kernel.rank, list(launch.extents)
    for axis, lo, hi in bound.window:
        lows[axis], extents[axis] = max(lo, 0), min(hi, launch.extents[axis]) - max(lo, 0)
    if any(extent < 1 for extent in extents):
        return  # the window is empty: nothing is read
    offset = bound.offset + sum(stride * low for stride, low in zip(bound.strides, lows, strict=True))
    region = Region.of(offset, (*zip(bound.strides, extents, strict=True), *bound.gathers))
    _in_bounds(region, sizes[view.buffer], name, bound)
    for store, (other, buffer, taken) in zip(kernel.stores, stored, strict=True):
        if buffer != view.buffer or disjoint(region, taken):
            continue
        same = _moves(launch, number) == _moves(launch, store.view) and not (bound.window or bound.gathers)
        if not same or kernel.reduced or kernel.views[store.view].partial:
            raise VerifyError(
                f"{name}: it may overlap {other} in buffer {buffer}; a kernel writes what it reads only through an "
                "identical view and without reduced axes"
            )


def _moves(launch: Launch, number: int) -> tuple[int, tuple[int, ...]]:
    """Return offset and strides, those of axes of extent 1 as 0: equal if two views address alike."""
    bound = launch.views[number]
    return bound.offset, tuple(s if n > 1 else 0 for s, n in zip(bound.strides, launch.extents, strict=True))
