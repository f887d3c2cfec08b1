"""The mutants of levels 0 to 3, each with the checks that must find it.

Here: the list. Not here: how mutants are made (`mutants.py`) and tried (`selftest.py`).
"""

import dataclasses
import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from polygrad.driver import DeviceInfo, Instr, Kernel, MemoryInfo, Ref, hookimpl
from polygrad.driver.ir import ITEMSIZE, kind
from polygrad_conformance.mutants import (
    AnswerMutant,
    Change,
    KernelMutant,
    Launch,
    MemoryMutant,
    Mutant,
    OpMutant,
    expanded,
    other_op,
    poke,
    renumbered,
    stored_views,
    swapped,
    view_of,
)

MUTANTS: list[Mutant] = []
HOSTED, TINY = 6, 4  # ordinals of strict devices
UNUSED = "antigravity_of_polygrad"  # a name that no module has, put into sys.modules by a mutant


def _add(name: str, group: str, make: Callable[[Any], Any], *killers: str, **more: Any) -> None:
    MUTANTS.append(Mutant(name, group, make, killers, **more))


def _kernel(name: str, group: str, change: Change, *killers: str, after: Any = None, **more: Any) -> None:
    _add(name, group, lambda inner: KernelMutant(inner, change, after), *killers, **more)


def _same(launch: Launch) -> Launch:
    return launch


# ---- info -----------------------------------------------------------------------------------------------------


def _info(name: str, change: Callable[[DeviceInfo], DeviceInfo], killer: str) -> None:
    def spoiled(info: Any, _times: int) -> Any:
        return change(info)

    _add(name, "info", lambda _inner: AnswerMutant("polygrad_open", spoiled), killer, early=True)


def _limits(**values: Any) -> Callable[[DeviceInfo], DeviceInfo]:
    return lambda info: dataclasses.replace(info, limits=dataclasses.replace(info.limits, **values))


_info("a dtype that the IR has not", lambda i: dataclasses.replace(i, dtypes=i.dtypes | {"float8"}), "L0.info.sets")
_info("no int32 and no int64", lambda i: dataclasses.replace(i, dtypes=frozenset({"bool", "float32"})), "L0.info.sets")
_info("alignment of 48", _limits(alignment=48), "L0.info.limits")
_info("max_alloc above total", _limits(max_alloc=1 << 50, total=1 << 40), "L0.info.limits")
_info("limits of None", lambda i: dataclasses.replace(i, limits=None), "L0.info.limits")  # type: ignore[arg-type]
_info(
    "a feature that is a word",
    lambda i: dataclasses.replace(i, features=dataclasses.replace(i.features, asynchronous="yes")),  # type: ignore[arg-type]
    "L0.info.features",
)
_add("requirements that are a dict", "info",
     lambda _inner: AnswerMutant("polygrad_requirements", lambda _r, _t: {"unsupported": {}}), "L0.info.requirements")  # fmt: skip
_add("another summary each time", "info", lambda _inner: AnswerMutant("polygrad_drivers", lambda r, t: [
    [dataclasses.replace(d, summary=f"asked {t} times") for d in part] for part in r]), "L0.info.driver")  # fmt: skip
_add("an API of another major", "info", lambda _inner: AnswerMutant("polygrad_drivers", lambda r, _t: [
    [dataclasses.replace(d, api=(9, 0)) for d in part] for part in r]), "L0.info.driver")  # fmt: skip


def _importing(result: Any, _times: int) -> Any:
    sys.modules[UNUSED] = importlib.import_module("json")
    return result


_add("discovery that imports", "info", lambda _inner: AnswerMutant("polygrad_drivers", _importing), "L0.info.driver")
_add("a count below its own device", "info", lambda _inner: AnswerMutant("polygrad_count", lambda _r, _t: 1),
     "L0.info.count", ordinal=TINY)  # fmt: skip
_add("another device when opened again", "info", lambda _inner: AnswerMutant(
    "polygrad_open", lambda info, t: dataclasses.replace(info, name=f"{info.name} {t}")), "L0.open.reopen", early=True)  # fmt: skip
_add("an installation that imports its driver", "info", lambda _inner: object(), "L0.discovery.no_import",
     environment={"eager": "yes"})  # fmt: skip

# ---- memory ---------------------------------------------------------------------------------------------------


