"""Layers, models and losses of `pg.nn` by formulas and properties that need no other library.

Here: containers, names, state, hooks, summaries; convolutions and recurrences against NumPy loops; masks, caches, the
GPT; what bad input is told.
Not here: the comparison with PyTorch (`test_nn_torch.py`), modules' basics (`test_nn.py`).
"""

import math

import numpy as np
import pytest

import polygrad as pg

nn = pg.nn
F32 = {"dtype": pg.float32}


def ones(*shape):
    return pg.ones(shape, dtype=pg.float32)


def random(rng, *shape):
    return pg.asarray(rng.normal(size=shape).astype("float32"))


def near(got, want, limit=1e-5):
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=limit, atol=limit)


# ---- Module --------------------------------------------------------------------------------------------------


class Shared(nn.Module):
    def __init__(self):
        self.one = nn.Linear(2, 2)
        self.two = nn.Linear(2, 2)
        self.two.weight = self.one.weight
        self.again = self.one

    def forward(self, x):
        return self.two(self.one(x))


def test_every_name_of_a_tied_weight_can_be_asked_for():
    net = Shared()
    assert [n for n, _ in net.named_parameters()] == ["one.weight", "one.bias", "two.bias"]
    every = [n for n, _ in net.named_parameters(remove_duplicate=False)]
    assert every == ["one.weight", "one.bias", "two.weight", "two.bias", "again.weight", "again.bias"]
    assert net.get_parameter("two.weight") is net.one.weight
    assert net.get_submodule("again") is net.one
    with pytest.raises(pg.StateError, match="Shared has no parameter 'three'; it has one.weight"):
        net.get_parameter("three")
    with pytest.raises(pg.StateError, match="Shared has no module .three.; it has one, two, again"):
        net.get_submodule("three")


def test_a_state_may_call_a_tied_weight_by_any_of_its_names():
    net = Shared()
    state = {"two.weight": np.ones((2, 2)), "again.bias": np.ones(2), "two.bias": np.zeros(2)}
    assert net.load_state_dict(state) == ([], [])
    assert net.one.weight.tolist() == [[1.0, 1.0]] * 2
    assert net.one.bias.tolist() == [1.0, 1.0]
    with pytest.raises(pg.StateError, match="it has three, which the Shared has not"):
        net.load_state_dict({**state, "three": np.zeros(1)})


def test_the_count_of_batches_of_other_states_is_passed_over():
    net = nn.Sequential(nn.BatchNorm1d(2))
    state = {**net.state_dict(), "0.num_batches_tracked": np.asarray(3)}
    assert net.load_state_dict(state) == ([], [])
    with pytest.raises(pg.StateError, match="it has num_batches_tracked"):
        net.load_state_dict({**net.state_dict(), "num_batches_tracked": np.asarray(3)})


def test_hooks_see_outputs_and_may_replace_them():
    layer = nn.Identity()
    seen = []
    first = layer.register_forward_hook(lambda module, args, out: seen.append((module, args, out)))
    second = layer.register_forward_hook(lambda _module, _args, out: out + 1)
    assert layer(3) == 4
    assert seen == [(layer, (3,), 3)]
    second.remove()
    first.remove()
    first.remove()
    assert layer(3) == 3
    assert len(seen) == 1


def test_children_and_apply():
    net = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU()))
    assert [n for n, _ in net.named_children()] == ["0", "1"]
    order = []
    net.apply(lambda m: order.append(type(m).__name__))
    assert order == ["ReLU", "Sequential", "Linear", "Sequential"]


def test_a_dtype_alone_converts_and_tables_of_angles_stay():
    block = nn.TransformerBlock(8, 2, 8, rotary=nn.RotaryEmbedding(4, 8))
    block.to(pg.bfloat16)
    assert {p.dtype for p in block.parameters()} == {pg.bfloat16}
    assert {b.dtype for b in block.buffers()} == {pg.float32}
    assert block(pg.ones((1, 3, 8), dtype=pg.bfloat16)).dtype == pg.bfloat16


