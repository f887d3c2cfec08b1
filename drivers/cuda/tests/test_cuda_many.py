"""Many launches of one kernel as one of CUDA: what lies in its struct, without a GPU; and on one, how many it takes.

Here: the driver's side. Not here: what comes together (`tests/test_alike.py`), bits (the suite).
"""

import ctypes
import itertools
import types

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver import Instr, Kernel, Store, View
from polygrad.driver.render.dialect import CUDA
from polygrad.driver.render.gpu_many import NOBODY, Layout, choose_many
from polygrad.driver.render.gpu_style import GpuLimits, render_gpu, render_many
from polygrad_cuda.bundles import Node, Varying
from polygrad_cuda.fused import FusedKernel

F = "float32"
VIEW = View(0, F, (1,))
# One scalar of each width, the widest in the middle, so that their order in the struct is not that of the kernel.
UPDATE = Kernel(
    1, 0, (F, F), (VIEW, VIEW._replace(buffer=1)), ("int8", F, "float64"),
    (
        Instr("load", F, (), 0), Instr("scalar", "int8", (), 0), Instr("cast", F, (1,)), Instr("add", F, (0, 2)),
        Instr("scalar", F, (), 1), Instr("multiply", F, (3, 4)), Instr("scalar", "float64", (), 2),
        Instr("cast", F, (6,)), Instr("add", F, (5, 7)),
    ),
    (Store(8, 1),),
)  # fmt: skip
SUM = Kernel(
    1, 1, (F, F), (View(0, F, (None, 1)), View(1, F, (1, 0))), (),
    (Instr("load", F, (), 0), Instr("reduce", F, (0,), "sum")), (Store(1, 1),),
)  # fmt: skip


class Buffers(ctypes.Structure):
    _fields_ = (("b0", ctypes.c_uint64), ("b1", ctypes.c_uint64))


class Scalars(ctypes.Structure):
    _fields_ = (("c2", ctypes.c_double), ("c1", ctypes.c_float), ("c0", ctypes.c_int8))


class Ints(ctypes.Structure):
    _fields_ = (("n0", ctypes.c_int), ("v0_o", ctypes.c_int), ("v1_o", ctypes.c_int))


def struct_of(capacity):
    """Return what a C compiler makes of the struct of UPDATE."""

    class All(ctypes.Structure):
        _fields_ = (
            ("buffers", Buffers * capacity), ("scalars", Scalars * capacity), ("ints", Ints * capacity),
            ("first", ctypes.c_int * capacity),
        )  # fmt: skip

    return All


class Driver:
    """As much of a driver as launches need; `launched` is what went to CUDA: grid, block, bytes of the struct."""

    dead, ordinal, stream, noting, errors = None, 0, 5, None, (OSError,)
    gpu_limits = GpuLimits()

    def __init__(self, parameter_bytes=4096):
        self.parameter_bytes, self.launched, self.nbytes = parameter_bytes, [], {}
        self.route = [self.launch_kernel]
        self.compiler = types.SimpleNamespace(function=self.function)
        self.set_device = lambda _ordinal: None

    def source_of_many(self, kernel, choice, layout):
        source = render_many(kernel, choice, layout)
        self.nbytes[source.text] = layout.nbytes
        return source

    def source(self, kernel, choice):
        return render_gpu(kernel, CUDA, choice)

    def function(self, text, name):
        self.texts = [*getattr(self, "texts", []), text]
        return len(self.texts) - 1

    def scratch_memory(self, nbytes):
        self.scratch = nbytes
        return 1 << 40

    def launch_kernel(self, function, x, _y, _z, threads, rows, _depth, _shared, _stream, arguments, _extra):
        (address,) = (ctypes.c_uint64 * 1).from_address(arguments)
        nbytes = self.nbytes.get(self.texts[function])  # None: a launch by itself
        self.launched.append((x, threads * rows, nbytes and ctypes.string_at(address, nbytes)))