def _twice() -> Callable[..., Any]:
    given: list[Any] = []

    def allocate(inner: Any, device: DeviceInfo, nbytes: int) -> Any:
        if len(given) % 5 == 4:
            given.append(None)
            return next(h for h in reversed(given) if h is not None)
        given.append(inner.polygrad_allocate(device, max(nbytes, 4096)))
        return given[-1]

    return allocate


_add("one block given twice", "memory", lambda inner: MemoryMutant(inner, _twice()), "L1.allocate.distinct")
_add(
    "free does nothing",
    "memory",
    lambda inner: MemoryMutant(inner, None, lambda *_: None),
    "L1.free.room",
    ordinal=TINY,
)


def _limit_as(error: type[Exception]) -> Callable[..., Any]:
    def allocate(inner: Any, device: DeviceInfo, nbytes: int) -> Any:
        if nbytes > device.limits.max_alloc:
            raise error(f"invalid buffer size {nbytes}")
        return inner.polygrad_allocate(device, nbytes)

    return allocate


_add(
    "out of memory as another error",
    "memory",
    lambda inner: MemoryMutant(inner, _limit_as(RuntimeError)),
    "L1.memory.over_limit",
)
_add("a smaller block instead of an error", "memory", lambda inner: MemoryMutant(
    inner, lambda i, d, n: i.polygrad_allocate(d, min(n, d.limits.max_alloc))), "L1.memory.over_limit")  # fmt: skip


def _clearing() -> Any:
    latest: list[Any] = []

    def allocate(inner: Any, device: DeviceInfo, nbytes: int) -> Any:
        latest.append(inner.polygrad_allocate(device, nbytes))
        return latest[-1]

    def free(inner: Any, device: DeviceInfo, handle: Any) -> None:
        inner.polygrad_free(device, handle)
        latest.remove(handle)
        if latest:
            poke(inner, device, latest[0], "uint8", 0, b"\x00")

    return lambda inner: MemoryMutant(inner, allocate, free)


_add("freeing spoils another block", "memory", _clearing(), "L1.free.storm")
_add("more memory free than there is", "memory", lambda _inner: AnswerMutant(
    "polygrad_memory_info", lambda m, _t: MemoryInfo(m.total + 1, m.total)), "L1.memory.info")  # fmt: skip
_add("a total that changes", "memory", lambda _inner: AnswerMutant(
    "polygrad_memory_info", lambda m, t: MemoryInfo(m.free, m.total + t)), "L1.memory.info")  # fmt: skip
_add("blocks off by four bytes", "memory", lambda _inner: AnswerMutant(
    "polygrad_view", lambda _v, _t: _off_by_four().data), "L1.allocate.aligned", ordinal=HOSTED)  # fmt: skip
_add("a view that is a copy", "memory", lambda _inner: AnswerMutant(
    "polygrad_view", lambda v, _t: np.array(v).data), "L1.host.view", ordinal=HOSTED)  # fmt: skip


def _off_by_four() -> Any:
    room = np.zeros(8192, np.uint8)
    start = -room.ctypes.data % 64 + 4
    return room[start : start + 5000]