def test_the_optimisers_state_follows_a_model_that_moves(device, other_device):
    net = nn.Linear(2, 1)
    optimiser = pg.optim.Adam(net, lr=0.1)
    stay = nn.Linear(2, 1)
    stay.load_state_dict(net.state_dict())
    other = pg.optim.Adam(stay, lr=0.1)
    for _ in range(2):
        for module, opt, where in ((net, optimiser, net.weight.device), (stay, other, device)):
            opt.zero_grad()
            pg.sum(module(pg.ones((3, 2), dtype=pg.float32, device=where)) ** 2).backward()
            opt.step()
        net.to(other_device)
    assert net.weight.device == other_device
    near(net.weight, stay.weight.detach().numpy(), 1e-6)


def test_gradients_can_be_zeroed_in_place():
    net = nn.Linear(1, 1)
    pg.sum(net(ones(1, 1))).backward()
    net.zero_grad(set_to_none=False)
    assert net.weight.grad.tolist() == [[0.0]]
    net.zero_grad()
    assert net.weight.grad is None


def test_containers():
    layers = nn.ModuleList([nn.Linear(1, 1), nn.ReLU()])
    layers.append(nn.Tanh()).insert(0, nn.Identity())
    assert [type(m).__name__ for m in layers] == ["Identity", "Linear", "ReLU", "Tanh"]
    del layers[0]
    layers[-1] = nn.Sigmoid()
    assert [n for n, _ in layers.named_parameters()] == ["0.weight", "0.bias"]
    assert [type(m).__name__ for m in layers[1:]] == ["ReLU", "Sigmoid"]
    heads = nn.ModuleDict({"a": nn.Linear(1, 1)})
    heads["b"] = nn.ReLU()
    del heads["a"]
    assert list(heads.items()) == [("b", heads["b"])]
    assert "a" not in heads
    with pytest.raises(pg.StateError, match="cannot call a module 'keys'"):
        heads["keys"] = nn.ReLU()
    named = nn.Sequential({"first": nn.Linear(2, 3), "last": nn.Linear(3, 1)})
    assert [n for n, _ in named.named_parameters()][::2] == ["first.weight", "last.weight"]
    assert named(ones(1, 2)).shape == (1, 1)
    parameters = nn.ParameterList([[1.0], nn.Parameter([2.0])])
    assert [p.tolist() for p in parameters.parameters()] == [[1.0], [2.0]]


def test_a_summary_counts_each_weight_once_and_changes_nothing(device):
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    net[3].weight.requires_grad = False
    before = {n: a.tolist() for n, a in net.state_dict().items()}
    table = pg.summary(net, (5, 1, 4, 4))
    assert [(r.name, r.kind, r.output, r.parameters) for r in table.rows] == [
        ("", "Sequential", "[5, 3]", 0),
        ("0", "Conv2d", "[5, 2, 2, 2]", 20),
        ("1", "BatchNorm2d", "[5, 2, 2, 2]", 4),
        ("2", "Flatten", "[5, 8]", 0),
        ("3", "Linear", "[5, 3]", 27),
    ]
    assert (table.total, table.trainable, table.bytes) == (51, 27, (51 + 4) * 4)
    assert "51 parameters (27 trainable, 24 frozen), 220 B" in str(table)
    assert {n: a.tolist() for n, a in net.state_dict().items()} == before
    assert net.training
    assert net[1].training
    assert all(r.output == "" for r in pg.summary(net).rows)
    assert pg.summary(Shared()).total == 8


def test_a_summary_names_shared_weights_and_several_outputs():
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            assert x.dtype == pg.bfloat16
            return {"out": self.second(self.first(x)), "none": None}, x[0]

    table = pg.summary(Several().to(dtype="bfloat16"), (2, 3))
    assert [(r.output, r.parameters, r.shared) for r in table.rows] == [
        ("out: [2, 3], [3]", 0, False),
        ("[2, 3]", 12, False),
        ("[2, 3]", 3, True),
    ]
    assert str(table).splitlines()[4].endswith("  3 + shared")
    with pytest.raises(pg.StateError, match="^cannot make a table of dict: it is no pg.nn.Module$"):
        pg.summary({})


