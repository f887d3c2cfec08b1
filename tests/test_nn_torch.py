"""Every layer and loss against PyTorch's: one call makes both, ours takes the other's state, values and slopes agree.

Here: layers, recurrent layers, attention, losses, activations, models; in float64 on devices that have it.
Not here: what needs no PyTorch (`test_nn.py`, `test_nn_layers.py`), and the ops' own references
(`test_ops_on_devices.py`).
"""

import numpy as np
import pytest

import polygrad as pg

torch = pytest.importorskip("torch", reason="not run: needs torch")

nn = pg.nn


class Ints:
    """An input of integers below a number."""

    def __init__(self, *shape, below):
        self.shape, self.below = shape, below


class Bools:
    """An input of bools; the first of each row is *first*, so that no row is all true."""

    def __init__(self, *shape, first=False):
        self.shape, self.first = shape, first


class Shares:
    """An input of numbers in (0, 1) that sum to 1 along axis 1."""

    def __init__(self, *shape):
        self.shape = shape


class Signs:
    """An input of -1 and 1."""

    def __init__(self, *shape):
        self.shape = shape


def drawn(rng, kind, dtype):
    if isinstance(kind, Ints):
        return rng.integers(0, kind.below, kind.shape)
    if isinstance(kind, Bools):
        out = rng.integers(0, 2, kind.shape).astype(bool)
        out[..., 0] = kind.first
        return out
    if isinstance(kind, Signs):
        return (rng.integers(0, 2, kind.shape) * 2 - 1).astype(dtype)
    if isinstance(kind, Shares):
        out = rng.uniform(0.1, 1.0, kind.shape)
        return (out / out.sum(1, keepdims=True)).astype(dtype)
    return rng.normal(size=kind).astype(dtype)


def flat(out):
    if isinstance(out, (tuple, list)):
        return [leaf for o in out for leaf in flat(o)]
    return [] if out is None else [out]


def pair(make, device, dtype):
    """Return our module and PyTorch's, ours with the other's state."""
    torch.manual_seed(0)
    theirs = make(torch.nn).to(getattr(torch, dtype))
    ours = make(nn).to(dtype=getattr(pg, dtype))
    with torch.no_grad():
        for p in theirs.parameters():  # norms start as ones and zeros, which would hide a lot
            p.add_(torch.rand_like(p) * 0.5)
    ours.load_state_dict({name: value.numpy() for name, value in theirs.state_dict().items()})
    return ours, theirs


def agree(make, kinds, device, dtype, rng, *, call=None, eval_mode=False, tolerance=None):
    """Compare outputs, and the gradients of inputs and parameters, of one call."""
    ours, theirs = pair(make, device, dtype)
    if eval_mode:
        ours.eval()
        theirs.eval()
    given = [drawn(rng, kind, dtype) for kind in kinds]
    moving = [a.dtype.kind == "f" for a in given]
    xs = [pg.asarray(a).requires_grad_() if m else pg.asarray(a) for a, m in zip(given, moving, strict=True)]
    ts = [torch.tensor(a, requires_grad=m) for a, m in zip(given, moving, strict=True)]
    call = call or (lambda module, *args: module(*args))
    outs, wanted = flat(call(ours, *xs)), flat(call(theirs, *ts))
    assert [o.shape for o in outs] == [tuple(w.shape) for w in wanted]
    ups = [rng.normal(size=o.shape).astype(dtype) for o in outs]
    sum(pg.sum(o * pg.asarray(u)) for o, u in zip(outs, ups, strict=True)).backward()
    sum((w * torch.tensor(u)).sum() for w, u in zip(wanted, ups, strict=True)).backward()
    pairs = [(f"output {k}", o.detach(), w.detach()) for k, (o, w) in enumerate(zip(outs, wanted, strict=True))]
    pairs += [(f"input {k}", x.grad, t.grad) for k, (x, t) in enumerate(zip(xs, ts, strict=True)) if moving[k]]
    own = dict(ours.named_parameters())
    pairs += [(name, own[name].grad, t.grad) for name, t in theirs.named_parameters()]
    buffers = dict(ours.named_buffers())
    pairs += [(name, buffers[name], t) for name, t in theirs.named_buffers() if name in buffers]
    pg.realize([got for _, got, _ in pairs if got is not None])
    limit = tolerance or (1e-9 if dtype == "float64" else 2e-4)
    for name, got, want in pairs:
        if want is None:
            assert got is None or not np.any(got.numpy()), name
            continue
        assert got is not None, f"{name} got no gradient"
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=limit, atol=limit, err_msg=name)


