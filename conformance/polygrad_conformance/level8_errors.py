"""Level 8, errors and resources: what is refused is refused in the right way, nothing is lost, nothing leaks.

Here: exhausted memory, allocations that fail at every place of a training step, leaks, closing.
Not here: single bad sizes (level 1).
"""

import gc
import sys
import warnings
from typing import Any

import numpy as np

import polygrad as pg
from polygrad.driver import DeviceInfo, Instr, OutOfMemory, Ref, hookimpl
from polygrad.driver.binding import open_device
from polygrad.errors import DriverError, PolygradError
from polygrad_conformance import building
from polygrad_conformance.bench import Bench
from polygrad_conformance.checks import check

F = "float32"
SMALL = 1 << 26  # bytes of memory in all: no more are exhausted on purpose
PLACES = (0, 1, 2, 4, 7)
STEP_LOSS = 1 << 15  # bytes a step that a device's own account may waver by


class Failing:
    """A wrapper that lets one allocation of a device fail, or all from one on."""

    def __init__(self, device: str, first: int, *, once: bool) -> None:
        self.device, self.first, self.once, self.count, self.failed = device, first, once, 0, 0

    @hookimpl(tryfirst=True)
    def polygrad_allocate(self, device: DeviceInfo, nbytes: int) -> Any:
        """Raise if it is this one's turn; otherwise leave it to the driver."""
        if device.device != self.device:
            return
        turn, self.count = self.count, self.count + 1
        if turn == self.first or (turn > self.first and not self.once):
            self.failed += 1
            raise OutOfMemory(f"no room for {nbytes} bytes, on purpose")


def _works(bench: Bench, when: str) -> None:
    kernel = building.unary(F, Instr("add", F, (0, 0)))
    try:
        got = bench.launch(kernel, [np.arange(9, dtype=F), building.blank(F, 9)], (9, 0, 0))[1]
    except PolygradError as error:
        raise AssertionError(f"{when} the device does not work: {error}") from error
    assert list(got) == [2 * k for k in range(9)], f"{when} the device gives {list(got)}"


@check("L8.errors.unknown_op")
def an_unknown_op_is_refused(bench: Bench) -> None:
    """An op that is not declared raises, and the device works on."""
    handle = bench.put(np.zeros(4, F))
    ref = Ref(handle, 0, (4,), (1,), F)
    with bench.raises(DriverError, "running an op that no device has"):
        bench.device.launch_op("no_such_op", (ref,), (ref,), {})
    _works(bench, "after an unknown op")


@check("L8.memory.over_limit_again", needs=("limit.max_alloc",))
def refusals_leak_nothing(bench: Bench) -> None:
    """A hundred refused allocations change nothing."""
    for _ in range(100):
        with bench.raises(OutOfMemory, "allocating more than limits.max_alloc"):
            bench.allocate(bench.info.limits.max_alloc + 4096)
    _works(bench, "after refused allocations")