# ---- convolutions, recurrences -------------------------------------------------------------------------------


def test_a_convolution_is_the_sum_that_it_says(device, rng):
    layer = nn.Conv1d(2, 3, 2, stride=2, padding=1, padding_mode="circular")
    x = rng.normal(size=(1, 2, 4)).astype("float32")
    w, b = layer.weight.numpy(), layer.bias.numpy()
    wide = np.concatenate([x[..., -1:], x, x[..., :1]], -1)
    want = np.stack([(wide[:, None, :, 2 * i : 2 * i + 2] * w).sum((2, 3)) + b for i in range(3)], -1)
    near(layer(pg.asarray(x)), want)


def test_a_transposed_convolution_is_the_gradient_of_one(device, rng):
    up = nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1, bias=False)
    y, x = random(rng, 1, 3, 4, 3), random(rng, 1, 2, 8, 6)
    back = pg.grad(lambda v: pg.sum(pg.conv2d(v, up.weight.detach(), None, 2, 1) * y))(x)
    near(up(y), back.numpy())
    assert up(y, output_size=(7, 6)).shape == (1, 2, 7, 6)
    with pytest.raises(
        pg.ShapeError, match=r"cannot give sizes \[9, 6\]: from this input they are \[7, 5\] to \[8, 6\]"
    ):
        up(y, output_size=(9, 6))


@pytest.mark.parametrize("name", ["reflect", "replicate", "circular"])
def test_borders_of_the_arrays_own_elements(name, device):
    layer = nn.Conv1d(1, 1, 1, padding=2, padding_mode=name, bias=False)
    layer.load_state_dict({"weight": np.ones((1, 1, 1))})
    mode = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[name]
    want = np.pad(np.arange(4.0), 2, mode=mode)
    assert layer(pg.asarray([[[0.0, 1.0, 2.0, 3.0]]], **F32)).tolist() == [[want.tolist()]]


