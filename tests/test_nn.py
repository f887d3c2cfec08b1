"""Modules, parameters, layers, initialisers and dropout.

Here: what `pg.nn` adds to the ops. Not here: the ops' values and gradients, which `test_ops_on_devices.py` takes from
the table.
"""

import contextlib
import copy
import math
import pickle

import numpy as np
import pytest

import polygrad as pg
from polygrad.nn import pending

nn = pg.nn


class Block(nn.Module):
    def __init__(self):
        self.inner = nn.Linear(3, 3)
        self.scale = nn.Parameter([1.0, 1.0, 1.0])

    def forward(self, x):
        return self.inner(x) * self.scale


class Net(nn.Module):
    def __init__(self):
        self.blocks = [Block(), Block()]
        self.heads = {"a": nn.Linear(3, 2), "b": (nn.Linear(3, 2, bias=False),)}
        self.register_buffer("seen", pg.zeros(2))
        self.register_buffer("scratch", pg.zeros(2), persistent=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.heads["a"](x) + self.heads["b"][0](x)


NAMES = [
    *(f"blocks.{k}.{name}" for k in (0, 1) for name in ("scale", "inner.weight", "inner.bias")),
    "heads.a.weight",
    "heads.a.bias",
    "heads.b.0.weight",
]


def test_parameters_are_found_in_attributes_lists_dicts_and_tuples(device):
    net = Net()
    assert [n for n, _ in net.named_parameters()] == NAMES
    assert net.num_parameters() == 2 * (3 + 9 + 3) + 6 + 2 + 6
    assert len(list(net.modules())) == 7
    assert all(p.requires_grad and p.dtype == pg.float32 and p.device == device for p in net.parameters())


def test_a_tied_weight_counts_once_under_its_first_name():
    net = Net()
    net.blocks[1].inner.weight = net.blocks[0].inner.weight
    names = [n for n, _ in net.named_parameters()]
    assert "blocks.1.inner.weight" not in names
    assert len({id(p) for p in net.parameters()}) == len(names)
    assert "blocks.1.inner.weight" not in net.state_dict()


def test_a_module_that_holds_itself_is_searched_once():
    block = Block()
    block.again = block
    assert len(list(block.named_parameters())) == 3


def test_parameter_dtypes():
    assert nn.Parameter([1, 2]).dtype == pg.float32
    assert nn.Parameter(2.0).dtype == pg.float32
    assert nn.Parameter(np.array([1, 2])).dtype == pg.float32
    assert nn.Parameter(np.zeros(2)).dtype == pg.float64
    assert nn.Parameter(pg.zeros(2, dtype=pg.float16)).dtype == pg.float16
    assert nn.Parameter([1.0], dtype=pg.float64).dtype == pg.float64
    with pytest.raises(pg.DTypeError, match="int32 arrays have no gradients"):
        nn.Parameter([1], dtype=pg.int32)


def test_a_parameter_is_a_leaf_whose_gradient_arrives_on_the_handle(device):
    source = pg.asarray([1.0, 2.0], dtype=pg.float32)
    w = nn.Parameter(source)
    assert w.is_leaf
    assert not source.requires_grad
    (w * w).sum().backward()
    assert w.grad.tolist() == [2.0, 4.0]
    with pg.no_grad():
        w.assign_([5.0, 6.0])
    assert w.is_leaf
    assert w.requires_grad
    w.grad = None
    (w * w).sum().backward()
    assert w.grad.tolist() == [10.0, 12.0]


def test_assigning_while_recording_is_refused_and_in_no_grad_must_fit():
    w = nn.Parameter([1.0, 2.0])
    with pytest.raises(pg.GradError) as refused:
        w.assign_([3.0, 4.0])
    assert str(refused.value) == "cannot assign to a parameter while gradients are recorded: do it in pg.no_grad()"
    with pg.no_grad(), pytest.raises(pg.ShapeError) as misfit:
        w.assign_([3.0])
    assert str(misfit.value) == "cannot assign a value of shape [1] to an array of shape [2]: the shapes must be equal"
    assert w.tolist() == [1.0, 2.0]


def test_a_graph_recorded_before_an_assignment_keeps_the_old_value(device):
    w = nn.Parameter([3.0])
    loss = (w * w).sum()
    with pg.no_grad():
        w.assign_([100.0])
    loss.backward()
    assert w.grad.tolist() == [6.0]


def test_numpy_may_look_at_a_parameter():
    w = nn.Parameter([1.0, 2.0])
    assert np.asarray(w).tolist() == [1.0, 2.0]
    with pytest.raises(pg.GradError):
        np.asarray(w * 1.0)


def test_frozen_parameters_get_no_gradient_and_stay_listed():
    net = Block()
    net.inner.requires_grad_(False)
    net(pg.ones((2, 3), dtype=pg.float32)).sum().backward()
    assert net.inner.weight.grad is None
    assert net.scale.grad is not None
    assert len(list(net.parameters())) == 3
    net.zero_grad()
    assert net.scale.grad is None


def test_state_round_trip_and_independence(device):
    one, two = Net(), Net()
    state = one.state_dict()
    assert set(state) == {*NAMES, "seen"}
    x = pg.ones((4, 3), dtype=pg.float32)
    before = one(x).tolist()
    report = two.load_state_dict(state)
    assert report == ([], [])
    assert two(x).tolist() == before
    with pg.no_grad():
        for p in one.parameters():
            p.assign_(p.detach() * 0.0)
    assert two(x).tolist() == before
    assert not any(a.requires_grad for a in state.values())
    assert float(pg.max(pg.abs(state["heads.a.weight"]))) > 0


def test_loading_is_all_or_nothing_and_the_report_names_everything():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    before = {n: a.tolist() for n, a in net.state_dict().items()}
    bad = {n: a * 0.0 for n, a in net.state_dict().items()}
    del bad["0.bias"]
    bad["extra"] = pg.zeros(1)
    bad["1.weight"] = pg.zeros((2, 2))
    bad["1.bias"] = pg.zeros(1, dtype=pg.int64)
    with pytest.raises(pg.StateError) as refused:
        net.load_state_dict(bad)
    assert str(refused.value) == (
        "cannot load this state into Sequential: it lacks 0.bias; it has extra, which the Sequential has not; 1.weight "
        "has "
        "shape [2, 2] and needs [1, 3]; 1.bias is int64 and needs float32; strict=False allows missing and unexpected "
        "names"
    )
    assert {n: a.tolist() for n, a in net.state_dict().items()} == before
    with pytest.raises(pg.StateError, match=r"1\.weight has shape"):
        net.load_state_dict(bad, strict=False)
    assert {n: a.tolist() for n, a in net.state_dict().items()} == before
    del bad["1.weight"], bad["1.bias"]
    report = net.load_state_dict(bad, strict=False)
    assert report.missing == ["0.bias", "1.weight", "1.bias"]
    assert report.unexpected == ["extra"]
    assert net[0].weight.tolist() == [[0.0, 0.0]] * 3


def test_loading_casts_and_takes_numpy():
    net = nn.Linear(2, 1, bias=False)
    net.load_state_dict({"weight": np.array([[1.0, 2.0]])})
    assert net.weight.dtype == pg.float32
    assert net.weight.tolist() == [[1.0, 2.0]]


def test_moving_a_model_keeps_handles_gradients_and_leaves(device, other_device):
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    handles = list(net.parameters())
    net(pg.ones((2, 1, 4, 4), dtype=pg.float32)).sum().backward()
    assert net.to(other_device) is net
    assert [id(p) for p in net.parameters()] == [id(p) for p in handles]
    assert {p.device for p in handles} == {other_device}
    assert all(p.is_leaf and p.requires_grad and p.grad.device == other_device for p in handles)
    assert net[1].running_mean.device == other_device
    net(pg.ones((2, 1, 4, 4), dtype=pg.float32, device=other_device)).sum().backward()


def test_converting_a_model():
    net = nn.Linear(2, 2).to(dtype=pg.float64)
    assert net.weight.dtype == pg.float64
    assert net.weight.is_leaf
    assert net(pg.ones((1, 2), dtype=pg.float64)).dtype == pg.float64


def test_deepcopy_and_pickle_of_a_model():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    net[0].bias.no_decay = True
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert made[0].weight is made[1].weight
        assert made[0].weight is not net[0].weight
        assert made[0].weight.tolist() == net[0].weight.tolist()
        assert made[0].weight.is_leaf
        assert made[0].weight.requires_grad
        assert made[0].bias.no_decay
        assert isinstance(made[0].weight, nn.Parameter)


def test_a_module_is_a_function_of_its_parameters(device):
    net = nn.Linear(2, 1)
    x = pg.asarray([[1.0, 2.0], [3.0, 4.0]], dtype=pg.float32)
    parameters = dict(net.named_parameters())
    grads = pg.grad(lambda p: nn.functional_call(net, p, x).sum())(parameters)
    assert grads["weight"].tolist() == [[4.0, 6.0]]
    assert grads["bias"].tolist() == [2.0]
    assert net.weight.grad is None
    assert net.weight is parameters["weight"]
    with pytest.raises(pg.StateError) as refused:
        nn.functional_call(net, {"nothing": x}, x)
    assert str(refused.value).startswith("cannot load this state into Linear: it has nothing, which the Linear has not")


def test_train_and_eval_reach_all_modules():
    net = nn.Sequential(nn.Dropout(0.9), nn.Sequential(nn.Dropout(0.9)))
    x = pg.ones(50)
    assert net.eval()(x).tolist() == [1.0] * 50
    assert not net[1][0].training
    assert net.train()(x).tolist() != [1.0] * 50


def test_repr_shows_the_tree():
    assert repr(nn.Sequential(nn.Linear(2, 3), nn.ReLU())) == "Sequential(\n  (0): Linear(2, 3)\n  (1): ReLU()\n)"


def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()(1)


def test_sequential_slices_appends_and_takes_functions():
    net = nn.Sequential(nn.Linear(2, 3), pg.nn.relu)
    net.append(nn.Linear(3, 1))
    assert len(net) == 3
    assert isinstance(net[:2], nn.Sequential)
    assert net[:2](pg.ones((1, 2), dtype=pg.float32)).shape == (1, 3)
    assert [n for n, _ in net.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]


# ---- layers --------------------------------------------------------------------------------------------------


def test_linear_against_numpy(device, rng):
    layer = nn.Linear(5, 3)
    x = rng.normal(size=(2, 4, 5)).astype("float32")
    want = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    np.testing.assert_allclose(layer(pg.asarray(x)).detach().numpy(), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(pg.ShapeError) as refused:
        layer(pg.ones((2, 4), dtype=pg.float32))
    assert str(refused.value) == "cannot apply Linear(5, 3) to shape [2, 4]: the last axis must have 5 elements"


def test_embedding_rows_and_the_gradient_of_repeated_ones(device):
    layer = nn.Embedding(4, 2)
    out = layer(pg.asarray([[1, 1], [3, 1]]))
    assert out.shape == (2, 2, 2)
    assert out.detach().numpy()[0, 0].tolist() == layer.weight.tolist()[1]
    out.sum().backward()
    assert layer.weight.grad.tolist() == [[0.0, 0.0], [3.0, 3.0], [0.0, 0.0], [1.0, 1.0]]
    with pytest.raises(pg.OutOfBounds):
        layer(pg.asarray([4])).detach().numpy()


def test_conv_and_pool_shapes(device):
    x = pg.ones((2, 4, 9, 8), dtype=pg.float32)
    assert nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, groups=2)(x).shape == (2, 6, 5, 5)
    assert nn.Conv2d(4, 6, 3, padding="same", dilation=2, bias=False)(x).shape == (2, 6, 9, 8)
    assert nn.MaxPool2d(2)(x).shape == (2, 4, 4, 4)
    assert nn.AvgPool2d(3, stride=1, padding=1)(x).shape == (2, 4, 9, 8)
    assert nn.Flatten()(x).shape == (2, 288)
    assert nn.Identity()(x) is x
    with pytest.raises(pg.ShapeError, match="cannot split 4 and 6 channels into 3 groups"):
        nn.Conv2d(4, 6, 3, groups=3)


def test_norm_layers_against_numpy(device, rng):
    x = rng.normal(size=(3, 4, 5)).astype("float32")
    layer = nn.LayerNorm((4, 5))
    want = (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5)
    np.testing.assert_allclose(layer(pg.asarray(x)).detach().numpy(), want, rtol=1e-4, atol=1e-5)
    want = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(nn.RMSNorm(5)(pg.asarray(x)).detach().numpy(), want, rtol=1e-4, atol=1e-5)
    assert all(p.no_decay for p in layer.parameters())
    with pytest.raises(pg.ShapeError, match=r"cannot apply RMSNorm\(\[4\]\) to shape \[3, 4, 5\]"):
        nn.RMSNorm(4)(pg.asarray(x))


def test_batch_norm_trains_on_the_batch_and_evaluates_on_what_it_has_seen(device, rng):
    layer = nn.BatchNorm2d(2, momentum=0.5)
    x = rng.normal(3.0, 2.0, size=(4, 2, 3, 3)).astype("float32")
    out = layer(pg.asarray(x))
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    want = (x - mean[:, None, None]) / np.sqrt(var[:, None, None] + 1e-5)
    np.testing.assert_allclose(out.detach().numpy(), want, rtol=1e-4, atol=1e-5)
    unbiased = var * 36 / 35
    np.testing.assert_allclose(layer.running_mean.numpy(), 0.5 * mean, rtol=1e-5)
    np.testing.assert_allclose(layer.running_var.numpy(), 0.5 + 0.5 * unbiased, rtol=1e-5)
    assert not layer.running_mean.requires_grad
    layer.eval()
    want = (x - 0.5 * mean[:, None, None]) / np.sqrt((0.5 + 0.5 * unbiased)[:, None, None] + 1e-5)
    np.testing.assert_allclose(layer(pg.asarray(x)).detach().numpy(), want, rtol=1e-4, atol=1e-5)
    assert set(layer.state_dict()) == {"weight", "bias", "running_mean", "running_var"}
    with pytest.raises(pg.ShapeError, match="a channel needs at least 2 values"):
        layer.train()(pg.ones((1, 2, 1, 1), dtype=pg.float32))


def test_an_optimiser_step_computes_running_statistics_too(device):
    layer = nn.BatchNorm2d(1)
    optimiser = pg.optim.SGD(layer, lr=0.1)
    x = pg.random.normal((4, 1, 3, 3), dtype=pg.float32)
    pending.take()
    for _ in range(3):
        optimiser.zero_grad()
        (layer(x) * x).sum().backward()
        optimiser.step()
        assert layer.running_mean._node.storage is not None
        assert layer.running_mean._node.parents == ()


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (nn.ReLU(), "relu"),
        (nn.GELU(), "gelu"),
        (nn.SiLU(), "silu"),
        (nn.Tanh(), "tanh"),
        (nn.Sigmoid(), "sigmoid"),
        (nn.Softmax(), "softmax"),
    ],
)
def test_activation_modules_apply_their_function(module, function):
    x = pg.asarray([[-1.0, 0.0, 2.0]])
    assert module(x).tolist() == getattr(nn.functional, function)(x).tolist()


