"""Launches of one kernel that do not wait for each other, made at once on devices that can: `polygrad.schedule.alike`.

`Herder` is such a device: the host's, with kernels that note how many launches are made together.
"""

import dataclasses
import gc

import numpy as np
import pytest
from hypothesis import given, settings

import polygrad as pg
from polygrad.driver import DriverInfo, Instr, Kernel, Store, View
from polygrad.driver.loader import REGISTRY
from polygrad.driver.oracle import run
from polygrad.driver.verify import verify
from polygrad.runtime.devices import state
from polygrad.runtime.realize import realize
from polygrad.schedule import Fused, Library, Many, alike, flatten
from polygrad_cpu.driver import CpuDriver
from support import fused_programs as fused


class Prepared:
    """A prepared kernel that makes many launches at once, in the order opposite to the one in which they come."""

    def __init__(self, driver, kernel):
        self.driver, self.single = driver, CpuDriver.prepare_fused(driver, kernel)

    def __call__(self, buffers, ints, scalars):
        self.driver.made.append(1)
        self.single(buffers, ints, scalars)

    def many(self, buffers, ints, scalars):
        self.driver.made.append(len(ints))
        for one in reversed(list(zip(buffers, ints, scalars, strict=True))):
            self.single(*one)


class Herder(CpuDriver):
    """One device, `herder:0`."""

    info = DriverInfo("herder", summary="makes launches of one kernel together")
    opened = None  # the instance that is open, for tests to look at

    def open(self, ordinal, options):
        info = super().open(ordinal, options)
        self.made = []
        Herder.opened = self
        features = dataclasses.replace(info.features, many=True)
        return dataclasses.replace(info, driver="herder", features=features, ops=frozenset(self.ops()))

    def prepare_fused(self, kernel):
        return Prepared(self, kernel)


@pytest.fixture
def herder():
    """The open driver, whose device is the default one."""
    plugin = Herder.plugin()
    REGISTRY.register(plugin)
    try:
        with pg.device("herder:0"):
            pg.zeros(1).realize()
            Herder.opened.made.clear()
            yield Herder.opened
    finally:
        gc.collect()
        REGISTRY.unregister(plugin)


def f32(rng, *shape):
    return pg.asarray(rng.normal(size=shape).astype(np.float32))


def manys(device="herder:0"):
    """Return how many launches each step of all plans so far makes that makes several."""
    steps = [s for program in state(device).plans.values() for s in program.plan.steps]
    return sorted(len(s.launches) for s in steps if isinstance(s, Many))


# ---- what comes together ------------------------------------------------------------------------------------------