LAYERS = {
    "Linear": (lambda nn: nn.Linear(5, 3), [(2, 4, 5)]),
    "Linear without bias": (lambda nn: nn.Linear(5, 3, bias=False), [(5,)]),
    "Bilinear": (lambda nn: nn.Bilinear(3, 4, 2), [(5, 3), (5, 4)]),
    "Embedding": (lambda nn: nn.Embedding(6, 3, padding_idx=2), [Ints(4, 3, below=6)]),
    "Flatten": (lambda nn: nn.Flatten(1, 2), [(2, 3, 4, 2)]),
    "Unflatten": (lambda nn: nn.Unflatten(1, (2, 3)), [(2, 6, 2)]),
    "Conv1d": (
        lambda nn: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, padding_mode="circular"),
        [(2, 4, 9)],
    ),
    "Conv1d replicate": (lambda nn: nn.Conv1d(2, 3, 4, padding=3, padding_mode="replicate"), [(2, 2, 5)]),
    "Conv2d": (lambda nn: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(2, 1), dilation=2, groups=2), [(2, 4, 7, 6)]),
    "Conv2d reflect": (lambda nn: nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode="reflect"), [(2, 2, 5, 4)]),
    "Conv2d same": (lambda nn: nn.Conv2d(2, 3, (4, 3), padding="same", dilation=(1, 2)), [(1, 2, 6, 5)]),
    "Conv2d depthwise": (lambda nn: nn.Conv2d(3, 3, 3, padding=1, groups=3), [(1, 3, 5, 4)]),
    "Conv3d": (lambda nn: nn.Conv3d(2, 4, (2, 3, 2), stride=(1, 2, 1), padding=1, groups=2), [(1, 2, 4, 5, 3)]),
    "ConvTranspose1d": (lambda nn: nn.ConvTranspose1d(4, 6, 3, stride=3, padding=1, output_padding=2), [(2, 4, 5)]),
    "ConvTranspose2d": (
        lambda nn: nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 3), padding=(1, 2), groups=2, dilation=2),
        [(2, 4, 4, 3)],
    ),
    "ConvTranspose2d of one": (lambda nn: nn.ConvTranspose2d(2, 3, 1, stride=2, output_padding=1), [(1, 2, 3, 3)]),
    "ConvTranspose3d": (lambda nn: nn.ConvTranspose3d(2, 3, 2, stride=2, output_padding=1), [(1, 2, 2, 3, 2)]),
    "MaxPool1d": (lambda nn: nn.MaxPool1d(3, 2, padding=1, dilation=2, ceil_mode=True), [(2, 3, 10)]),
    "MaxPool2d": (lambda nn: nn.MaxPool2d((3, 2), stride=2, padding=(1, 0), ceil_mode=True), [(2, 3, 7, 5)]),
    "MaxPool3d": (lambda nn: nn.MaxPool3d(2, stride=(1, 2, 1)), [(1, 2, 4, 5, 3)]),
    "AvgPool1d": (lambda nn: nn.AvgPool1d(3, 2, padding=1, count_include_pad=False), [(2, 3, 8)]),
    "AvgPool2d": (lambda nn: nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True), [(2, 3, 6, 8)]),
    "AvgPool3d": (lambda nn: nn.AvgPool3d(2, stride=(1, 2, 1), padding=1), [(1, 2, 4, 5, 3)]),
    "AdaptiveAvgPool1d": (lambda nn: nn.AdaptiveAvgPool1d(3), [(2, 3, 7)]),
    "AdaptiveAvgPool2d": (lambda nn: nn.AdaptiveAvgPool2d((3, None)), [(2, 3, 7, 5)]),
    "AdaptiveAvgPool3d": (lambda nn: nn.AdaptiveAvgPool3d((2, 1, 3)), [(1, 2, 4, 3, 5)]),
    "AdaptiveMaxPool1d": (lambda nn: nn.AdaptiveMaxPool1d(4), [(2, 3, 7)]),
    "AdaptiveMaxPool2d": (lambda nn: nn.AdaptiveMaxPool2d(2), [(2, 3, 7, 4)]),
    "AdaptiveMaxPool3d": (lambda nn: nn.AdaptiveMaxPool3d((2, 1, 3)), [(1, 2, 4, 3, 5)]),
    "LayerNorm": (lambda nn: nn.LayerNorm((3, 4)), [(2, 3, 4)]),
    "LayerNorm without bias": (lambda nn: nn.LayerNorm(4, eps=1e-3, bias=False), [(2, 3, 4)]),
    "RMSNorm": (lambda nn: nn.RMSNorm(4, eps=None), [(2, 3, 4)]),
    "GroupNorm": (lambda nn: nn.GroupNorm(2, 4), [(2, 4, 3, 2)]),
    "InstanceNorm1d": (lambda nn: nn.InstanceNorm1d(3, affine=True), [(2, 3, 5)]),
    "InstanceNorm2d": (lambda nn: nn.InstanceNorm2d(3), [(2, 3, 4, 5)]),
    "InstanceNorm3d": (lambda nn: nn.InstanceNorm3d(2), [(1, 2, 3, 2, 4)]),
    "BatchNorm1d": (lambda nn: nn.BatchNorm1d(3), [(6, 3)]),
    "BatchNorm1d of signals": (lambda nn: nn.BatchNorm1d(3, momentum=None), [(4, 3, 5)]),
    "BatchNorm2d": (lambda nn: nn.BatchNorm2d(3, eps=1e-3, momentum=0.3), [(2, 3, 4, 5)]),
    "BatchNorm2d without affine": (lambda nn: nn.BatchNorm2d(3, affine=False), [(2, 3, 4, 5)]),
    "BatchNorm2d without statistics": (lambda nn: nn.BatchNorm2d(3, track_running_stats=False), [(2, 3, 4, 5)]),
    "BatchNorm3d": (lambda nn: nn.BatchNorm3d(2), [(2, 2, 3, 2, 2)]),
    "PReLU": (lambda nn: nn.PReLU(3), [(2, 3, 4)]),
    "PReLU of one": (lambda nn: nn.PReLU(), [(2, 3, 4)]),
    "Upsample": (lambda nn: nn.Upsample(scale_factor=2), [(1, 2, 3, 4)]),
    "Upsample nearest": (lambda nn: nn.Upsample(size=(5, 3)), [(1, 2, 3, 4)]),
    "Upsample bilinear": (lambda nn: nn.Upsample(scale_factor=(2, 1.5), mode="bilinear"), [(1, 2, 3, 4)]),
    "Upsample linear": (lambda nn: nn.Upsample(size=7, mode="linear", align_corners=True), [(1, 2, 3)]),
    "PixelShuffle": (lambda nn: nn.PixelShuffle(2), [(1, 8, 2, 3)]),
    "Sequential": (lambda nn: nn.Sequential(nn.Linear(4, 5), nn.GELU("tanh"), nn.Linear(5, 2)), [(3, 4)]),
}
RECURRENT = {
    "RNN": (lambda nn: nn.RNN(3, 4, num_layers=2), [(5, 2, 3)]),
    "RNN of relu": (lambda nn: nn.RNN(3, 4, nonlinearity="relu", bias=False, batch_first=True), [(2, 5, 3), (1, 2, 4)]),
    "GRU": (lambda nn: nn.GRU(3, 4, num_layers=2, bidirectional=True), [(4, 2, 3)]),
    "GRU from a state": (lambda nn: nn.GRU(3, 4, batch_first=True), [(2, 4, 3), (1, 2, 4)]),
    "GRU of one sequence": (lambda nn: nn.GRU(3, 4), [(4, 3), (1, 4)]),
    "LSTM": (lambda nn: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True), [(2, 4, 3)]),
    "RNNCell": (lambda nn: nn.RNNCell(3, 4), [(2, 3), (2, 4)]),
    "GRUCell": (lambda nn: nn.GRUCell(3, 4), [(2, 3), (2, 4)]),
    "LSTMCell": (lambda nn: nn.LSTMCell(3, 4), [(2, 3)]),
}


