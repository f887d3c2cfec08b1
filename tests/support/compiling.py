"""What tests of `pg.compile` share.

Here: a small network, a training step, arrays of float32, a function past its capture.
Not here: tests; the fixture `host` (`conftest.py`).
"""

import numpy as np

import polygrad as pg


def f32(values, device=None):
    return pg.asarray(np.asarray(values, np.float32), device=device)


def warmed(f, *args):
    """Return *f* compiled and past its two first calls with such arguments."""
    compiled = pg.compile(f)
    compiled(*args)
    compiled(*args)
    return compiled


def net(device=None):
    pg.random.seed(3)
    return pg.nn.Sequential(
        pg.nn.Linear(6, 16, device=device), pg.nn.BatchNorm1d(16, device=device), pg.nn.ReLU(), pg.nn.Dropout(0.2),
        pg.nn.Linear(16, 3, device=device),
    )  # fmt: skip


def training_step(model, optimiser, *after):
    """Return a step of a classifier, which clips and then calls what comes *after* it."""

    def step(x, y):
        loss = pg.nn.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step(max_norm=1.0)
        optimiser.zero_grad()
        for call in after:
            call()
        return loss

    return step