class _CopyingAdoption:
    """Adopts a copy of foreign memory."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @hookimpl(tryfirst=True)
    def polygrad_adopt(self, device: DeviceInfo, memory: memoryview) -> Any:
        return self.inner.polygrad_adopt(device, np.array(memory).data)


_add("adoption by copy", "memory", _CopyingAdoption, "L1.host.adopt", ordinal=HOSTED)


def _op(name: str, work: Callable[..., None], *killers: str) -> None:
    _add(name, "memory", lambda inner: OpMutant(inner, work), *killers)


def _shortened(inner: Any, device: DeviceInfo, op: str, outs: Any, ins: Any, attrs: Any) -> None:
    if op == "write" and len(attrs["data"]) > 60000:
        data = attrs["data"][:60000]
        outs, attrs = (Ref(outs[0].handle, outs[0].offset, (60000,), (1,), "uint8"),), {"data": data}
    inner.polygrad_launch_op(device, op, outs, ins, attrs)


_op("long writes cut short", _shortened, "L1.allocate.sizes")


def _one_short(inner: Any, device: DeviceInfo, op: str, outs: Any, ins: Any, attrs: Any) -> None:
    if op == "write" and len(attrs["data"]) % 4 == 3 and outs[0].dtype == "uint8":
        outs = (outs[0]._replace(shape=(outs[0].shape[0] - 1,)),)
        attrs = {"data": attrs["data"][:-1]}
        if not len(attrs["data"]):
            return
    inner.polygrad_launch_op(device, op, outs, ins, attrs)


_op("odd writes one byte short", _one_short, "L1.rw.lengths")


def _in_bytes(inner: Any, device: DeviceInfo, op: str, outs: Any, ins: Any, attrs: Any) -> None:
    def moved(refs: Any) -> Any:
        return tuple(
            Ref(r.handle, r.offset, (r.shape[0] * ITEMSIZE[r.dtype],), (1,), "uint8") if r.dtype != "uint8" else r
            for r in refs
        )

    inner.polygrad_launch_op(device, op, moved(outs), moved(ins), attrs)


_op("offsets in bytes", _in_bytes, "L1.rw.dtype.float32", "L1.rw.dtype.int64")


def _late() -> Callable[..., None]:
    waiting: list[Any] = []

    def work(inner: Any, device: DeviceInfo, op: str, outs: Any, ins: Any, attrs: Any) -> None:
        while waiting:
            inner.polygrad_launch_op(device, *waiting.pop())
        if op == "write":
            waiting.append((op, outs, ins, attrs))  # the source is read when something else comes
        else:
            inner.polygrad_launch_op(device, op, outs, ins, attrs)

    return work


_op("write keeps the source for later", _late(), "L1.write.source_reuse")


def _forgetful() -> Callable[..., None]:
    seen = [0]

    def work(inner: Any, device: DeviceInfo, op: str, outs: Any, ins: Any, attrs: Any) -> None:
        seen[0] += op == "write"
        if op == "write" and seen[0] % 5 == 0:
            return
        inner.polygrad_launch_op(device, op, outs, ins, attrs)

    return work


_op("every fifth write lost", _forgetful(), "L1.write.order")

# ---- scalar ops -------------------------------------------------------------------------------------------------


def _is(*ops: str, dtype: str = "") -> Callable[[Instr, Kernel], bool]:
    return lambda instr, kernel: (
        instr.op in ops and dtype in kind(kernel.body[instr.args[0]].dtype if instr.args else instr.dtype)
    )


def _const(instr: Instr, value: Any, dtype: str = "") -> Instr:
    return Instr("const", dtype or instr.dtype, (), value)


_kernel("subtract swapped", "scalar", swapped("subtract"), "L2.scalar.subtract.float32", "L2.scalar.subtract.int8",
        "L2.launch.lookalikes")  # fmt: skip
_kernel("less as less_equal", "scalar", other_op("less_equal", "less"), "L2.scalar.less.float32", "L2.scalar.less.bool")
_kernel("less_equal as less", "scalar", other_op("less", "less_equal"), "L2.scalar.less_equal.int32", "L3.guard.poison")
_kernel("equal as not_equal", "scalar", other_op("not_equal", "equal"), "L2.scalar.equal.int64")
_kernel("floor as trunc", "scalar", other_op("trunc", "floor"), "L2.scalar.floor.float32")
_kernel("round away from ties", "scalar", expanded(_is("round"), lambda i, n, _k: [
    _const(i, 0.5), Instr("add", i.dtype, (i.args[0], n)), Instr("floor", i.dtype, (n + 1,))]), "L2.scalar.round.float64")  # fmt: skip
_kernel("maximum drops NaN", "scalar", expanded(_is("maximum", dtype="float"), lambda i, n, _k: [
    Instr("less", "bool", i.args), Instr("where", i.dtype, (n, i.args[1], i.args[0]))]), "L2.scalar.maximum.float32")  # fmt: skip
_kernel("minimum as maximum", "scalar", other_op("maximum", "minimum"), "L2.scalar.minimum.int16")
_kernel("negative as 0 - x", "scalar", expanded(_is("negative", dtype="float"), lambda i, n, _k: [
    _const(i, 0.0), Instr("subtract", i.dtype, (n, i.args[0]))]), "L2.scalar.negative.float64")  # fmt: skip
_kernel("absolute keeps -0", "scalar", expanded(_is("absolute", dtype="float"), lambda i, n, _k: [
    _const(i, 0.0), Instr("less", "bool", (i.args[0], n)), Instr("negative", i.dtype, i.args),
    Instr("where", i.dtype, (n + 1, n + 2, i.args[0]))]), "L2.scalar.absolute.float32")  # fmt: skip
_kernel("quotient floors", "scalar", expanded(_is("quotient"), lambda i, n, _k: [
    Instr("quotient", i.dtype, i.args), Instr("multiply", i.dtype, (n, i.args[1])), Instr("less", "bool", (i.args[0], n + 1)),
    _const(i, 1), Instr("subtract", i.dtype, (n, n + 3)), Instr("where", i.dtype, (n + 2, n + 4, n))]),
    "L2.scalar.quotient.int32")  # fmt: skip
_kernel("x / 0 is x", "scalar", expanded(_is("quotient"), lambda i, n, _k: [
    _const(i, 0), Instr("equal", "bool", (i.args[1], n)), Instr("quotient", i.dtype, i.args),
    Instr("where", i.dtype, (n + 1, i.args[0], n + 2))]), "L2.trap.quotient_by_zero.int32", "L2.trap.quotient_by_zero.int64")  # fmt: skip
_kernel("modulo by zero is x", "scalar", expanded(_is("modulo"), lambda i, n, _k: [
    _const(i, 0), Instr("equal", "bool", (i.args[1], n)), Instr("modulo", i.dtype, i.args),
    Instr("where", i.dtype, (n + 1, i.args[0], n + 2))]), "L2.trap.modulo_by_zero.int32")  # fmt: skip
_kernel("shifts modulo the width", "scalar", expanded(_is("bitwise_left_shift", "bitwise_right_shift"), lambda i, n, _k: [
    _const(i, 8 * ITEMSIZE[i.dtype] - 1), Instr("bitwise_and", i.dtype, (i.args[1], n)), Instr(i.op, i.dtype, (i.args[0], n + 1))]),
    "L2.trap.shift_left_too_far.int32", "L2.trap.shift_right_too_far.int64", "L2.scalar.bitwise_left_shift.uint8")  # fmt: skip
_kernel("exp off by a part in 100,000", "scalar", expanded(_is("exp"), lambda i, n, _k: [
    i, _const(i, 1.00001), Instr("multiply", i.dtype, (n, n + 1))]), "L2.scalar.exp.float32")  # fmt: skip
_kernel("subnormals flushed, undeclared", "scalar", expanded(_is("multiply", dtype="float"), lambda i, n, _k: [
    i, Instr("absolute", i.dtype, (n,)), _const(i, 1.2e-38 if i.dtype == "float32" else 2.3e-308),
    Instr("less", "bool", (n + 1, n + 2)), _const(i, 0.0), Instr("where", i.dtype, (n + 3, n + 4, n))]), "L2.scalar.multiply.float32")  # fmt: skip
_kernel("where swapped", "scalar", swapped("where", 1), "L2.where.int8", "L2.where.bfloat16", "L3.guard.poison")
_kernel("casts round", "scalar", expanded(
    lambda i, k: i.op == "cast" and kind(i.dtype) == "int" and k.body[i.args[0]].dtype in ("float32", "float64"),
    lambda i, n, k: [Instr("round", _type(i, k), i.args), i._replace(args=(n,))]),
    "L2.cast.float32", "L2.cast.float64", "L2.trap.cast_out_of_range")  # fmt: skip


def _type(_instr: Instr, kernel: Kernel) -> str:
    """Return the dtype of a cast's operand; loads come first in the kernels that are cast."""
    return kernel.body[0].dtype