@pytest.fixture
def home():
    """The device on which every case runs; on the others, whose kernels cost a compiler run, the spots do."""
    with pg.device("cpu:0") as name:
        yield name


@pytest.fixture
def dtype():
    return "float64"


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_pytorchs(name, home, dtype, rng):
    make, kinds = LAYERS[name]
    agree(make, kinds, home, dtype, rng)


@pytest.mark.parametrize("name", ["BatchNorm1d", "BatchNorm2d", "BatchNorm2d without statistics"])
def test_a_norm_in_evaluation_mode_is_pytorchs(name, home, dtype, rng):
    make, kinds = LAYERS[name]
    agree(make, kinds, home, dtype, rng, eval_mode=True)


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_layer_has_pytorchs_gates(name, home, dtype, rng):
    make, kinds = RECURRENT[name]
    agree(make, kinds, home, dtype, rng)


def test_an_lstm_goes_on_from_a_state(home, dtype, rng):
    agree(
        lambda nn: nn.LSTM(3, 4),
        [(4, 2, 3), (1, 2, 4), (1, 2, 4)],
        home,
        dtype,
        rng,
        call=lambda module, x, h, c: module(x, (h, c)),
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda nn: nn.ReLU(), lambda nn: nn.ReLU6(), lambda nn: nn.LeakyReLU(0.2), lambda nn: nn.ELU(0.7),
        lambda nn: nn.CELU(0.5), lambda nn: nn.SELU(), lambda nn: nn.GELU(), lambda nn: nn.GELU("tanh"),
        lambda nn: nn.SiLU(), lambda nn: nn.Mish(), lambda nn: nn.Softplus(0.5), lambda nn: nn.Softsign(),
        lambda nn: nn.Sigmoid(), lambda nn: nn.LogSigmoid(), lambda nn: nn.Tanh(), lambda nn: nn.Tanhshrink(),
        lambda nn: nn.Hardsigmoid(), lambda nn: nn.Hardswish(), lambda nn: nn.Hardtanh(-0.5, 0.8),
        lambda nn: nn.Hardshrink(0.3), lambda nn: nn.Softshrink(0.3), lambda nn: nn.Threshold(0.2, -1.0),
        lambda nn: nn.Softmax(1), lambda nn: nn.Softmin(0), lambda nn: nn.LogSoftmax(-1), lambda nn: nn.GLU(1),
    ],
    ids=lambda make: type(make(nn)).__name__,
)  # fmt: skip
def test_an_activation_is_pytorchs(make, home, dtype, rng):
    agree(make, [(3, 4, 2)], home, dtype, rng, tolerance=1e-8 if dtype == "float64" else 2e-4)