@check("L8.memory.exhaust")
def exhausted_memory_comes_back(bench: Bench) -> None:
    """On a device of little memory: fill it, be refused, free it all, fill it again as far."""
    limits = bench.info.limits
    if limits.total > SMALL:
        return
    filled = []
    for _ in range(2):
        blocks, refused = [], False
        for _ in range(200):
            try:
                blocks.append(bench.allocate(limits.max_alloc // 8))
            except OutOfMemory:
                refused = True
                break
        assert refused, f"200 blocks of {limits.max_alloc // 8} bytes fit into {limits.total}"
        filled.append(len(blocks))
        for block in blocks:
            bench.free(block)
    assert filled[1] >= filled[0], f"first {filled[0]} blocks fitted, after freeing them {filled[1]}"
    _works(bench, "after its memory was full")


def _step(device: str, *, compiled: bool = False) -> tuple[Any, Any]:
    """Return a model and a function that makes one step of its training and returns the loss."""
    pg.random.seed(5)
    with pg.device(device):
        model = pg.nn.Sequential(pg.nn.Linear(37, 53), pg.nn.Tanh(), pg.nn.Linear(53, 3))
        optimizer = pg.optim.SGD(model, lr=0.1)
        rng = np.random.default_rng(5)
        x, y = (pg.asarray(rng.normal(size=(29, n)), dtype=pg.float32) for n in (37, 3))
        pg.realize(x, y, *model.parameters())

    def move() -> Any:
        loss = pg.mean((model(x) - y) ** 2)
        loss.backward()
        optimizer.step(also=loss)
        optimizer.zero_grad()
        return loss

    call = pg.compile(move) if compiled else move

    def step() -> float:
        with pg.device(device):
            return float(call())

    return model, step


@check("L8.oom.persistent.{0}", each=[(n,) for n in PLACES])
def an_allocation_fails_and_stays_failed(bench: Bench, nth: int) -> None:
    """From the nth allocation of a step on all fail: OutOfMemory, parameters as they were; the next try succeeds."""
    name = bench.device.name
    model, step = _step(name)
    before = [p.detach().numpy() for p in model.parameters()]
    gc.collect()
    pg.empty_cache(name)
    failing = Failing(name, nth, once=False)
    bench.registry.register(failing)
    try:
        step()
    except OutOfMemory:
        for mine, was in zip(model.parameters(), before, strict=True):
            assert (mine.detach().numpy() == was).all(), "a step that ran out of memory has changed a parameter"
    except Exception as error:
        raise AssertionError(f"a failed allocation came out as {type(error).__name__}: {error}") from error
    finally:
        bench.registry.unregister(failing)
    assert failing.failed or failing.count <= nth, f"allocation {nth} failed, and the step did not"
    model, step = _step(name)
    first, second = step(), step()
    assert second < first, f"after an allocation had failed, two steps gave the losses {first} and {second}"


@check("L8.oom.once")
def an_allocation_fails_once(bench: Bench) -> None:
    """An allocation fails once: the core gives back what lies free and tries again, and the loss is the right one."""
    name = bench.device.name
    wanted = _step(name)[1]()
    for nth in PLACES:
        _, step = _step(name)
        gc.collect()
        pg.empty_cache(name)
        failing = Failing(name, nth, once=True)
        bench.registry.register(failing)
        try:
            loss = step()
        except OutOfMemory as error:
            raise AssertionError(f"allocation {nth} failed once, and the core gave up: {error}") from error
        finally:
            bench.registry.unregister(failing)
        assert loss == wanted, f"with a failed allocation {nth} the loss is {loss}, without {wanted}"


@check("L8.oom.compiled")
def allocations_fail_in_a_compiled_step(bench: Bench) -> None:
    """Allocations fail when a step runs, is captured, or is replayed: OutOfMemory, nothing changed; the next works."""
    name = bench.device.name
    for before in (0, 1, 2, 4):
        for nth in (0, 2):
            model, step = _step(name, compiled=True)
            for _ in range(before):
                step()
            was = [p.detach().numpy() for p in model.parameters()]
            gc.collect()
            pg.empty_cache(name)
            failing = Failing(name, nth, once=False)
            bench.registry.register(failing)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", pg.CompileWarning)  # a step without room for a capture is taken
                    step()
            except OutOfMemory:
                for mine, right in zip(model.parameters(), was, strict=True):
                    assert (mine.detach().numpy() == right).all(), (
                        f"call {before} of a compiled step ran out of memory and has changed a parameter"
                    )
            except Exception as error:
                raise AssertionError(f"a failed allocation came out as {type(error).__name__}: {error}") from error
            finally:
                bench.registry.unregister(failing)
            first, second = step(), step()
            assert second < first, f"after allocation {nth} of call {before} had failed: losses {first} and {second}"


def _resident() -> int:
    """Return the bytes of this process that are in memory, or 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def _left(bench: Bench) -> int:
    """Return what is left of the device's memory; of the host's, which others use too, what this process leaves."""
    bench.device.synchronize()
    gc.collect()
    info = bench.device.memory_info()
    return -_resident() if info is None or bench.info.features.host_memory else int(info.free)


@check("L8.leak.kernels")
def launches_leak_nothing(bench: Bench) -> None:
    """Blocks, transfers and launches in a loop: the device's memory and the process stay as large as they are."""
    kernel = building.unary(F, Instr("add", F, (0, 0)))
    count = min(1 << 16, bench.info.limits.max_alloc // 16)
    data, out = np.zeros(count, F), building.blank(F, count)

    def rounds(n: int) -> tuple[int, int]:
        for _ in range(n):
            bench.launch(kernel, [data, out], (count, 0, 0))
        return _left(bench), _resident()

    rounds(20)
    turns = 5 * bench.effort.repeats
    moved = 2 * 4 * count * turns  # bytes that are allocated and freed in one measurement
    lost = grown = 0
    for _ in range(3):  # others may use the same memory meanwhile: a leak shows every time
        before, after = rounds(5), rounds(turns)
        lost, grown = before[0] - after[0], after[1] - before[1]
        if lost <= moved // 4 and grown <= max(moved // 4, 1 << 24):
            return
    raise AssertionError(
        f"while {moved} bytes were allocated and freed, the device lost {lost} bytes and the process grew by {grown}"
    )


@check("L8.leak.training")
def training_leaks_nothing(bench: Bench) -> None:
    """A step of training leaves as much memory in use as the step before, by the core's account and the device's."""
    _, step = _step(bench.device.name)

    def steps(n: int) -> tuple[dict[str, int], int]:
        for _ in range(n):
            step()
        return pg.memory_stats(bench.device.name), _left(bench)

    steps(3)
    before, room = steps(0)
    for _ in range(3):  # others may use the same memory meanwhile: a leak shows every time
        after, left = steps(bench.effort.repeats)
        lost, room = room - left, left
        if lost <= STEP_LOSS * bench.effort.repeats:
            break
    else:
        raise AssertionError(f"in {bench.effort.repeats} steps the device lost {lost} bytes, three times in a row")
    assert after["used"] <= before["used"], (
        f"{bench.effort.repeats} steps: {before['used']} bytes in use, then {after['used']}"
    )
    assert after["held"] <= before["held"] * 1.5 + 65536, (
        f"the pool grew from {before['held']} to {after['held']} bytes"
    )


@check("L8.close.live_arrays")
def closing_with_live_arrays(bench: Bench) -> None:
    """A device is closed while arrays live: they are refused with a sentence, nothing crashes, it opens again."""
    name = bench.device.name
    with pg.device(name):
        x = pg.asarray([1.0, 2.0, 3.0], dtype=pg.float32) * 2
        pg.realize(x)
    bench.device.close()
    with bench.raises(PolygradError, "using an array of a closed device"):
        (x + 1).numpy()
    bench.device = open_device(bench.registry, name)
    del x
    gc.collect()
    with pg.device(name):
        y = pg.asarray([1.0, 2.0], dtype=pg.float32) * 3
        assert [float(v) for v in y] == [3.0, 6.0], "a device that was opened again computes something else"
    _works(bench, "opened again,")