def test_functions_are_in_nn_and_in_functional():
    for name in ["softmax", "logsumexp", "relu", "gelu", "swiglu", "rms_norm", "cross_entropy", "mse_loss", "conv2d"]:
        assert getattr(nn, name) is getattr(nn.functional, name) is getattr(pg, name)
    assert nn.dropout is nn.functional.dropout
    assert nn.load_safetensors is pg.io.load_safetensors


# ---- random --------------------------------------------------------------------------------------------------


def test_dropout_with_two_probabilities_in_one_process(device):
    x = pg.ones(20_000, dtype=pg.float32)
    for p in (0.5, 0.1, 0.9):
        kept = nn.dropout(x, p).numpy()
        assert abs((kept > 0).mean() - (1 - p)) < 0.02
        assert np.allclose(kept[kept > 0], 1 / (1 - p), rtol=1e-6)
    with pg.launch_counter() as c:
        nn.dropout(x, 0.3).realize()
        nn.dropout(x, 0.7).realize()
    assert c.builds == 0


def test_dropout_at_its_ends_and_its_gradient(device):
    x = pg.ones(1000, dtype=pg.float32).requires_grad_()
    assert nn.dropout(x, 0.0) is x
    assert nn.dropout(x, 0.5, training=False) is x
    assert nn.dropout(x, 1.0).tolist() == [0.0] * 1000
    out = nn.dropout(x, 0.25)
    out.sum().backward()
    assert out.tolist() == x.grad.tolist()
    with pytest.raises(pg.ShapeError) as refused:
        nn.dropout(x, 1.5)
    assert str(refused.value) == "cannot drop elements with probability 1.5: it must be in [0, 1]"