LOSSES = {
    "mse": (lambda nn, how: nn.MSELoss(reduction=how), [(3, 4), (3, 4)]),
    "l1": (lambda nn, how: nn.L1Loss(reduction=how), [(3, 4), (3, 4)]),
    "huber": (lambda nn, how: nn.HuberLoss(delta=0.7, reduction=how), [(3, 4), (3, 4)]),
    "smooth_l1": (lambda nn, how: nn.SmoothL1Loss(beta=0.7, reduction=how), [(3, 4), (3, 4)]),
    "cross_entropy": (lambda nn, how: nn.CrossEntropyLoss(reduction=how), [(3, 4), Ints(3, below=4)]),
    "cross_entropy of images": (
        lambda nn, how: nn.CrossEntropyLoss(ignore_index=1, reduction=how, label_smoothing=0.2),
        [(2, 4, 3, 2), Ints(2, 3, 2, below=4)],
    ),
    "cross_entropy of one": (lambda nn, how: nn.CrossEntropyLoss(reduction=how), [(4,), Ints(below=4)]),
    "soft cross_entropy": (
        lambda nn, how: nn.CrossEntropyLoss(reduction=how, label_smoothing=0.1),
        [(3, 4), Shares(3, 4)],
    ),
    "nll": (lambda nn, how: nn.NLLLoss(ignore_index=2, reduction=how), [(3, 4), Ints(3, below=4)]),
    "kl_div": (lambda nn, how: nn.KLDivLoss(reduction=how), [(3, 4), Shares(3, 4)]),
    "log kl_div": (lambda nn, how: nn.KLDivLoss(reduction=how, log_target=True), [(3, 4), (3, 4)]),
    "bce": (lambda nn, how: nn.BCELoss(reduction=how), [Shares(3, 4), Shares(3, 4)]),
    "bce_with_logits": (lambda nn, how: nn.BCEWithLogitsLoss(reduction=how), [(3, 4), Shares(3, 4)]),
    "poisson": (lambda nn, how: nn.PoissonNLLLoss(reduction=how), [(3, 4), Shares(3, 4)]),
    "gaussian": (lambda nn, how: nn.GaussianNLLLoss(full=True, reduction=how), [(3, 4), (3, 4), Shares(3, 4)]),
    "hinge": (lambda nn, how: nn.HingeEmbeddingLoss(margin=0.6, reduction=how), [(3, 4), Signs(3, 4)]),
    "soft_margin": (lambda nn, how: nn.SoftMarginLoss(reduction=how), [(3, 4), Signs(3, 4)]),
    "ranking": (lambda nn, how: nn.MarginRankingLoss(margin=0.2, reduction=how), [(5,), (5,), Signs(5)]),
    "cosine": (lambda nn, how: nn.CosineEmbeddingLoss(margin=0.2, reduction=how), [(5, 3), (5, 3), Signs(5)]),
    "triplet": (
        lambda nn, how: nn.TripletMarginLoss(margin=2.0, swap=True, reduction=how),
        [(5, 3), (5, 3), (5, 3)],
    ),
}  # fmt: skip