@pytest.mark.parametrize("capacity", [2, 3, 8, 77])
def test_a_layout_is_what_a_compiler_makes_of_the_struct(capacity):
    (shared,) = choose_many([(UPDATE, (5, 0, 0))] * 2, GpuLimits())
    layout, made = Layout.of(shared.kernel, shared.choice, capacity), struct_of(capacity)
    assert layout.nbytes == ctypes.sizeof(made)
    assert (layout.buffers, layout.scalars, layout.ints, layout.first) == tuple(
        getattr(made, name).offset for name in ("buffers", "scalars", "ints", "first")
    )


def test_each_launch_has_its_arguments_and_its_blocks():
    driver = Driver()
    kernel = FusedKernel(driver, UPDATE)
    sizes = (1 << 20, 5, 1 << 19, 96)
    ints = tuple((n, 4 * k, 8 * k) for k, n in enumerate(sizes))
    for turn in (0, 1):
        buffers = [(100 + k + turn, 200 + k + turn) for k in range(4)]
        kernel.many(buffers, ints, [(k, 0.5 + k + turn, 1e-9 * k) for k in range(4)])
    wide, alone = driver.launched[2:]  # what can be read by vectors, and what cannot, which is one
    assert alone[2] is None
    found = struct_of(4).from_buffer_copy(wide[2])
    assert [(b.b0, b.b1) for b in found.buffers[:3]] == [(101, 201), (103, 203), (104, 204)]
    assert [(c.c0, c.c1, c.c2) for c in found.scalars[:3]] == [(0, 1.5, 0.0), (2, 3.5, 2 * 1e-9), (3, 4.5, 3 * 1e-9)]
    assert [(n.n0, n.v0_o, n.v1_o) for n in found.ints[:3]] == [(sizes[k], 4 * k, 8 * k) for k in (0, 2, 3)]
    first = list(found.first)
    assert first[0] == 0
    assert first[3] == NOBODY
    per_block = wide[1] * 4 * (2 if first[1] * wide[1] * 4 < sizes[0] else 1)
    assert first[1] == sizes[0] // per_block
    assert wide[0] == first[2] + 1


def test_more_launches_than_there_is_room_for_are_several():
    room = Layout.most(*choose_many([(UPDATE, (5, 0, 0))], GpuLimits())[0][:2], 700)
    driver = Driver(700)
    kernel = FusedKernel(driver, UPDATE)
    count = 2 * room + 2
    kernel.many([(k, k) for k in range(count)], tuple((k + 1, 0, 0) for k in range(count)), [(0, 0.0, 0.0)] * count)
    places = [[b.b0 for b in struct_of(room).from_buffer_copy(raw).buffers] for *_, raw in driver.launched[:2]]
    assert sorted(itertools.chain.from_iterable(places)) == list(range(count - 2))
    assert len(driver.launched) == 3


def test_split_sums_have_scratch_memory_of_their_own():
    driver = Driver()
    kernel = FusedKernel(driver, SUM)
    ints = ((2, 1 << 20, 0, 1 << 20, 0), (3, 1 << 20, 0, 1 << 20, 0))
    kernel.many([(10, 11), (20, 21)], ints, [(), ()])
    assert len(driver.launched) == 2  # the parts, and their sums
    places = [np.frombuffer(raw[:48], np.uint64).reshape(2, 3)[:, 2] for *_, raw in driver.launched]
    assert (places[0] == places[1]).all()
    low, high = sorted(int(p) for p in places[0])
    assert low == 1 << 40
    assert low < high < (1 << 40) + driver.scratch
    assert high % 256 == 0


def test_a_scalar_beyond_its_dtype_is_converted():
    driver = Driver()
    FusedKernel(driver, UPDATE).many([(1, 2), (3, 4)], ((5, 0, 0), (6, 0, 0)), [(300, 0.0, 0.0), (1, 0.5, 0.0)])
    scalars = struct_of(2).from_buffer_copy(driver.launched[0][2]).scalars
    assert sorted((c.c0, c.c1) for c in scalars) == [(1, 0.5), (44, 0.0)]