def test_an_lstm_is_its_formulas(device, rng):
    layer = nn.LSTM(2, 3)
    x = rng.normal(size=(4, 1, 2)).astype("float32")
    wi, wh = layer.weight_ih_l0.numpy(), layer.weight_hh_l0.numpy()
    b = layer.bias_ih_l0.numpy() + layer.bias_hh_l0.numpy()
    h = c = np.zeros((1, 3))
    for row in x:
        i, f, g, o = np.split(row @ wi.T + h @ wh.T + b, 4, -1)
        i, f, o = (1 / (1 + np.exp(-v)) for v in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
    out, (last, cell) = layer(pg.asarray(x))
    near(out[-1], h)
    near(last[0], h)
    near(cell[0], c)
    with pytest.raises(pg.ShapeError, match="there must be 2 of shape"):
        layer(pg.asarray(x), ones(1, 1, 3))
    with pytest.raises(pg.ShapeError, match=r"cannot apply LSTM\(2, 3\) to shape \[4, 1, 3\]"):
        layer(ones(4, 1, 3))


def test_dropout_between_recurrent_layers_works_in_training_alone(device):
    layer = nn.GRU(2, 4, num_layers=2, dropout=1.0)
    x = ones(3, 1, 2)
    moved = [not np.array_equal(layer(x)[0].detach().numpy(), layer(x * 2)[0].detach().numpy())]
    layer.eval()
    moved.append(not np.array_equal(layer(x)[0].detach().numpy(), layer(x * 2)[0].detach().numpy()))
    assert moved == [False, True]


def test_whole_channels_are_dropped(device):
    out = nn.Dropout2d(0.5)(ones(8, 16, 2, 2)).numpy().reshape(128, 4)
    assert {tuple(row) for row in out.tolist()} == {(0.0,) * 4, (2.0,) * 4}
    with pytest.raises(pg.ShapeError, match="cannot apply Dropout2d to shape"):
        nn.Dropout2d(0.5)(ones(2, 2))
    x = pg.random.normal((20_000,), dtype=pg.float32)
    kept = nn.AlphaDropout(0.2)(x).numpy()
    assert abs(kept.mean()) < 0.05
    assert abs(kept.std() - 1) < 0.05


# ---- attention and language models ---------------------------------------------------------------------------


def test_a_mask_is_never_ignored_and_joins_causality(device, rng):
    q, k, v = (random(rng, 1, 2, 4, 3) for _ in range(3))
    mask = np.ones((4, 4), bool)
    mask[2, 0] = mask[3] = False
    weights = pg.attention_weights(q, k, pg.asarray(mask), is_causal=True).numpy()
    assert np.all(weights[..., ~(mask & np.tri(4, dtype=bool))] == 0)
    np.testing.assert_allclose(weights[..., :3, :].sum(-1), 1, rtol=1e-6)
    out = nn.scaled_dot_product_attention(q, k, v, pg.asarray(mask), is_causal=True)
    near(out, weights @ v.numpy())
    assert np.all(out.numpy()[..., 3, :] == 0)
    grads = pg.grad(lambda a: pg.sum(nn.scaled_dot_product_attention(a, k, v, pg.asarray(mask))))(q)
    assert np.all(np.isfinite(grads.numpy()))
    with pytest.raises(pg.ShapeError, match="it must broadcast to"):
        nn.scaled_dot_product_attention(q, k, v, pg.ones((3, 4), dtype=pg.bool))
    with pytest.raises(pg.DTypeError, match="cannot mask with int64"):
        nn.scaled_dot_product_attention(q, k, v, pg.ones((4, 4), dtype=pg.int64))
    with pytest.raises(pg.ShapeError, match="must be a multiple of that of the keys"):
        nn.scaled_dot_product_attention(random(rng, 1, 3, 4, 3), k, v, enable_gqa=True)


def test_dropout_of_attention_drops_weights_and_keeps_their_mean(device, rng):
    q, k, v = random(rng, 1, 4, 64, 4), random(rng, 1, 4, 64, 4), ones(1, 4, 64, 1)
    out = nn.scaled_dot_product_attention(q, k, v, dropout_p=0.5).numpy()
    assert out.std() > 0.05
    assert abs(out.mean() - 1) < 0.1
    assert np.all(nn.scaled_dot_product_attention(q, k, v, dropout_p=1.0).numpy() == 0)


def test_a_causal_mask_of_multihead_attention_needs_no_second_one(device, rng):
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    x = random(rng, 1, 3, 4)
    weights = layer(x, x, x, is_causal=True)[1].detach().numpy()
    assert np.all(weights[0][~np.tri(3, dtype=bool)] == 0)
    with pytest.raises(pg.ShapeError, match=r"attn_mask is \[3, 3\] or \[2, 3, 3\]"):
        layer(x, x, x, attn_mask=pg.zeros((2, 3), dtype=pg.bool))
    with pytest.raises(pg.ShapeError, match="cannot split 5 features of MultiheadAttention into 2 heads"):
        nn.MultiheadAttention(5, 2)


@pytest.mark.parametrize("interleaved", [False, True])
def test_turned_queries_and_keys_tell_distances_alone(interleaved, device, rng):
    rotary = nn.RotaryEmbedding(6, 32, interleaved=interleaved)
    q, k = random(rng, 1, 6), random(rng, 1, 6)
    products = [float(pg.sum(rotary(q, at + 3) * rotary(k, at))) for at in (0, 5, 20)]
    np.testing.assert_allclose(products, products[0], rtol=1e-4)
    assert abs(float(pg.sum(rotary(q, 9) * rotary(k, 0))) - products[0]) > 1e-3
    near(rotary(q, 0), q.numpy())
    with pytest.raises(pg.ShapeError, match="cannot apply RotaryEmbedding to positions 32 to 32: it knows 32"):
        rotary(q, 32)


def test_sinusoids_are_those_of_the_paper(device):
    table = nn.SinusoidalEmbedding(5, 4)(pg.zeros((5, 4), dtype=pg.float32)).numpy()
    at = np.arange(5)
    want = np.stack([np.sin(at), np.cos(at), np.sin(at / 100), np.cos(at / 100)], -1)
    np.testing.assert_allclose(table, want, atol=1e-6)
    learnt = nn.PositionalEmbedding(5, 4)
    near(learnt(pg.zeros((2, 4), dtype=pg.float32), start=3), learnt.weight.numpy()[3:])


MODELS = {
    "rotary": {},
    "shared heads": {"heads": 4, "kv_heads": 2},
    "GPT-2": {"norm": "layer", "activation": "gelu_tanh", "positions": "learned", "bias": True},
    "sinusoidal, untied": {"positions": "sinusoidal", "tied": False, "activation": "relu"},
}


def gpt(**more):
    return nn.GPT(**{"vocab_size": 11, "context": 8, "dim": 16, "layers": 2, "heads": 2, **more})


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_the_same_with_and_without_a_cache(name):
    with pg.device("cpu:0"):
        compare_cached_and_plain(gpt(**MODELS[name]))


@pytest.mark.slow
def test_tokens_are_the_same_with_and_without_a_cache_on_every_device(device):
    compare_cached_and_plain(gpt(layers=1))


def compare_cached_and_plain(model):
    tokens = pg.asarray([[1, 2, 3], [4, 5, 6]])
    cached, plain = (model.generate(tokens, 8, temperature=0.0, use_cache=c) for c in (True, False))
    assert cached.shape == (2, 11)  # beyond the context of 8
    assert cached.tolist() == plain.tolist()
    mixed = pg.asarray([[1, 9, 3, 7, 0, 5, 2, 10], [4, 8, 6, 1, 10, 3, 9, 0]])  # equal tokens would hide who sees whom
    with pg.no_grad():
        for p in model.parameters():
            p.assign_(p.detach() * 5.0)
    whole = model.eval()(mixed).detach().numpy()
    caches = model.new_caches(2)
    parts = [model(mixed[:, a:b], caches).detach().numpy() for a, b in ((0, 3), (3, 4), (4, 8))]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-4, atol=1e-5)
    with pytest.raises(pg.ShapeError, match="cannot read 9 positions: this GPT has a context of 8"):
        model(mixed[:, :1], caches)


