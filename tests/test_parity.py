"""Whole trainings follow PyTorch's: losses against those in `parity.json`, which `benchmarks/parity.py` has written.

Here: trainings of an MLP, a CNN on the digits and a GPT, in float32, shorter than the benchmark's where kernels are
slow to come by. Not here: layers and optimisers one by one (`test_nn_torch.py`, `test_optim_torch.py`).
"""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="not run: needs scikit-learn")
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def parity():
    """The benchmark, as a module."""
    folder = HERE.parent / "benchmarks"
    spec = importlib.util.spec_from_file_location("parity", folder / "parity.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["parity"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["parity"]


@pytest.fixture(scope="module")
def recorded():
    return json.loads((HERE / "parity.json").read_text())


RUNS = {"MLP, SGD": 200, "CNN, AdamW": 50, "GPT, AdamW": 30}


@pytest.mark.parametrize("name", RUNS)
def test_a_training_follows_pytorchs(device, parity, recorded, name):
    ours = parity.polygrads(parity.JOBS[name], device, RUNS[name])
    found = parity.compare(ours, recorded[name]["float32"], recorded[name]["float64"])
    assert found.close <= parity.CLOSE, found
    assert found.ratio <= parity.TIMES, found
    assert ours[-1] < 0.98 * ours[0]


def test_a_training_that_strays_is_told_apart(parity, recorded):
    low, high = recorded["MLP, SGD"]["float32"], recorded["MLP, SGD"]["float64"]
    assert parity.compare(low, low, high).good
    drift = max(abs(a - b) for a, b in zip(low, high, strict=True))
    late = [*high[:-1], high[-1] + 4 * drift]
    assert not parity.compare(late, low, high).good
    early = [high[0] * (1 + 2e-5), *high[1:]]
    assert parity.compare(early, low, high).close > parity.CLOSE
    assert not parity.compare([*high[:50], np.nan, *high[51:]], low, high).good


def test_the_recorded_losses_are_of_this_benchmark(parity, recorded):
    pytest.importorskip("torch", reason="not run: needs torch")
    assert set(recorded) == set(parity.JOBS)
    for dtype in ("float64", "float32"):
        again = parity.pytorchs(parity.JOBS["MLP, AdamW"], dtype, 5)
        np.testing.assert_allclose(again, recorded["MLP, AdamW"][dtype][:5], rtol=1e-6 if dtype == "float32" else 1e-10)