_kernel("cast to bool keeps the last bit", "scalar", expanded(
    lambda i, k: i.op == "cast" and i.dtype == "bool" and kind(k.body[i.args[0]].dtype) == "int",
    lambda i, n, k: [Instr("const", _type(i, k), (), 1), Instr("bitwise_and", _type(i, k), (i.args[0], n)),
                     Instr("cast", "bool", (n + 1,))]), "L2.cast.int32")  # fmt: skip
_kernel("bitcast as cast", "scalar", lambda launch: launch.with_body(
    lambda i: i._replace(op="cast") if (i.op == "bitcast" and "float" not in i.dtype and "float" in launch.kernel.buffers[0])
    or (i.op == "bitcast" and "float" in i.dtype) else i), "L2.bitcast.32", "L2.bitcast.64")  # fmt: skip
_kernel("bytes of bitcasts swapped", "scalar", expanded(
    lambda i, _k: i.op == "bitcast" and i.dtype == "uint8", lambda i, n, _k: [
        i, Instr("const", "uint8", (), 1), Instr("bitwise_xor", "uint8", (n, n + 1))]), "L2.bitcast.8")  # fmt: skip
_kernel("literals cut to 32 bits", "scalar", lambda launch: launch.with_body(
    lambda i: i._replace(attr=i.attr & 0xFFFFFFFF) if i.op == "const" and i.dtype == "int64" else i), "L2.const.int64")  # fmt: skip
