"""Optimisers and schedules, step by step against PyTorch's.

Here: equality to rounding over many steps. Not here: formulas written out (`test_optim_rules.py`), which
need no PyTorch.
"""

import numpy as np
import pytest

import polygrad as pg

torch = pytest.importorskip("torch", reason="not run: needs PyTorch")

CASES = {
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "sgd nesterov": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "rmsprop": ("RMSprop", {"lr": 0.01, "alpha": 0.9}),
    "rmsprop centered": ("RMSprop", {"lr": 0.01, "centered": True, "momentum": 0.5, "weight_decay": 0.1}),
    "adagrad": ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2, "weight_decay": 0.05}),
    "adam": ("Adam", {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}),
    "adam amsgrad": ("Adam", {"lr": 0.01, "betas": (0.5, 0.6), "amsgrad": True}),
    "adamw": ("AdamW", {"lr": 0.01, "weight_decay": 0.2}),
    "nadam": ("NAdam", {"lr": 0.01, "weight_decay": 0.1}),
    "adamax": ("Adamax", {"lr": 0.01, "weight_decay": 0.1}),
}
STEPS = 20


@pytest.mark.parametrize("case", CASES)
def test_each_step_follows_torch(device, case, rng):
    name, how = CASES[case]
    starts = [rng.standard_normal(s).astype("float32") for s in ((3, 4), (5,))]
    ours = [pg.nn.Parameter(s) for s in starts]
    theirs = [torch.nn.Parameter(torch.tensor(s)) for s in starts]
    one, two = getattr(pg.optim, name)(ours, **how), getattr(torch.optim, name)(theirs, **how)
    for step in range(STEPS):
        grads = [rng.standard_normal(s.shape).astype("float32") * (1 + step % 3) for s in starts]
        for p, q, g in zip(ours, theirs, grads, strict=True):
            p.grad, q.grad = pg.asarray(g), torch.tensor(g)
        one.step()
        two.step()
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=2e-5, atol=2e-6, err_msg=str(step))


def test_clipping_inside_the_step_follows_torch(device, rng):
    starts = [rng.standard_normal(s).astype("float32") for s in ((3, 4), (5,))]
    ours = [pg.nn.Parameter(s) for s in starts]
    theirs = [torch.nn.Parameter(torch.tensor(s)) for s in starts]
    one, two = pg.optim.AdamW(ours, lr=0.01), torch.optim.AdamW(theirs, lr=0.01)
    for step in range(5):
        grads = [rng.standard_normal(s.shape).astype("float32") * 0.3 * (step + 1) for s in starts]
        for p, q, g in zip(ours, theirs, grads, strict=True):
            p.grad, q.grad = pg.asarray(g), torch.tensor(g)
        norm = torch.nn.utils.clip_grad_norm_(theirs, 1.5)
        two.step()
        one.step(max_norm=1.5)
        assert float(one.norm) == pytest.approx(float(norm), rel=1e-5)
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-6)


S = pg.optim.lr_scheduler
T = torch.optim.lr_scheduler
SCHEDULES = {
    "step": lambda m, o: m.StepLR(o, step_size=7, gamma=0.5),
    "multistep": lambda m, o: m.MultiStepLR(o, milestones=[5, 9, 30], gamma=0.3),
    "exponential": lambda m, o: m.ExponentialLR(o, gamma=0.93),
    "linear": lambda m, o: m.LinearLR(o, start_factor=0.25, end_factor=0.8, total_iters=11),
    "constant": lambda m, o: m.ConstantLR(o, factor=0.5, total_iters=6),
    "polynomial": lambda m, o: m.PolynomialLR(o, total_iters=20, power=2.0),
    "cosine": lambda m, o: m.CosineAnnealingLR(o, T_max=13, eta_min=0.01),
    "lambda": lambda m, o: m.LambdaLR(o, lambda k: 1.0 / (1 + k)),
    "one cycle": lambda m, o: m.OneCycleLR(o, max_lr=[1.0, 3.0], total_steps=40),
    "one cycle linear": lambda m, o: m.OneCycleLR(o, 0.5, total_steps=40, anneal_strategy="linear", pct_start=0.5),
    "sequential": lambda m, o: m.SequentialLR(
        o, [m.LinearLR(o, 0.1, total_iters=5), m.CosineAnnealingLR(o, 20), m.ExponentialLR(o, 0.9)], milestones=[5, 25]
    ),
    "chained": lambda m, o: m.ChainedScheduler([m.ExponentialLR(o, 0.9), m.ConstantLR(o, 0.5, 4)]),
}


@pytest.mark.parametrize("case", SCHEDULES)
@pytest.mark.filterwarnings("ignore")  # torch's own, about the order of calls
def test_schedules_follow_torch(case):
    ours = pg.optim.Adam([{"params": [pg.ones(1)]}, {"params": [pg.ones(1)], "lr": 0.5}], lr=0.1)
    q = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    theirs = torch.optim.Adam([{"params": [q[0]]}, {"params": [q[1]], "lr": 0.5}], lr=0.1)
    one, two = SCHEDULES[case](S, ours), SCHEDULES[case](T, theirs)
    for step in range(40):
        for a, b in zip(ours.groups, theirs.param_groups, strict=True):
            assert a["lr"] == pytest.approx(b["lr"], rel=1e-9, abs=1e-12), step
            assert a["betas"] == pytest.approx(b["betas"], rel=1e-9), step
        if step < 39:
            one.step()
            theirs.step()
            two.step()


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("kind", ["rel", "abs"])
def test_plateaus_follow_torch(mode, kind, rng):
    how = {
        "mode": mode, "factor": 0.5, "patience": 2, "threshold": 0.05, "threshold_mode": kind, "cooldown": 1,
        "min_lr": 0.01,
    }  # fmt: skip
    ours = pg.optim.SGD([pg.ones(1)], lr=1.0)
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    one, two = S.ReduceLROnPlateau(ours, **how), T.ReduceLROnPlateau(theirs, **how)
    seen = []
    for _ in range(60):
        metric = float(rng.uniform(0.5, 1.5))
        one.step(metric)
        two.step(metric)
        assert ours.lr == pytest.approx(theirs.param_groups[0]["lr"])
        seen.append(ours.lr)
    assert len(set(seen)) > 3