SHAPES = [(6, 5), (5,), (3, 1, 4), (2, 3, 2, 2), (1,), (), (7, 3)]
OPTIMISERS = {
    "SGD": lambda ps: pg.optim.SGD(ps, 0.1, momentum=0.9),
    "Adam": pg.optim.Adam,
    "AdamW": pg.optim.AdamW,
    "amsgrad": lambda ps: pg.optim.Adam(ps, amsgrad=True, weight_decay=0.1),
    "NAdam": pg.optim.NAdam,
    "Adamax": pg.optim.Adamax,
    "RMSprop": pg.optim.RMSprop,
    "Adagrad": pg.optim.Adagrad,
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_updates_of_parameters_of_any_shape_are_one_launch(name, herder, rng):
    parameters, gradients = ([f32(rng, *shape) for shape in SHAPES] for _ in range(2))
    optimiser = OPTIMISERS[name](parameters)
    for _ in range(3):
        herder.made.clear()
        optimiser.step(gradients)
    assert herder.made == [len(SHAPES)]


def test_groups_with_and_without_decay_are_a_launch_each(herder, rng):
    parameters, gradients = ([f32(rng, *shape) for shape in SHAPES] for _ in range(2))
    groups = [{"params": parameters[:4]}, {"params": parameters[4:], "weight_decay": 0.0}]
    optimiser = pg.optim.AdamW(groups)
    for _ in range(2):
        herder.made.clear()
        optimiser.step([gradients[:4], gradients[4:]])
    assert sorted(herder.made) == [3, 4]


def test_the_weights_of_layers_are_updated_in_one_launch(herder, rng):
    """Their gradients lie in memory as they do, whatever way round the products are that they are."""
    layers = pg.nn.Sequential(*[pg.nn.Linear(n, m, bias=False) for n, m in ((7, 40), (40, 24), (24, 3))])
    optimiser = pg.optim.AdamW(layers)
    x = f32(rng, 9, 7)
    for _ in range(2):
        herder.made.clear()
        pg.sum(layers(x) ** 2).backward()
        optimiser.step()
        optimiser.zero_grad()
    assert herder.made[-1] == 3
    steps = [s for program in state("herder:0").plans.values() for s in program.plan.steps if isinstance(s, Many)]
    assert steps[-1].kernel.parallel == 1


def test_launches_that_wait_for_each_other_stay_apart(herder, rng):
    x, w = f32(rng, 40, 40), f32(rng, 40, 40)
    pg.realize(x, w)
    y = x
    for _ in range(4):
        y = pg.tanh(y @ w)
    pg.realize(y)
    assert not manys()


def test_what_reads_a_result_does_not_come_before_it(herder, rng):
    xs = [f32(rng, 300) for _ in range(6)]
    pg.realize(*xs)
    halves = [pg.cumulative_sum(x) for x in xs]
    tails = [pg.exp(h * 0.1) + 1.0 for h in halves]
    total = pg.sum(pg.stack(tails))
    pg.realize(total, *tails)
    assert manys() == [6]
    want = [np.exp(np.cumsum(x.numpy()) * np.float32(0.1)) + 1 for x in xs]
    for t, w in zip(tails, want, strict=True):
        np.testing.assert_allclose(t.numpy(), w, rtol=1e-4)


def test_kernels_that_look_at_indices_and_writes_stay_as_they_are(herder, rng):
    tables, index = [f32(rng, 50, 4) for _ in range(3)], pg.asarray(rng.integers(0, 50, 8))
    pg.realize(*tables, index)
    pg.realize(*[pg.take(t, index, axis=0) for t in tables])
    for t in tables:
        t[3:5] = 1.0
    pg.realize(*tables)
    assert not manys()


def test_large_launches_stay_alone(herder, monkeypatch):
    monkeypatch.setattr(alike, "SMALL", 4096)
    xs = [pg.ones(n, dtype=pg.float32) for n in (16, 600, 32, 700)]
    pg.realize(*xs)
    pg.realize(*[pg.sin(x) for x in xs])
    assert sorted(herder.made[-3:]) == [1, 1, 2]


# ---- memory, promptness, watchers ----------------------------------------------------------------------------------


def drafts(*rows):
    """Write steps shortly: (kernel or op, what it makes with sizes, what it reads) each, with lifetimes."""
    view = View(0, "float32", (1,))
    made, last = [], {}
    for k, (name, makes, reads) in enumerate(rows):
        body = (Instr("load", "float32", (), 0), Instr(name, "float32", (0,)))
        kernel = Kernel(1, 0, ("float32",), (view,), (), body, (Store(1, 0),))
        step = Fused(kernel, (*reads, *makes), -1, (1, 0), (), (), (), (), (), {})
        if name == "op":
            step = Library(name, (), (), (), (), (), (), 0)
        made.append((step, list(makes.items()), list(reads)))
        last.update(dict.fromkeys((*makes, *reads), k))
    fresh = {slot for _, makes, _ in made for slot, _ in makes}
    ends = [tuple(s for s, at in last.items() if at == k and s in fresh) for k in range(len(rows))]
    planned = [d[0]._replace(allocate=tuple(d[1]), release=e) for d, e in zip(made, ends, strict=True)]
    return made, planned


def names(found):
    return [
        (step.launches[0] if isinstance(step, Many) else step).kernel.body[1].op * len(makes)
        if not isinstance(step, Library)
        else "op"
        for step, makes, _ in found
    ]


BIG = 1 << 30
ROWS = (
    ("op", {1: BIG}, ()), ("exp", {2: 1}, (1,)), ("op", {3: BIG}, ()), ("exp", {4: 1}, (3,)), ("op", {5: 8}, (2, 4)),
)  # fmt: skip


def test_launches_do_not_wait_if_memory_is_kept_for_them():
    made, planned = drafts(*ROWS)
    assert names(alike.together(made, planned)) == ["op", "exp", "op", "exp", "op"]


def test_launches_wait_if_there_is_room_anyway():
    rows = [(name, {slot: size // BIG + 1 for slot, size in makes.items()}, reads) for name, makes, reads in ROWS]
    assert names(alike.together(*drafts(*rows))) == ["op", "op", "expexp", "op"]


def test_launches_come_before_their_time_if_there_is_room():
    rows = (("exp", {2: 8}, (0,)), ("op", {3: 8}, (2,)), ("exp", {4: 8}, (1,)), ("op", {5: 8}, (3, 4)))
    assert names(alike.together(*drafts(*rows))) == ["expexp", "op", "op"]
    rows = (("exp", {2: BIG}, (0,)), ("op", {3: 8}, (2,)), ("exp", {4: BIG}, (1,)), ("op", {5: 8}, (3, 4)))
    assert names(alike.together(*drafts(*rows))) == ["exp", "op", "exp", "op"]


def test_memory_that_is_made_again_is_read_before(herder):
    rows = (
        ("op", {1: 8}, ()),
        ("exp", {2: 8}, (1,)),
        ("op", {1: 8}, ()),
        ("exp", {3: 8}, (1,)),
        ("op", {4: 8}, (2, 3)),
    )
    assert names(alike.together(*drafts(*rows))) == ["op", "exp", "op", "exp", "op"]


def test_a_result_that_somebody_waits_for_is_not_delayed(herder, rng):
    """Gradients travel to other processes while the rest is computed: those plans are made without waiting."""
    xs = [f32(rng, 100) for _ in range(3)]
    pg.realize(*xs)
    landed = []

    def results():
        return [pg.exp(pg.cumulative_sum(x)) for x in xs]

    realize([r._node for r in results()], lambda node: landed.append(list(herder.made)))
    assert [1] in landed
    assert [1, 1] in landed
    herder.made.clear()
    pg.realize(*results())
    assert herder.made == [3]


def test_watched_launches_are_made_one_by_one(herder, rng):
    xs = [f32(rng, 10) for _ in range(3)]
    pg.realize(*xs)

    def results():
        return [pg.exp(x) for x in xs]

    want = [r.numpy() for r in results()]
    with pg.profile() as profile:
        got = results()
        pg.realize(*got)
    assert sum(event.kind == "fused" for event in profile.events) == 3
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
    pg.realize(*results())
    assert herder.made[-1] == 3


def test_explaining_shows_every_launch(herder, rng):
    xs = [f32(rng, n) for n in (10, 11, 12)]
    pg.realize(*xs)
    assert pg.explain(*[pg.exp(x) for x in xs]).startswith("herder:0: 3 launches")


# ---- values ---------------------------------------------------------------------------------------------------------


FLAT = {  # what a launch computes of x [4, 3, 5], and its axes afterwards, parallel and reduced
    "elementwise": (lambda x, row, one: pg.exp(x) * one, (1, 0)),
    "turned": (lambda x, row, one: pg.exp(pg.permute_dims(x, (1, 0, 2))), (3, 0)),
    "a row for all": (lambda x, row, one: pg.exp(x) * row, (3, 0)),
    "one element": (lambda x, row, one: pg.exp(one) * one, (1, 0)),
    "a sum": (lambda x, row, one: pg.sum(pg.exp(x)), (0, 1)),
    "sums of planes": (lambda x, row, one: pg.sum(pg.exp(x), axis=(1, 2)), (1, 1)),
    "sums of columns": (lambda x, row, one: pg.sum(pg.exp(x), axis=0), (1, 1)),
    "sums across": (lambda x, row, one: pg.sum(pg.exp(x), axis=(0, 2)), (1, 2)),
    "a sum with a row": (lambda x, row, one: pg.sum(x * row, axis=(1, 2)), (1, 2)),
    "a window": (lambda x, row, one: pg.pad(x, ((1, 0), (0, 0), (0, 0))) * one, (3, 0)),
    "a place": (lambda x, row, one: x * pg.astype(pg.reshape(pg.arange(60), (4, 3, 5)), pg.float32), (3, 0)),
}


@pytest.mark.parametrize("name", FLAT)
def test_a_flat_launch_computes_the_same(name, herder, rng):
    compute, axes = FLAT[name]
    operands = [f32(rng, 4, 3, 5), f32(rng, 5), f32(rng)]
    pg.realize(*operands)
    state("herder:0").plans.clear()
    pg.realize(compute(*operands))
    (program,) = state("herder:0").plans.values()
    step = program.plan.steps[0]
    flat = flatten.flattened(step, {})
    verify(flat.kernel)
    assert (flat.kernel.parallel, flat.kernel.reduced) == axes
    memory = [rng.normal(size=200).astype(dtype) for dtype in step.kernel.buffers]
    found = []
    for form in (step, flat):
        assert {at: leaf for at, leaf in form.offsets if "o" not in form.kernel.int_names[at]} == {}
        ints = list(form.ints)
        for at, leaf in form.offsets:  # operands that begin somewhere
            ints[at] += 7 * (1 + leaf)
        arrays = [a.copy() for a in memory]
        run(form.kernel, arrays, ints, [program.plan.slots * 0.5 for _ in form.scalars])
        found.append(arrays)
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("options", [{}, {"max_norm": 0.5}], ids=["plain", "clipped"])
def test_a_training_is_the_same_to_the_last_bit(compiled, options, herder):
    def training():
        pg.random.seed(4)
        model = pg.nn.Sequential(
            pg.nn.Conv2d(1, 4, 3), pg.nn.ReLU(), pg.nn.Flatten(), pg.nn.Linear(4 * 36, 20), pg.nn.GELU(),
            pg.nn.LayerNorm(20), pg.nn.Linear(20, 3),
        )  # fmt: skip
        optimiser = pg.optim.AdamW(model, lr=1e-2)
        schedule = pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=30, warmup=3)

        def step(x, y):
            loss = pg.nn.cross_entropy(model(x), y)
            loss.backward()
            optimiser.step(also=loss, **options)
            optimiser.zero_grad()
            schedule.step()
            return loss

        call = pg.compile(step) if compiled else step
        rng = np.random.default_rng(8)
        batches = [(rng.normal(size=(6, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 6)) for _ in range(6)]
        losses = [call(pg.asarray(x), pg.asarray(y)).detach().numpy() for x, y in batches]
        return losses + [p.numpy() for p in model.parameters()]

    together = training()
    assert max(herder.made) > 3
    with pg.device("cpu:0"):
        alone = training()
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_array_equal(a, b)


def three(program, seed, size):
    """Return values and gradients of a program that is run on three inputs at once, as NumPy arrays."""
    rng = np.random.default_rng(seed)
    shape = fused.SIZES[size]
    index = [pg.asarray(rng.integers(0, shape[1], shape[1])) for _ in range(4)]
    inputs = [[f32(rng, *shape).requires_grad_() for _ in range(2)] for _ in range(3)]
    results = [fused.run_program(program, two, index)[-1] for two in inputs]
    pg.realize(*results)
    sum(pg.sum(pg.sin(result) * 0.5) for result in results).backward()
    gradients = [x.grad for two in inputs for x in two if x.grad is not None]
    pg.realize(*gradients)
    return [a.detach().numpy() for a in (*results, *gradients)]


def test_operands_may_lie_elsewhere_at_each_call_of_a_replay(herder, rng):
    bases = [f32(rng, 100).realize() for _ in range(4)]

    def results(*xs):
        return pg.realize([pg.exp(x) * 2.0 for x in xs])

    compiled = pg.compile(results)
    for k in range(6):
        xs = [base[3 * j + k : 3 * j + k + 5] for j, base in enumerate(bases)]
        pg.realize(*xs)
        for got, want in zip(compiled(*xs), results(*xs), strict=True):
            np.testing.assert_array_equal(got.numpy(), want.numpy())
    assert herder.made[-2:] == [4, 4]


def test_what_another_launch_reads_is_not_written_over(herder, rng):
    a, b, c = (f32(rng, 500) for _ in range(3))
    pg.realize(a, b, c)

    def f(k):
        a[...], b[...] = b * k, a * k

    def g(k):
        a[...], c[...] = a * k, a * (k + 1.0)

    for change, ours in ((f, (a, b)), (g, (a, c))):
        compiled = pg.compile(change)
        for k in range(6):
            x, y = (one.numpy().copy() for one in ours)
            compiled(1.0 + k)
            want = (y * np.float32(1 + k), x * np.float32(1 + k)) if change is f else (x * (1 + k), x * (2 + k))
            for one, value in zip(ours, want, strict=True):
                np.testing.assert_array_equal(one.numpy(), value.astype(np.float32))
    assert 2 in herder.made


def test_casts_of_what_is_there_come_before_their_time(herder, rng):
    """They need no other result, and there is room for theirs."""
    x, *weights = [f32(rng, 30, 30) for _ in range(5)]
    pg.realize(x, *weights)
    y = x
    for w in weights:
        y = y @ pg.tanh(w)
    pg.realize(y)
    assert manys() == [4]
    want = x.numpy()
    for w in weights:
        want = want @ np.tanh(w.numpy())
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-4, atol=1e-4)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=fused.relaxed, database=None)
@given(program=fused.programs["program"], seed=fused.programs["seed"], size=fused.programs["size"])
def compare(program, seed, size):
    found = three(program, seed, size)
    with pg.device("cpu:0"):
        want = three(program, seed, size)
    for a, b in zip(found, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_random_programs_are_the_same_to_the_last_bit(herder):
    compare()
    assert max(herder.made) >= 3
