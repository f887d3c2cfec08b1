"""Level 7, order: launches take effect in the order in which they are made, however late they run.

Here: chains of dependent launches, transfers between them, memory that is given back early.
Not here: threads (level 9).
"""

import numpy as np

from polygrad.driver import Instr, Kernel, Ref, Store, View
from polygrad.errors import OutOfMemory
from polygrad_conformance import building
from polygrad_conformance.bench import Bench
from polygrad_conformance.checks import check

F = "float32"
LAUNCHES = 300


def _increment() -> Kernel:
    view = View(0, F, (1,))
    body = (Instr("load", F, (), 0), Instr("scalar", F, (), 0), Instr("add", F, (0, 1)))
    return Kernel(1, 0, (F,), (view, view), (F,), body, (Store(2, 1),))


def _copy() -> Kernel:
    return building.unary(F, Instr("scalar", F, (), 0), Instr("add", F, (0, 1)))._replace(scalars=(F,))


def _slow() -> Kernel:
    """Return a kernel that takes a while: each element is the sum of a long row."""
    views = (View(0, F, (0, 1)), View(1, F, (1, 0)))
    body = (Instr("load", F, (), 0), Instr("reduce", F, (0,), "sum"))
    return Kernel(1, 1, (F, F), views, (), body, (Store(1, 1),))


@check("L7.order.read_after_many")
def read_after_many_launches(bench: Bench) -> None:
    """A read sees all of some hundred launches, each on the result of the last."""
    launch, handle = bench.prepare(_increment()), bench.put(np.zeros(100, F))
    for k in range(LAUNCHES):
        launch((handle,), (100, 0, 0), (float(k % 3),))
    got = bench.read(handle, F, 100)
    want = sum(k % 3 for k in range(LAUNCHES))
    assert (got == want).all(), f"after {LAUNCHES} launches a read gave {got[0]}, not {want}"


@check("L7.order.read_after_write")
def a_chain_through_many_buffers(bench: Bench) -> None:
    """Each launch reads what the one before has written elsewhere."""
    launch = bench.prepare(_copy())
    handles = [bench.put(np.full(64, -1, F)) for _ in range(6)]
    bench.write(handles[0], np.zeros(64, F))
    for k in range(60):
        launch((handles[k % 6], handles[(k + 1) % 6]), (64, 0, 0), (1.0,))
    got = bench.read(handles[0], F, 64)
    assert (got == 60).all(), f"a chain of 60 launches gave {got[0]}"


@check("L7.order.write_after_read")
def a_write_does_not_overtake(bench: Bench) -> None:
    """A launch that reads a buffer sees what was there before a later write to it."""
    launch = bench.prepare(_copy())
    source = bench.put(np.zeros(5000, F))
    targets = [bench.put(np.full(5000, -1, F)) for _ in range(10)]
    for k, target in enumerate(targets):
        launch((source, target), (5000, 0, 0), (0.0,))
        bench.write(source, np.full(5000, k + 1, F))
    for k, target in enumerate(targets):
        got = bench.read(target, F, 5000)
        assert (got == k).all(), f"launch {k} saw {got[got != k][0]}, which was written after it"


@check("L7.order.write_after_write")
def the_last_store_wins(bench: Bench) -> None:
    """Of several launches into one buffer the last is seen, though an earlier one is slow."""
    slow, quick = bench.prepare(_slow()), bench.prepare(_copy())
    row, ones, target = bench.put(np.ones(40_000, F)), bench.put(np.ones(50, F)), bench.put(np.zeros(50, F))
    for _ in range(3):
        slow((row, target), (50, 40_000, 0, 0), ())
        quick((ones, target), (50, 0, 0), (6.0,))
    got = bench.read(target, F, 50)
    assert (got == 7).all(), f"the last launch wrote 7; a read gave {got[got != 7][0]}"


@check("L7.order.slow_then_read")
def a_read_waits(bench: Bench) -> None:
    """A read waits for a slow launch, and so does synchronize."""
    slow = bench.prepare(_slow())
    row, target = bench.put(np.ones(60_000, F)), bench.put(np.zeros(60, F))
    slow((row, target), (60, 60_000, 0, 0), ())
    got = bench.read(target, F, 60)
    assert (got == 60_000).all(), f"a read after a slow launch gave {got[0]}"
    slow((row, target), (60, 60_000, 0, 0), ())
    bench.device.synchronize()
    assert (bench.read(target, F, 60) == 60_000).all()