_kernel("literals through float32", "scalar", lambda launch: launch.with_body(
    lambda i: i._replace(attr=0.1) if i.op == "const" and i.attr == 0.25 else i), "L2.const.float64")  # fmt: skip


def _frozen() -> Change:
    first: dict[Kernel, tuple[Any, ...]] = {}
    return lambda launch: launch._replace(scalars=first.setdefault(launch.kernel, launch.scalars))


_kernel(
    "launch scalars frozen at first use",
    "scalar",
    _frozen(),
    "L2.parameter.int32",
    "L2.parameter.float64",
    "L2.launch.again",
)
_kernel("iota of axis 0", "scalar", lambda launch: launch.with_body(
    lambda i: i._replace(attr=0) if i.op == "iota" else i), "L2.iota.int32", "L2.iota.int64")  # fmt: skip

# ---- reductions -------------------------------------------------------------------------------------------------


def _reduces(how: str) -> Callable[[Instr, Kernel], bool]:
    return lambda i, _k: i.op == "reduce" and i.attr == how and i.dtype != "bool"


def _one(dtype: str) -> Any:
    return 1.0 if "float" in dtype else 1


_kernel("sum starts at one", "reduction", expanded(_reduces("sum"), lambda i, n, _k: [
    i, _const(i, _one(i.dtype)), Instr("add", i.dtype, (n, n + 1))]), "L2.reduce.sum.int32", "L3.reduce.all")  # fmt: skip
_kernel("max starts at zero", "reduction", expanded(_reduces("max"), lambda i, n, _k: [
    i, _const(i, 0.0 if "float" in i.dtype else 0), Instr("maximum", i.dtype, (n, n + 1))]), "L2.reduce.max.float32",
    "L2.reduce.max.int64")  # fmt: skip
_kernel("max drops NaN", "reduction", expanded(lambda i, k: _reduces("max")(i, k) and "float" in i.dtype, lambda i, n, _k: [
    Instr("equal", "bool", (i.args[0], i.args[0])), _const(i, -float("inf")), Instr("where", i.dtype, (n, i.args[0], n + 1)),
    i._replace(args=(n + 2,))]), "L2.reduce.max.float64")  # fmt: skip
_kernel("max starts at the least finite", "reduction", expanded(
    lambda i, k: _reduces("max")(i, k) and i.dtype == "float32", lambda i, n, _k: [
        i, _const(i, -3.4028234663852886e38), Instr("maximum", i.dtype, (n, n + 1))]), "L2.reduce.max.float32")  # fmt: skip
_kernel("min as max", "reduction", lambda launch: launch.with_body(
    lambda i: i._replace(attr="max") if i.op == "reduce" and i.attr == "min" else i), "L2.reduce.min.uint8")  # fmt: skip
_kernel("prod as sum", "reduction", lambda launch: launch.with_body(
    lambda i: i._replace(attr="sum") if i.op == "reduce" and i.attr == "prod" else i), "L2.reduce.prod.float32")  # fmt: skip
_kernel("any as all", "reduction", lambda launch: launch.with_body(
    lambda i: i._replace(attr="min") if i.op == "reduce" and i.dtype == "bool" else i), "L2.reduce.bool")  # fmt: skip
_kernel("rows one short", "reduction", renumbered(
    lambda name, v, launch: v - 1 if launch.kernel.reduced and name == f"n{launch.kernel.rank - 1}" and v > 1 else v),
    "L3.reduce.rows_of.33", "L3.reduce.strided", "L3.window.plane")  # fmt: skip