@pytest.mark.parametrize("use", ["recorded", "not recorded", "frozen", "backward"])
def test_the_first_values_of_a_parameter_are_drawn_once(device, use):
    def made(realized):
        pg.random.seed(6)
        w = pg.nn.Parameter(pg.nn.init.kaiming_uniform((8, 4), device=device))
        if realized:
            pg.realize(w)
        w.requires_grad = use != "frozen"
        return w

    def used(w):
        with pg.no_grad() if use == "not recorded" else contextlib.nullcontext():
            out = pg.tanh(x @ w)
        if use == "backward":
            out.sum().backward()
            out, w.grad = w.grad, None
        return out.detach().numpy()

    x = pg.ones((2, 8), dtype=pg.float32, device=device)
    once, twin = made(False), made(True)
    first, values = used(once), twin.numpy()
    used(twin)
    counts = []
    for w in (twin, once):
        with pg.launch_counter() as c:
            np.testing.assert_array_equal(used(w), first)
        counts.append((c.fused, c.ops))
    assert counts[0] == counts[1]
    with pg.launch_counter() as c:
        np.testing.assert_array_equal(once.numpy(), values)
    assert c.total == 0


def test_complex_leaves_are_computed_once_and_constant_ones_not_at_all(host):
    z = (pg.random.normal((4,)) + 1j * pg.random.normal((4,))).requires_grad_()
    (z * 2).realize()
    gain = pg.nn.Parameter(pg.ones((4,), dtype=pg.float32))
    (gain * 2).realize()
    for leaf, launches in ((z, 0), (gain, 1)):
        with pg.launch_counter() as c:
            leaf.realize()
        assert c.total == launches


