"""Cases as files: what a failing launch was, to be run again on any device.

Here: `save` and `load`, and running one. Not here: making cases small (`shrinking.py`).
"""

import base64
import json
import math
import zlib
from typing import Any

import numpy as np

from polygrad.driver import oracle, serial
from polygrad_conformance.bench import Bench
from polygrad_conformance.case import Array, Case

SCHEMA = 1


def save(case: Case, check: str) -> dict[str, Any]:
    """Return *case* as data for JSON; *check* is the id of the test that found it.

    Examples
    --------
    >>> from polygrad_conformance.random_kernels import random_case
    >>> case = random_case(1)
    >>> load(save(case, "L5.random.1")).kernel == case.kernel
    True
    """
    return {
        "polygrad_case": SCHEMA,
        "check": check,
        "seed": case.seed,
        "kernel": json.loads(serial.to_json(case.kernel)),
        "buffers": [_packed(b) for b in case.buffers],
        "ints": list(case.ints),
        "scalars": [repr(s) if isinstance(s, float) and not math.isfinite(s) else s for s in case.scalars],
        "outputs": list(case.outputs),
        "allowed": [_packed(a) for a in case.allowed],
    }


def load(data: dict[str, Any]) -> Case:
    """Return the case that *data* holds, its answer computed anew by the oracle.

    Raises
    ------
    ValueError
        If *data* is no case, or one of another version.
    """
    if data.get("polygrad_case") != SCHEMA:
        raise ValueError(f"this is no case of version {SCHEMA}; give a file that --report has written")
    kernel = serial.from_json(json.dumps(data["kernel"]))
    buffers = tuple(_unpacked(b, oracle.compute_dtype(d)) for b, d in zip(data["buffers"], kernel.buffers, strict=True))
    scalars = tuple(float(s) if isinstance(s, str) else s for s in data["scalars"])
    expected = tuple(b.copy() for b in buffers)
    oracle.run(kernel, expected, data["ints"], scalars)
    allowed = tuple(_unpacked(a, np.dtype(np.float64)) for a in data["allowed"])
    return Case(data["seed"], kernel, buffers, tuple(data["ints"]), scalars, tuple(data["outputs"]), expected, allowed)


def run(bench: Bench, data: dict[str, Any]) -> None:
    """Judge the device by a saved case."""
    bench.judge(load(data))


def _packed(a: Array) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(a).tobytes())).decode()


def _unpacked(text: str, dtype: "np.dtype[Any]") -> Array:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype).copy()