@check("L7.order.free_early")
def memory_is_freed_after_use(bench: Bench) -> None:
    """Blocks are freed while launches that use them may still run; what is allocated next does not disturb them."""
    launch = bench.prepare(_copy())
    target = bench.put(np.zeros(20_000, F))
    for k in range(20):
        source = bench.put(np.full(20_000, k, F))
        launch((source, target), (20_000, 0, 0), (0.5,))
        bench.free(source)
        bench.free(bench.put(np.full(20_000, -9, F)))
    got = bench.read(target, F, 20_000)
    assert (got == 19.5).all(), f"a launch read {got[got != 19.5][0] - 0.5} from a block that was freed after it"


@check("L7.order.source_reuse")
def host_memory_is_free_at_once(bench: Bench) -> None:
    """A source is overwritten after each write, launches in between: every launch sees its own data."""
    launch = bench.prepare(_copy())
    host, device = np.zeros(3000, F), bench.allocate(12_000)
    outs = [bench.put(np.zeros(3000, F)) for _ in range(12)]
    ref = Ref(device, 0, (3000,), (1,), F)
    for k, out in enumerate(outs):
        host[:] = k
        bench.device.launch_op("write", (ref,), (), {"data": host.view(np.uint8).data.toreadonly()})
        launch((device, out), (3000, 0, 0), (0.0,))
        host[:] = -1
    for k, out in enumerate(outs):
        got = bench.read(out, F, 3000)
        assert (got == k).all(), f"launch {k} saw {got[got != k][0]}, which its source became later"


@check("L7.order.ops_and_kernels", needs=("op.copy",))
def ops_and_kernels_in_one_order(bench: Bench) -> None:
    """A library op takes its turn among kernels."""
    launch = bench.prepare(_increment())
    a, b = bench.put(np.zeros(4000, F)), bench.put(np.zeros(4000, F))
    first, second = (Ref(h, 0, (4000,), (1,), F) for h in (a, b))
    for _ in range(20):
        launch((a,), (4000, 0, 0), (1.0,))
        bench.op("copy", (second,), (first,), {})
        launch((b,), (4000, 0, 0), (0.5,))
        bench.op("copy", (first,), (second,), {})
    got = bench.read(a, F, 4000)
    assert (got == 30).all(), f"twenty rounds of kernel, copy, kernel, copy gave {got[0]}, not 30"


@check("L7.order.scalars")
def scalars_belong_to_their_launch(bench: Bench) -> None:
    """Launch scalars and ints are taken when the launch is made: a list that is changed later changes nothing."""
    launch, outs = bench.prepare(_copy()), [bench.put(np.full(2000, -5, F)) for _ in range(10)]
    zero = bench.put(np.zeros(2000, F))
    scalars = [0.0]
    buffers = [zero, outs[0]]
    for k, out in enumerate(outs):
        scalars[0] = float(k)
        buffers[1] = out
        launch(buffers, (2000, 0, 0), scalars)
    scalars[0], buffers[1] = -1.0, zero
    for k, out in enumerate(outs):
        got = bench.read(out, F, 2000)
        assert (got == k).all(), f"the launch with the scalar {k} left {got[0]}"


@check("L7.order.room")
def memory_comes_back_in_time(bench: Bench) -> None:
    """Freeing and allocating in a loop of launches does not run out of memory."""
    launch = bench.prepare(_copy())
    count = min(bench.info.limits.max_alloc, bench.info.limits.total // 3, 1 << 20) // 4
    keep = bench.put(np.zeros(count, F))
    try:
        for _ in range(min(bench.effort.repeats, 200)):
            block = bench.allocate(4 * count)
            launch((keep, block), (count, 0, 0), (1.0,))
            bench.free(block)
    except OutOfMemory as error:
        raise AssertionError(f"one block of {4 * count} bytes at a time does not fit: {error}") from None