def loss_call(module, *args):
    """Call a loss; targets of signs need no gradient."""
    return module(*[a.detach() if k and not isinstance(module, SMOOTH) else a for k, a in enumerate(args)])


SMOOTH = tuple(getattr(lib, n) for lib in (nn, torch.nn) for n in ("MSELoss", "L1Loss", "TripletMarginLoss"))


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("how", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_pytorchs(name, how, home, dtype, rng):
    make, kinds = LOSSES[name]
    agree(lambda lib: make(lib, how), kinds, home, dtype, rng, call=loss_call)


@pytest.mark.parametrize("how", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_weights_of_classes_count_as_pytorchs(how, smoothing, home, dtype, rng):
    weight = rng.uniform(0.5, 2.0, 4).astype(dtype)
    logits = rng.normal(size=(5, 4)).astype(dtype)
    labels = np.array([0, 3, -100, 1, 2])
    soft = np.abs(rng.normal(size=(5, 4))).astype(dtype)
    x, t = pg.asarray(logits).requires_grad_(), torch.tensor(logits, requires_grad=True)
    settings = {"reduction": how, "label_smoothing": smoothing}
    ours = nn.CrossEntropyLoss(weight, **settings)
    theirs = torch.nn.CrossEntropyLoss(torch.tensor(weight), **settings)
    got = [
        ours(x, pg.asarray(labels)),
        ours(x, pg.asarray(soft)),
        nn.NLLLoss(weight, reduction=how)(x, pg.asarray(labels)),
    ]
    want = [
        theirs(t, torch.tensor(labels)),
        theirs(t, torch.tensor(soft)),
        torch.nn.NLLLoss(torch.tensor(weight), reduction=how)(t, torch.tensor(labels)),
    ]
    sum(pg.sum(g) for g in got).backward()
    sum(w.sum() for w in want).backward()
    limit = 1e-10 if dtype == "float64" else 1e-4
    for g, w in [*((g.detach(), w.detach()) for g, w in zip(got, want, strict=True)), (x.grad, t.grad)]:
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=limit, atol=limit)


def test_weights_of_binary_cross_entropies_count_as_pytorchs(home, dtype, rng):
    weight, pos = (rng.uniform(0.5, 2.0, 4).astype(dtype) for _ in range(2))
    logits, target = rng.normal(size=(3, 4)).astype(dtype), rng.uniform(size=(3, 4)).astype(dtype)
    x, t = pg.asarray(logits).requires_grad_(), torch.tensor(logits, requires_grad=True)
    got = nn.BCEWithLogitsLoss(weight, pos_weight=pos)(x, pg.asarray(target))
    got = got + nn.BCELoss(weight)(pg.sigmoid(x), pg.asarray(target))
    want = torch.nn.BCEWithLogitsLoss(torch.tensor(weight), pos_weight=torch.tensor(pos))(t, torch.tensor(target))
    want = want + torch.nn.BCELoss(torch.tensor(weight))(torch.sigmoid(t), torch.tensor(target))
    got.backward()
    want.backward()
    limit = 1e-10 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=limit)
    np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=limit, atol=limit)