@pytest.mark.parametrize("training", [True, False])
def test_generating_leaves_the_mode_as_it_was_and_drops_nothing_meanwhile(host, training):
    model = gpt(dropout=0.5).train(training)
    with pg.no_grad():
        for p in model.parameters():
            p.assign_(p.detach() * 6.0)  # untrained scores are all alike
    tokens = pg.asarray([[1, 2, 3]])
    made = []
    for new in model.stream(tokens, 7, temperature=0.0):
        assert model.training is training
        made.append(new.item())
    assert [made] == model.eval().generate(tokens, 7, temperature=0.0)[:, 3:].tolist()


@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal"])
def test_replayed_tokens_are_those_without_a_cache(positions):
    with pg.device("cpu:0"):
        pg.random.seed(3)
        model = gpt(vocab_size=97, context=80, positions=positions, kv_heads=1)
        with pg.no_grad():
            for p in model.parameters():
                p.assign_(p.detach() * 6.0)  # untrained scores are all alike
        start = pg.asarray([[1, 2, 3], [50, 4, 9]])
        for settings in ({"temperature": 0.0}, {"temperature": 1.5, "top_k": 20, "top_p": 0.9}):
            made = []
            for cache in (True, False):
                pg.random.seed(5)
                made.append(model.generate(start, 50, use_cache=cache, **settings).tolist())
            assert made[0] == made[1]
            assert len(set(made[0][0])) > 5