_kernel("second store dropped", "reduction", lambda launch: launch._replace(
    kernel=launch.kernel._replace(stores=launch.kernel.stores[:1])), "L3.reduce.columns", "L3.store.two_in_one",
    "L3.store.partial.2")  # fmt: skip
_kernel(
    "parts as one",
    "reduction",
    renumbered(lambda name, v, _l: 1 if name.endswith(".parts") else v),
    "L3.store.partial.3",
)
_kernel("two reduced axes as one", "reduction", renumbered(
    lambda name, v, launch: 1 if launch.kernel.reduced > 1 and name == f"n{launch.kernel.parallel}" else v), "L3.reduce.two_axes")  # fmt: skip

# ---- views and launches -------------------------------------------------------------------------------------------


def _loads(name: str, launch: Launch) -> bool:
    return view_of(name) >= 0 and view_of(name) not in stored_views(launch.kernel)


_kernel("offset of loads ignored", "views", renumbered(
    lambda name, v, launch: 0 if name.endswith(".o") and _loads(name, launch) else v), "L3.view.offset", "L3.dtype.int8",
    "L3.dtype.float64")  # fmt: skip
_kernel("offset of stores off by one", "views", renumbered(
    lambda name, v, launch: v + 1 if name.endswith(".o") and view_of(name) in stored_views(launch.kernel) else v),
    "L3.view.offset", "L3.rank.0", "L2.launch.extents")  # fmt: skip
_kernel("strides of loads as 1", "views", renumbered(
    lambda name, v, launch: 1 if ".s" in name and _loads(name, launch) else v), "L3.view.step", "L3.view.rows_apart", "L3.rank.4",
    "L3.reduce.strided")  # fmt: skip
_kernel("strides of 0 as 1", "views", renumbered(
    lambda name, v, launch: 1 if ".s" in name and v == 0 and _loads(name, launch) else v), "L3.view.zero")  # fmt: skip
_kernel("negative strides of loads turned", "views", renumbered(
    lambda name, v, launch: abs(v) if ".s" in name and _loads(name, launch) else v), "L3.view.negative", "L3.inputs.unchanged")  # fmt: skip
_kernel("ranks above four cut", "views", renumbered(
    lambda name, v, _l: 1 if name.startswith("n") and int(name[1:]) > 3 else v), "L3.rank.6", "L3.rank.8")  # fmt: skip


def _square(launch: Launch) -> Launch:
    strides = [n for n in launch.kernel.int_names if n.startswith(("v0.s", "v1.s"))]
    if len(launch.ints) < 2 or launch.kernel.rank != 2 or launch.ints[0] != launch.ints[1] or len(strides) != 2:
        return launch
    views = list(launch.kernel.views)
    views[0] = views[0]._replace(strides=tuple(reversed(views[0].strides)))
    return launch._replace(kernel=launch.kernel._replace(views=tuple(views)))


_kernel("axes of squares swapped", "views", _square, "L3.view.transposed_square")
_kernel("last element left out", "views", renumbered(
    lambda name, v, launch: v - 1 if name == f"n{launch.kernel.rank - 1}" and v > 1 else v), "L3.view.primes", "L2.launch.large",
    "L2.launch.in_place", "L2.launch.buffers")  # fmt: skip