# ---- attention -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shared", "mask", "settings"),
    [
        (4, None, {}),
        (4, None, {"is_causal": True, "scale": 0.3}),
        (4, "bool", {}),
        (4, "float", {}),
        (2, None, {"is_causal": True, "enable_gqa": True}),
        (1, "bool", {"enable_gqa": True}),
    ],
)
def test_scaled_dot_product_attention_is_pytorchs(shared, mask, settings, home, dtype, rng):
    arrays = [rng.normal(size=s).astype(dtype) for s in ((2, 4, 5, 3), (2, shared, 6, 3), (2, shared, 6, 2))]
    masks = {
        None: None,
        "bool": drawn(rng, Bools(2, 4, 5, 6, first=True), dtype),
        "float": rng.normal(size=(5, 6)).astype(dtype),
    }
    xs = [pg.asarray(a).requires_grad_() for a in arrays]
    ts = [torch.tensor(a, requires_grad=True) for a in arrays]
    m = masks[mask]
    got = nn.scaled_dot_product_attention(*xs, None if m is None else pg.asarray(m), **settings)
    function = torch.nn.functional.scaled_dot_product_attention
    want = function(*ts, None if m is None else torch.tensor(m), **settings)
    up = rng.normal(size=got.shape).astype(dtype)
    pg.sum(got * pg.asarray(up)).backward()
    (want * torch.tensor(up)).sum().backward()
    limit = 1e-9 if dtype == "float64" else 1e-4
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=limit, atol=limit)
    for x, t in zip(xs, ts, strict=True):
        np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=limit, atol=limit)


MULTIHEAD = {
    "plain": (lambda nn: nn.MultiheadAttention(6, 2), [(4, 2, 6), (5, 2, 6), (5, 2, 6)], {}),
    "batch first, all heads": (
        lambda nn: nn.MultiheadAttention(6, 3, bias=False, batch_first=True),
        [(2, 4, 6)] * 3,
        {"average_attn_weights": False},
    ),
    "other sizes": (
        lambda nn: nn.MultiheadAttention(6, 2, kdim=4, vdim=3, batch_first=True),
        [(2, 4, 6), (2, 5, 4), (2, 5, 3)],
        {"need_weights": False},
    ),
    "one example": (lambda nn: nn.MultiheadAttention(6, 2), [(4, 6), (5, 6), (5, 6)], {}),
    "masks": (
        lambda nn: nn.MultiheadAttention(6, 2, batch_first=True),
        [(2, 4, 6), (2, 5, 6), (2, 5, 6), Bools(2, 5), Bools(4, 5)],
        {},
    ),
    "a mask for each head": (
        lambda nn: nn.MultiheadAttention(6, 2, batch_first=True),
        [(2, 4, 6), (2, 5, 6), (2, 5, 6), Bools(2, 5), Bools(4, 4, 5)],
        {},
    ),
    "a float mask": (
        lambda nn: nn.MultiheadAttention(6, 2, batch_first=True),
        [(2, 4, 6), (2, 5, 6), (2, 5, 6), (2, 5), (4, 5)],
        {},
    ),
}