def test_a_position_sees_nothing_behind_it(device):
    model = gpt().eval()
    one, two = pg.asarray([[1, 2, 3, 4]]), pg.asarray([[1, 2, 3, 9]])
    a, b = model(one).detach().numpy(), model(two).detach().numpy()
    np.testing.assert_array_equal(a[:, :3], b[:, :3])
    assert np.abs(a[:, 3] - b[:, 3]).max() > 1e-4


def test_a_gpt_learns_and_its_tied_weights_are_one(device):
    model = gpt()
    assert model.head.weight is model.token_embedding.weight
    assert "head.weight" not in model.state_dict()
    optimiser = pg.optim.AdamW(model, lr=1e-2)
    tokens = pg.asarray([[1, 2, 3, 4, 5, 6, 7, 8]])
    losses = []
    for _ in range(8):
        optimiser.zero_grad()
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimiser.step(also=loss)
        losses.append(float(loss))
    assert losses[0] == pytest.approx(math.log(11), rel=0.05)
    assert losses[-1] < 0.7 * losses[0]


def test_sampling_keeps_to_the_likeliest(device):
    scores = pg.asarray([[0.0, 1.0, 2.0, 3.0]] * 500, **F32)
    drawn = [nn.gpt.sample(scores, **how).numpy() for how in ({}, {"top_k": 2}, {"top_p": 0.6}, {"temperature": 0.0})]
    assert [sorted(set(d[:, 0].tolist())) for d in drawn] == [[0, 1, 2, 3], [2, 3], [3], [3]]
    shares = np.bincount(drawn[0][:, 0], minlength=4) / 500
    np.testing.assert_allclose(shares, np.exp(np.arange(4)) / np.exp(np.arange(4)).sum(), atol=0.08)
    with pytest.raises(pg.ShapeError, match="cannot sample with temperature -1"):
        nn.gpt.sample(scores, -1)
    with pytest.raises(pg.ShapeError, match="cannot go on from tokens of shape"):
        gpt().generate(pg.zeros((1, 0), dtype=pg.int64), 1)


# ---- losses --------------------------------------------------------------------------------------------------


def test_weights_of_classes_weigh_the_mean_too(device):
    logits = pg.asarray([[0.0, math.log(3.0)], [0.0, 0.0]], **F32)
    labels = pg.asarray([0, 1])
    loss = nn.CrossEntropyLoss([1.0, 3.0])(logits, labels)
    assert float(loss) == pytest.approx((math.log(4.0) + 3.0 * math.log(2.0)) / 4.0, rel=1e-6)
    with pytest.raises(pg.ShapeError, match="there must be one weight for each of the 2 classes"):
        nn.CrossEntropyLoss([1.0, 2.0, 3.0])(logits, labels)
    with pytest.raises(pg.ShapeError, match="cannot smooth labels by 1.5"):
        pg.cross_entropy(logits, labels, label_smoothing=1.5)


@pytest.mark.parametrize("label", [2, -1])
def test_a_bad_label_is_reported_with_the_number_of_classes(label, device):
    for loss in (nn.CrossEntropyLoss(), nn.NLLLoss()):
        with pytest.raises(pg.OutOfBounds, match="2"):
            float(loss(pg.zeros((2, 2), dtype=pg.float32), pg.asarray([0, label])))
    with pytest.raises(pg.OutOfBounds):
        nn.Embedding(2, 1)(pg.asarray([0, label])).detach().numpy()


def test_binary_cross_entropy_of_certain_mistakes_is_finite(device):
    p = pg.asarray([0.0, 1.0, 0.0], **F32).requires_grad_()
    loss = nn.BCELoss(reduction="none")(p, pg.asarray([1.0, 0.0, 0.0], **F32))
    pg.sum(loss).backward()
    assert loss.tolist() == [100.0, 100.0, 0.0]
    assert np.all(np.isfinite(p.grad.numpy()))


