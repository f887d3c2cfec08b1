"""What tests of `pg.training` share.

Here: a small run with everything that has a state, errors compared whole, full disks, signals. Not here: tests.
"""

import contextlib
import math
import os
import random
import re
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

import polygrad as pg
from polygrad.training import (
    fit,
)


def refuses(error, sentence):
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


def needs(package):
    return pytest.importorskip(package, reason=f"not run: needs {package}")


def text_of(path):
    return Path(path).read_text()


@contextlib.contextmanager
def room(size):
    """Let no file of this process grow beyond *size* bytes, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Setup:
    """A small run with everything that has a state."""

    def __init__(self, seed=1, batch_size=8, **how):
        pg.random.seed(seed)
        random.seed(seed)
        self.model = pg.nn.Sequential(pg.nn.Linear(4, 8), pg.nn.Tanh(), pg.nn.Dropout(0.1), pg.nn.Linear(8, 2))
        self.optimiser = pg.optim.AdamW(self.model, lr=0.05)
        rows = np.random.default_rng(0).standard_normal((30, 4)).astype("float32")
        self.rows = rows
        self.loader = pg.data.DataLoader(
            pg.data.TensorDataset(rows, rows[:, :2] * 2), batch_size, shuffle=True, seed=seed, **how
        )

    def fit(self, loss=None, **how):
        return fit(self.model, loss or mse, self.loader, self.optimiser, **{"progress": False, **how})

    def cosine(self, total=20):
        return pg.optim.lr_scheduler.CosineWithWarmup(self.optimiser, total=total, warmup=3)

    def weights(self):
        return {name: a.numpy().tobytes() for name, a in self.model.state_dict().items()}


def mse(model, batch):
    return pg.nn.mse_loss(model(batch[0]), batch[1])


def poisoned_at(step):
    """Return a loss that is not a number in the batch of that number."""
    seen = []

    def loss(model, batch):
        seen.append(batch)
        return mse(model, batch) * (math.nan if len(seen) == step else 1.0)

    return loss


def send(number=signal.SIGINT):
    os.kill(os.getpid(), number)
