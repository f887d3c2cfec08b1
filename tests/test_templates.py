"""What is recorded again from a template is what the rules would record: composites, backward passes, updates.

Here: the same calls by rules and by templates, bit for bit; what must not be made from a template; late nodes.
Not here: what the functions compute, and the optimisers (files of their names).
"""

import ast
import contextlib
import copy
import pathlib
import pickle

import numpy as np
import pytest

import polygrad as pg
from polygrad.array import repeating
from polygrad.array.functions import FUNCTIONS
from polygrad.autograd import again
from polygrad.autograd.reverse import watched
from polygrad.graph.node import RECORDING, Node, number_of, scalar
from polygrad.graph.templates import Late, operands_of
from polygrad.ops import TABLE
from polygrad.runtime.devices import state
from polygrad.testing.draw import Draw

STEPS = 5
OPS = pathlib.Path(pg.__file__).parent / "ops"
PAIRS = {"complex_arithmetic", "complex_parts"}  # what they read are the parts of complex operands
MAPPING = {"batching"}  # `vmap` goes by rules
COMPOSITES = sorted(name for name in FUNCTIONS if TABLE[name].kind == "composite" and TABLE[name].samples)


@contextlib.contextmanager
def rules_alone():
    """Have everything recorded by its rules: an observer is to see every node as it is made."""
    before, RECORDING.observer = RECORDING.observer, lambda node: None
    try:
        yield
    finally:
        RECORDING.observer = before


def same_bits(a, b):
    """Whether two arrays, or tuples of them, have the same bits."""
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b, strict=True))
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


def network(device, dtype=None):
    """Return a small network, a batch and labels."""
    pg.random.seed(3)
    layers = [pg.nn.Linear(6, 9), pg.nn.GELU(), pg.nn.LayerNorm(9), pg.nn.Linear(9, 4)]
    model = pg.nn.Sequential(*layers).to(device, dtype)
    rng = np.random.default_rng(5)
    x = pg.asarray(rng.normal(size=(7, 6)).astype(np.float32), device=device)
    return model, x if dtype is None else x.astype(dtype), pg.asarray(rng.integers(0, 4, 7), device=device)


# ---- composites ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite_gives_the_same_bits_however_often_it_is_called(host, name):
    draw = Draw(np.random.default_rng(11), np.dtype(np.float64))
    for given, named in list(TABLE[name].samples(draw))[:2]:
        if not all(isinstance(v, np.ndarray) for v in given[:1]):
            continue
        arrays = [pg.asarray(v, device=host) if isinstance(v, np.ndarray) else v for v in given]
        with rules_alone():
            wanted = FUNCTIONS[name](*arrays, **named)
        for _ in range(3):
            assert same_bits(FUNCTIONS[name](*arrays, **named), wanted)


def test_the_third_call_of_a_composite_asks_no_rule(device):
    x = pg.asarray([[0.5, -1.5, 2.0]], device=device)
    calls = []
    made = repeating.repeating(lambda x, axis: calls.append(axis) or (x * 2.0 if axis else x + 1.0))
    found = [made([x._node, 1], {}) for _ in range(4)]
    assert calls == [1, 1]
    assert all(pg.Array(n).tolist() == [[1.0, -3.0, 4.0]] for n in found)


def test_arguments_that_are_equal_and_not_the_same_are_told_apart(device):
    node = pg.asarray([1.0], device=device)._node
    forms = [repeating._form([node, value], {}, []) for value in (0, 0.0, -0.0, False, "0", None, (0,))]
    assert len(set(forms)) == len(forms)
    other, watched = node + 1.0, pg.asarray([1.0], device=device).requires_grad_()._node
    forms = [[node, node], [node, other], [node, other, other], [node, watched], [node, other, node], [other, watched]]
    assert len({repeating._form(given, {}, []) for given in forms}) == len(forms) - 1  # the last is the fourth again


def test_a_count_that_is_read_from_the_device_is_read_at_each_call(device):
    for counts in ([1, 2, 3], [0, 2, 0], [2, 2, 2], [1, 0, 1], [3, 0, 0]):
        repeated = pg.repeat(pg.asarray([5, 6, 7], device=device), pg.asarray(counts, device=device))
        assert repeated.tolist() == np.repeat([5, 6, 7], counts).tolist()