def test_launches_in_a_graph_get_other_scalars_and_keep_their_memory():
    driver = Driver()
    kernel = FusedKernel(driver, UPDATE)
    ints = ((5, 0, 0), (6, 0, 0))
    varying = Varying()
    varying.nodes = [Node(k, (0, 2, 1, 1, 128, 1, 1, 0, 5, 0, 0)) for k in (7, 8)]
    kernel.many([(1, 2), (3, 4)], ints, [(0, 0.5, 0.0), (1, 1.5, 0.0)])
    varying.many(kernel, kernel.together[ints])
    kernel.many([(5, 6), (7, 8)], ints, [(0, 0.5, 0.0), (1, 1.5, 0.0)])  # after it, in the graph and outside
    varying.many(kernel, kernel.together[ints])
    (node,) = varying.lay_out([(300, 2.5, 0.0), (3, 3.5, 0.0)])
    (address,) = (ctypes.c_uint64 * 1).from_address(node.parameters.arguments)
    found = struct_of(2).from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(struct_of(2))))
    assert sorted((b.b0, b.b1) for b in found.buffers) == [(1, 2), (3, 4)]
    assert sorted((c.c0, c.c1) for c in found.scalars) == [(3, 3.5), (44, 2.5)]


def test_launches_of_which_one_is_made_by_itself_are_noted_as_no_kernel():
    driver = Driver()
    kernel = FusedKernel(driver, UPDATE)
    driver.noting = varying = Varying()
    kernel.many([(1, 2), (3, 4), (5, 6)], ((1 << 20, 0, 0), (1 << 20, 0, 0), (5, 0, 0)), [(0, 0.5, 0.0)] * 3)
    kernel((7, 8), (5, 0, 0), (0, 0.5, 0.0))
    assert varying.kernel is None
    assert len(driver.launched) == 3


def test_a_step_of_many_parameters_is_one_launch(rng):
    if "cuda:0" not in pg.list_devices():
        pytest.skip("not run: needs a GPU")
    with pg.device("cuda:0"):
        parameters, gradients = (
            [pg.asarray(rng.normal(size=(n, 4 * n)).astype(np.float32)) for n in range(1, 60)] for _ in range(2)
        )
        optimiser = pg.optim.AdamW(parameters)
        for _ in range(2):
            with pg.launch_counter() as counter:
                optimiser.step(gradients)
        assert counter.total == 1


@pytest.mark.parametrize("last", [8, 7])  # 7 cannot be read as the others are, and is a launch by itself
def test_a_step_in_a_graph_has_the_numbers_of_its_call(last):
    if "cuda:0" not in pg.list_devices():
        pytest.skip("not run: needs a GPU")
    with pg.device("cuda:0"):
        plain, captured = training_step(last, compiled=False), training_step(last, compiled=True)
        for _ in range(9):
            for want, got in zip(plain(), captured(), strict=True):
                np.testing.assert_array_equal(got, want)


def training_step(last, *, compiled):
    """Return a function that makes a step and returns what the parameters are then."""
    rng = np.random.default_rng(1)
    shapes = [(300, 200), (last,), (200, 256), (64, 300)]
    parameters = [pg.nn.Parameter(rng.normal(size=s).astype(np.float32)) for s in shapes]
    optimiser = pg.optim.AdamW(parameters, lr=1e-2)
    schedule = pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=30, warmup=3)

    def step():
        w, b, v, u = parameters
        pg.mean(pg.tanh(u @ w @ v) ** 2 + pg.sum(b * b)).backward()
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()

    call = pg.compile(step) if compiled else step
    return lambda: (call(), [p.detach().numpy() for p in parameters])[1]