def test_a_row_of_padding_starts_as_zeros_and_stays(device):
    layer = nn.Embedding(4, 2, padding_idx=-3)
    assert layer.weight.tolist()[1] == [0.0, 0.0]
    pg.sum(layer(pg.asarray([1, 2, 1]))).backward()
    assert layer.weight.grad.tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: nn.Embedding(3, 2, padding_idx=3), "cannot pad with row 3 of 3 rows: there is no such row"),
        (lambda: nn.Embedding(3, 2)(ones(2)), "cannot embed indices of float32"),
        (lambda: nn.Conv1d(1, 1, 3, padding_mode="same"), "cannot pad in mode 'same'"),
        (
            lambda: nn.Conv2d(2, 1, 3)(ones(1, 3, 4, 4)),
            r"cannot apply Conv2d to shape \[1, 3, 4, 4\]: it takes \[N, 2, H, W\]",
        ),
        (lambda: nn.Conv1d(1, 1, 3, padding=4, padding_mode="reflect")(ones(1, 1, 4)), "at most 3 elements can come"),
        (lambda: nn.ConvTranspose1d(1, 1, 3, output_padding=2)(ones(1, 1, 4)), "it must be less than stride"),
        (lambda: nn.BatchNorm1d(3)(ones(2, 4)), r"cannot apply BatchNorm1d\(3\) to shape \[2, 4\]"),
        (lambda: nn.GroupNorm(3, 4), "cannot make 3 groups of 4 channels"),
        (lambda: nn.AdaptiveAvgPool1d(0)(ones(1, 1, 4)), "cannot apply adaptive_avg_pool1d with output_size"),
        (lambda: nn.Softshrink(-1)(ones(2)), "cannot shrink by -1"),
        (lambda: nn.Unflatten(0, (2, 3))(ones(5)), r"cannot make axis 0 of shape \[5\] into \[2, 3\]"),
        (lambda: nn.MSELoss("avg"), "cannot reduce a loss by 'avg'"),
        (lambda: nn.RNN(1, 1, nonlinearity="gelu"), "its nonlinearity is 'tanh' or 'relu'"),
        (lambda: nn.FeedForward(1, 1, "swiglu"), "there is no activation 'swiglu' for FeedForward"),
        (lambda: nn.GPTConfig(3, positions="here"), "there are no positions 'here'"),
        (lambda: nn.init.orthogonal((3,)), "it needs at least two axes"),
        (lambda: nn.init.trunc_normal((3,), a=1.0, b=0.0), "std must be positive, and a below b"),
        (lambda: nn.init.calculate_gain("sin"), "no gain is known for 'sin'"),
    ],
)
def test_bad_input_is_told_in_a_sentence(make, sentence):
    with pytest.raises(pg.PolygradError, match=sentence):
        make()


@pytest.mark.filterwarnings("ignore::polygrad.errors.FallbackWarning")  # of QR, for orthogonal matrices
def test_first_values(device):
    square = nn.init.orthogonal((4, 4), gain=2.0)
    near(square @ square.mT, 4 * np.eye(4), 1e-4)
    flat = nn.init.orthogonal((2, 3, 2)).numpy().reshape(2, 6)
    np.testing.assert_allclose(flat @ flat.T, np.eye(2), atol=1e-5)
    drawn = nn.init.trunc_normal((4000,), mean=1.0, std=2.0, a=0.0, b=4.0).numpy()
    assert drawn.min() >= 0.0
    assert drawn.max() <= 4.0
    assert abs(drawn.mean() - 1.713) < 0.1  # of the normal distribution between -0.5 and 1.5 deviations
    assert nn.init.constant((2,), 3).tolist() == [3.0, 3.0]
    assert nn.init.eye(2).tolist() == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5)])
def test_the_mean_of_all_batches(shape, device, rng):
    layer = nn.BatchNorm1d(3, momentum=None)
    batches = [rng.normal(size=shape).astype("float32") for _ in range(3)]
    for batch in batches:
        layer(pg.asarray(batch))
    axes = (0, *range(2, len(shape)))
    near(layer.running_mean, np.mean([b.mean(axes) for b in batches], 0))
    assert layer.num_batches_tracked.item() == 3