def test_initialisers_have_the_variance_they_promise(device):
    shape = (200, 100)
    wanted = {
        nn.init.kaiming_uniform: 2 / 100,
        nn.init.kaiming_normal: 2 / 100,
        nn.init.xavier_uniform: 2 / 300,
        nn.init.xavier_normal: 2 / 300,
    }
    for function, variance in wanted.items():
        values = function(shape).numpy()
        assert values.dtype == np.float32
        assert abs(values.mean()) < 3 * math.sqrt(variance / 20_000) + 1e-4
        assert abs(values.var() / variance - 1) < 0.05
    limit = math.sqrt(6 / 100)
    values = nn.init.kaiming_uniform(shape).numpy()
    assert limit * 0.99 < np.abs(values).max() <= limit
    assert nn.init.fans((8, 4, 3, 3)) == (36, 72)
    assert nn.init.zeros((2,)).tolist() == [0.0, 0.0]
    assert nn.init.ones((2,)).dtype == pg.float32
    with pytest.raises(pg.ShapeError, match="needs at least two axes"):
        nn.init.xavier_normal((3,))


def test_weights_have_the_same_bits_on_all_devices(device):
    def first_weights(name):
        with pg.device(name):
            pg.random.seed(5)
            return nn.Sequential(nn.Linear(7, 5), nn.Conv2d(2, 3, 3), nn.Embedding(4, 3)).state_dict()

    here, there = first_weights(device), first_weights("cpu:0")
    for name, array in here.items():
        assert array.numpy().tobytes() == there[name].numpy().tobytes()