@pytest.mark.parametrize("module", sorted({p.stem for p in OPS.glob("*.py")} - PAIRS - MAPPING))
def test_rules_that_look_at_how_an_operand_came_about_say_so(module):
    tree = ast.parse((OPS / f"{module}.py").read_text())
    for found in ast.walk(tree):
        if isinstance(found, ast.FunctionDef):
            names = {n.attr for n in ast.walk(found) if isinstance(n, ast.Attribute)}
            called = {n.func.id for n in ast.walk(found) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
            assert "looked" in called or not names & {"parents", "storage"}, f"{found.name} must call looked()"


def test_positions_that_count_are_no_pattern_for_others(device):
    x = pg.asarray([[5, 6, 7], [8, 9, 10], [11, 12, 13]], device=device)
    for _ in range(3):
        assert pg.take(x, pg.arange(3, device=device), axis=0).tolist() == x.tolist()
    assert pg.take(x, pg.asarray([2, 0, 1], device=device), axis=0).tolist() == [x.tolist()[k] for k in (2, 0, 1)]


def test_watched_and_constant_operands_have_forms_of_their_own(device):
    x = pg.asarray([[0.3, -0.7, 1.1]], device=device)
    for _ in range(3):
        assert not pg.softmax(x).requires_grad
        w = pg.asarray([[0.3, -0.7, 1.1]], device=device).requires_grad_()
        y = pg.softmax(w * 1.0)
        assert y.requires_grad
        with pg.no_grad():
            assert not pg.softmax(w * 1.0).requires_grad
        y[0, 0].backward()
        p = np.exp([0.3, -0.7, 1.1]) / np.exp([0.3, -0.7, 1.1]).sum()
        np.testing.assert_allclose(w.grad.numpy()[0], p[0] * (np.eye(3)[0] - p), rtol=1e-12)


def test_a_bad_label_is_reported_with_the_line_of_the_call(device):
    x = pg.zeros((2, 3), dtype=pg.float32, device=device)
    for _ in range(3):
        pg.realize(pg.nn.cross_entropy(x, pg.asarray([0, 2], device=device)))
    bad = pg.nn.cross_entropy(x, pg.asarray([0, 3], device=device))
    with pytest.raises(pg.errors.OutOfBounds, match=r"test_templates\.py"):
        bad.item()


# ---- backward passes -------------------------------------------------------------------------------------------------


def gradients(model, x, y):
    """Return the gradients of a loss."""
    for p in model.parameters():
        p.grad = None
    pg.nn.cross_entropy(model(x), y).backward()
    return [p.grad for p in model.parameters()]


def test_a_backward_pass_from_a_template_gives_the_same_bits(device):
    model, x, y = network(device)
    with rules_alone():
        wanted = gradients(model, x, y)
    pg.realize(wanted)
    for k in range(STEPS):
        found = gradients(model, x, y)
        assert (type(found[0]._node) is Late) == (k > 1)
        pg.realize(found)  # together, as the first ones
        assert same_bits(found, wanted)


def test_gradients_are_added_up_and_used_before_they_are_computed(device):
    model, x, y = network(device)
    wanted = [2.0 * g.numpy() for g in gradients(model, x, y)]
    for _ in range(STEPS):
        gradients(model, x, y)
        pg.nn.cross_entropy(model(x), y).backward()
        for p, g in zip(model.parameters(), wanted, strict=True):
            np.testing.assert_allclose(p.grad.numpy(), g, rtol=2e-5, atol=1e-6)


def test_some_gradients_of_a_pass_may_be_computed_before_others(device):
    model, x, y = network(device)
    wanted = [g.numpy() for g in gradients(model, x, y)]
    for k in range(2 * len(wanted)):
        found = gradients(model, x, y)
        found[k % len(found)].realize()
        if k % 2:
            del found[0]
            next(iter(model.parameters())).grad = None
        for g, w in zip(found[::-1], wanted[::-1], strict=False):
            np.testing.assert_allclose(g.numpy(), w, rtol=2e-5, atol=1e-6)


def test_numbers_and_shapes_are_part_of_the_form(device):
    w = pg.asarray([0.5, -2.0, 3.0], device=device).requires_grad_()
    for k in range(9):
        factor = [2.0, -0.0, 0.0, 7.0][k % 4]
        w.grad = None
        h = w
        for _ in range(again.SHORTEST):
            h = h * 1.0
        (h * factor).sum().backward()
        assert np.array_equal(np.signbit(w.grad.numpy()), [np.signbit(factor)] * 3)
        assert w.grad.tolist() == [factor] * 3


def test_a_rule_may_decide_by_the_numbers_among_its_operands(host, monkeypatch):
    def by_number(xp, g, out, x, y):
        return g * (number_of(y) if y.spec.op.kind == "scalar" else y)  # the number is the template's own

    monkeypatch.setattr(again, "_known", {})
    monkeypatch.setattr(TABLE["multiply"], "vjp", (by_number, None))
    numbers = [2.0, 3.0, 0.0, -0.0]
    for factor in [*numbers, *numbers, *numbers, *[pg.asarray(np.array(v)) for v in numbers], *numbers]:
        w = pg.asarray([0.5, -2.0, 3.0], dtype=pg.float64).requires_grad_()
        h = w
        for _ in range(again.SHORTEST):
            h = h + 1.0
        (h * factor).sum().backward()
        assert w.grad.numpy().tobytes() == np.full(3, float(factor)).tobytes()
    assert len([p for p in again._known.values() if type(p) is again._Pass]) == len(numbers) + 1


@pytest.mark.parametrize("dtype", [pg.float32, pg.float64])
def test_passes_over_other_numbers_have_other_forms(device, dtype):
    def form(factor):
        x = pg.asarray([0.5, -2.0], dtype=dtype, device=device).requires_grad_()
        return again._form(watched([(x * factor)._node], -1), pg.ones(2, dtype=dtype, device=device)._node)[0]

    factors = [2, 3, 0.0, -0.0, True, 0.5, pg.asarray(2.0, dtype=dtype, device=device), pg.full(2, 2.0, dtype=dtype)]
    assert len({form(factor) for factor in factors}) == len(factors)
    assert form(2) == form(2.0) == form(pg.asarray(2.0).item())


def test_equal_numbers_of_other_dtypes_and_zeros_of_other_signs_are_told_apart():
    dtypes = {pg.bool: (False, True), pg.int64: (0, 1), pg.float32: (0.0, -0.0, 1.0), pg.float64: (0.0, -0.0, 1.0)}
    seen = [again._seen(scalar(value, dtype)) for dtype, values in dtypes.items() for value in values]
    assert len(set(seen)) == len(seen) == 10


def test_a_pass_is_freed_and_may_be_kept(device):
    model, x, y = network(device)
    for _ in range(STEPS):
        loss = pg.nn.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        first = [p.grad.numpy() for p in model.parameters()]
        loss.backward()
        np.testing.assert_allclose(next(iter(model.parameters())).grad.numpy(), 2 * first[0], rtol=1e-6)
        with pytest.raises(pg.GradError, match="second time"):
            loss.backward()
        for p in model.parameters():
            p.grad = None


def test_gradients_of_gradients_go_through_rules(device):
    x = pg.asarray([0.4, -0.9], device=device)
    second = pg.grad(lambda x: (pg.grad(lambda z: (pg.sin(z) * z).sum())(x) ** 2).sum())
    wanted = second(x).numpy()
    for _ in range(STEPS):
        assert second(x).numpy().tobytes() == wanted.tobytes()


# ---- late nodes ------------------------------------------------------------------------------------------------------


def test_a_late_node_has_operands_when_somebody_asks(device):
    model, x, y = network(device)
    for _ in range(3):
        found = gradients(model, x, y)
    node = found[0]._node
    assert type(node) is Late
    assert operands_of(node)
    assert type(node) is Late
    assert len(node.parents) == len(TABLE[node.spec.op.name].vjp or node.parents)
    assert type(node) is Node
    assert all(p.number < node.number for p in node.parents)
    assert pg.explain(found[1])
    assert found[1].tolist() == gradients(model, x, y)[1].tolist()


def around_steps(device, look):
    """Return what *look* gives before and after each of some steps of an optimiser."""
    model, x, y = network(device)
    optimiser = pg.optim.AdamW(model, lr=1e-2)
    seen = []
    for _ in range(STEPS + 3):
        pg.nn.cross_entropy(model(x), y).backward()
        before = look()
        optimiser.step()
        seen.append((before, look()))
        optimiser.zero_grad()
    return seen


def test_a_graph_with_late_nodes_launches_what_it_launches_without(device):
    seen = around_steps(device, lambda: (state(device).fused, state(device).ops))
    assert len({(after[0] - before[0], after[1] - before[1]) for before, after in seen[1:]}) == 1


def test_plans_are_not_made_anew_for_late_nodes(device):
    seen = around_steps(device, lambda: len(state(device).plans))
    assert len({after for _, after in seen[1:]}) == 1


# ---- updates ---------------------------------------------------------------------------------------------------------

OPTIMISERS = {
    "sgd": lambda p: pg.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda p: pg.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "plain": lambda p: pg.optim.SGD(p, lr=0.1),
    "adam": lambda p: pg.optim.Adam(p, weight_decay=0.01, amsgrad=True),
    "adamw": lambda p: pg.optim.AdamW(p, lr=1e-2),
    "nadam": lambda p: pg.optim.NAdam(p),
    "adamax": lambda p: pg.optim.Adamax(p),
    "rmsprop": lambda p: pg.optim.RMSprop(p, momentum=0.5, centered=True),
    "adagrad": lambda p: pg.optim.Adagrad(p, lr_decay=0.01),
    "lion": lambda p: pg.optim.Lion(p, weight_decay=0.1),
}


def trained(make, device, steps=STEPS, dtype=None, by_rules=False, **options):
    """Return the parameters and the state after some steps, in the course of which hyper-parameters change."""
    model, x, y = network(device, dtype)
    next(iter(model.parameters())).no_decay = True
    optimiser = make(model)
    for k in range(steps):
        optimiser.groups[0]["lr"] = 0.01 / (k + 1)
        if k == 3 and optimiser.groups[0].get("weight_decay"):
            optimiser.groups[0]["weight_decay"] = 0.0
        pg.nn.cross_entropy(model(x).astype(pg.float32), y).backward()
        with rules_alone() if by_rules else contextlib.nullcontext():
            optimiser.step(**options)
        optimiser.zero_grad()
    state = [a for s in optimiser.state.values() for a in list(s.values())[1:]]
    return [p.detach() for p in model.parameters()] + state


@pytest.mark.parametrize("name", OPTIMISERS)
def test_updates_from_templates_are_the_rules_updates(host, name):
    assert same_bits(trained(OPTIMISERS[name], host), trained(OPTIMISERS[name], host, by_rules=True))


def test_updates_from_templates_are_the_rules_updates_on_every_device(device):
    found = [trained(OPTIMISERS["adamw"], device, steps=3, by_rules=by_rules) for by_rules in (False, True)]
    for a, b in zip(*found, strict=True):  # numbers that several share make other kernels
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("options", [{"max_norm": 0.1}, {"scale": 4.0}, {"max_norm": 0.5, "nonfinite": "skip"}])
def test_scaled_updates_from_templates_are_the_rules_updates(host, options):
    make = OPTIMISERS["adamw"]
    assert same_bits(trained(make, host, **options), trained(make, host, by_rules=True, **options))


def test_updates_of_16_bit_parameters_from_templates_are_the_rules_updates(host):
    make = OPTIMISERS["adamw"]
    found = [trained(make, host, dtype=pg.bfloat16, by_rules=by_rules) for by_rules in (False, True)]
    assert same_bits(*found)


def test_a_rule_of_ones_own_is_asked_at_each_step(device):
    class Mine(pg.optim.Optimizer):
        slots = ()
        asked = 0

        def update(self, parameter, gradient, state, group, decay):
            self.asked += 1
            return parameter - gradient * (group["lr"] * self.asked), {}

    w = pg.nn.Parameter([1.0], device=device)
    optimiser = Mine([w], lr=1.0)
    for _ in range(4):
        optimiser.step([pg.asarray([1.0], dtype=pg.float32, device=device)])
    assert optimiser.asked == 4
    assert w.tolist() == [1.0 - (1 + 2 + 3 + 4)]


def test_a_copied_or_saved_optimiser_goes_on(device):
    w = pg.nn.Parameter([1.0, -1.0], device=device)
    optimiser = pg.optim.AdamW([w], lr=0.1)
    gradient = [pg.asarray([0.5, 2.0], dtype=pg.float32, device=device)]
    for _ in range(3):
        optimiser.step(gradient)
    for other in (copy.deepcopy(optimiser), pickle.loads(pickle.dumps(optimiser))):
        assert not other._recipes.known
        other.step(gradient)
        assert other.state["0"]["step"] == 4
    optimiser.step(gradient)
    assert same_bits(next(iter(other.groups[0]["params"].values())).detach(), w.detach())