@pytest.mark.parametrize("name", MULTIHEAD)
def test_multihead_attention_is_pytorchs(name, home, dtype, rng):
    make, kinds, settings = MULTIHEAD[name]

    def call(module, q, k, v, padding=None, mask=None):
        if padding is not None:
            padding, mask = padding.detach(), mask.detach()
        return module(q, k, v, key_padding_mask=padding, attn_mask=mask, **settings)

    agree(make, kinds, home, dtype, rng, call=call)


class TheirBlock(torch.nn.Module):
    """A transformer block out of PyTorch's parts, with our names."""

    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.attention_norm = torch.nn.RMSNorm(dim, eps=1e-6)
        self.attention = torch.nn.Module()
        self.attention.qkv = torch.nn.Linear(dim, 3 * dim, bias=False)
        self.attention.out = torch.nn.Linear(dim, dim, bias=False)
        self.mlp_norm = torch.nn.RMSNorm(dim, eps=1e-6)
        self.mlp = torch.nn.Module()
        self.mlp.gate = torch.nn.Linear(dim, hidden, bias=False)
        self.mlp.up = torch.nn.Linear(dim, hidden, bias=False)
        self.mlp.down = torch.nn.Linear(hidden, dim, bias=False)
        self.heads = heads

    def forward(self, x):
        n, length, dim = x.shape
        parts = self.attention.qkv(self.attention_norm(x)).chunk(3, -1)
        q, k, v = (p.view(n, length, self.heads, -1).transpose(1, 2) for p in parts)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention.out(out.transpose(1, 2).reshape(n, length, dim))
        y = self.mlp_norm(x)
        return x + self.mlp.down(torch.nn.functional.silu(self.mlp.gate(y)) * self.mlp.up(y))


def test_a_transformer_block_is_that_of_pytorchs_parts(home, dtype, rng):
    def make(lib):
        return TheirBlock(8, 2, 12) if lib is torch.nn else nn.TransformerBlock(8, 2, 12)

    agree(make, [(2, 5, 8)], home, dtype, rng)


@pytest.mark.parametrize("name", ["trunc_normal_", "orthogonal_", "xavier_normal_", "kaiming_uniform_"])
def test_initialisers_spread_as_pytorchs(name):
    torch.manual_seed(0)
    want = getattr(torch.nn.init, name)(torch.empty(200, 300)).numpy()
    got = getattr(nn.init, name[:-1])((200, 300)).numpy()
    if name == "kaiming_uniform_":
        got = nn.init.kaiming_uniform((200, 300), nn.init.calculate_gain("leaky_relu", 0)).numpy()
    assert abs(got.mean() - want.mean()) < 5 * want.std() / 200
    assert got.std() == pytest.approx(want.std(), rel=0.02)
    assert np.abs(got).max() == pytest.approx(np.abs(want).max(), rel=0.2)


SPOTS = {
    **{
        name: LAYERS[name]
        for name in (
            "Linear", "Embedding", "Conv2d", "ConvTranspose2d", "MaxPool2d", "AvgPool2d", "LayerNorm", "BatchNorm2d",
            "Upsample bilinear",
        )
    },
    "LSTMCell": RECURRENT["LSTMCell"],
    **{
        name: (lambda lib, make=LOSSES[name][0]: make(lib, "mean"), LOSSES[name][1])
        for name in ("cross_entropy of images", "nll", "mse", "bce_with_logits")
    },
}  # fmt: skip
THE_REST = {name: case for name, case in {**LAYERS, **RECURRENT}.items() if name not in SPOTS}


@pytest.mark.parametrize("name", SPOTS)
def test_a_spot_is_pytorchs_on_every_device(name, device, float_dtype, rng):
    make, kinds = SPOTS[name]
    agree(make, kinds, device, float_dtype.name, rng, call=loss_call if name in LOSSES else None)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("name", THE_REST)
def test_all_the_rest_is_pytorchs_on_every_device(name, device, float_dtype, rng):
    make, kinds = THE_REST[name]
    agree(make, kinds, device, float_dtype.name, rng)