_kernel("the tail of wide axes left out", "views", renumbered(
    lambda name, v, _l: v // 8 * 8 if name.startswith("n") and v > 8 else v), "L2.launch.extents", "L3.view.wide", "L3.view.tall")  # fmt: skip


def _beyond(inner: Any, device: DeviceInfo, launch: Launch) -> None:
    store = launch.kernel.stores[-1]
    view = launch.kernel.views[store.view]
    if launch.kernel.rank == 1 and view.strides == (1,):
        offset = launch.ints[launch.kernel.int_names.index(f"v{store.view}.o")]
        if launch.ints[0] % 8 and offset:
            poke(inner, device, launch.buffers[view.buffer], view.dtype, offset + launch.ints[0])


_kernel("one element beyond the end", "views", _same, "L2.launch.extents", "L3.view.offset", after=_beyond)


def _spoil_input(inner: Any, device: DeviceInfo, launch: Launch) -> None:
    written = {launch.kernel.views[s.view].buffer for s in launch.kernel.stores}
    for number, dtype in enumerate(launch.kernel.buffers):
        if number not in written and number != launch.kernel.status:
            poke(inner, device, launch.buffers[number], dtype, 0)


_kernel("inputs overwritten", "views", _same, "L3.inputs.unchanged", after=_spoil_input)
_kernel("windows without fill", "views", lambda launch: launch._replace(kernel=launch.kernel._replace(
    views=tuple(v._replace(fill=type(v.fill)(0)) for v in launch.kernel.views))), "L3.window.right", "L3.window.infinite",
    "L3.window.plane")  # fmt: skip
_kernel("fills by way of float64", "views", lambda launch: launch._replace(kernel=launch.kernel._replace(views=tuple(
    v._replace(fill=int(float(v.fill) / 2) * 2) if v.dtype == "int64" and v.window else v for v in launch.kernel.views))),
    "L3.window.fill.int64")  # fmt: skip
_kernel("windows one wider", "views", renumbered(
    lambda name, v, _l: v - 1 if ".lo" in name and v > 0 else v), "L3.window.inside")  # fmt: skip
_kernel("indices from the end as zero", "views", expanded(
    lambda i, k: i.op == "load" and k.views[i.attr].gathers > 0, lambda i, n, k: [
        Instr("const", k.buffers[0], (), 0), Instr("maximum", k.buffers[0], (i.args[0], n)), i._replace(args=(n + 1,))]),
    "L3.gather.negative.int64", "L3.gather.negative.int32")  # fmt: skip


def _quiet(inner: Any, device: DeviceInfo, launch: Launch) -> None:
    if launch.kernel.status >= 0:
        ref = Ref(launch.buffers[launch.kernel.status], 0, (4,), (1,), "int32")
        inner.polygrad_launch_op(device, "write", (ref,), (), {"data": memoryview(bytes(16))})


_kernel("bad indices not reported", "views", _same, "L3.gather.too_large.int64", "L3.gather.too_small.int32",
        "L3.gather.reported_before.int64", after=_quiet)  # fmt: skip
_kernel("guards of gathers ignored", "views", lambda launch: launch.with_body(
    lambda i: i._replace(guard=-1) if i.op == "load" and i.args else i), "L3.guard.gather.int32", "L3.guard.gather.int64")  # fmt: skip
_kernel(
    "gathers ignore the stride",
    "views",
    renumbered(lambda name, v, _l: 1 if ".gs" in name else v),
    "L3.gather.plain.int64",
)
_kernel("store rows packed", "views", renumbered(
    lambda name, v, launch: launch.ints[1] if name.startswith("v1.s0") and launch.kernel.rank == 2 else v),
    "L3.view.store_rows_apart")  # fmt: skip


def _buffers_confused(launch: Launch) -> Launch:
    if len(launch.buffers) < 20:
        return launch
    return launch._replace(buffers=(*launch.buffers[:16], launch.buffers[0], *launch.buffers[17:]))


_kernel("no more than sixteen buffers", "views", _buffers_confused, "L2.launch.buffers")


def _truncated(launch: Launch) -> Launch:
    kernel = launch.kernel
    if len(kernel.body) <= 256:
        return launch
    return launch._replace(kernel=kernel._replace(stores=tuple(s._replace(value=255) for s in kernel.stores)))


_kernel("no more than 256 instructions", "views", _truncated, "L2.launch.instructions")


def _remembering(key: Callable[[Launch], Any]) -> Change:
    programs: dict[Any, Kernel] = {}
    return lambda launch: launch._replace(kernel=programs.setdefault(key(launch), launch.kernel))


_kernel("programs by their ops alone", "cache", _remembering(
    lambda one: (one.kernel.views, one.kernel.buffers, tuple(i.op for i in one.kernel.body))), "L2.launch.lookalikes")  # fmt: skip


def _frozen_ints() -> Change:
    first: dict[Kernel, tuple[int, ...]] = {}
    return lambda launch: launch._replace(ints=first.setdefault(launch.kernel, launch.ints))


_kernel("launch ints frozen at first use", "cache", _frozen_ints(), "L2.launch.again")
_kernel("in place through a copy that is lost", "cache",
        lambda launch: launch if len(launch.buffers) > 1 else None, "L2.launch.in_place")  # fmt: skip
