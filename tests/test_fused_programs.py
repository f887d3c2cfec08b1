"""Random programs, fused and op by op: the same values and the same gradients.

Here: the comparison. Not here: the programs (`support/fused_programs.py`), launch counts (`test_fusion.py`).
"""

import numpy as np
import pytest
from hypothesis import given, settings

import polygrad as pg
from support.fused_programs import SIZES, examples, programs, relaxed, run_once


def compare_program(program, seed, keep, size):
    rng = np.random.default_rng(seed)
    dtype = pg.float64 if "float64" in pg.__array_namespace_info__().dtypes() else pg.float32
    shape = SIZES[size]
    value = [rng.uniform(-1, 1, shape).astype(dtype) for _ in range(2)]
    index = [rng.integers(0, shape[1], shape[1]) for _ in range(4)]
    fused = run_once(program, value, index, keep)
    with pg.eager():
        unfused = run_once(program, value, index, keep)
    tolerance = 1e-9 if dtype is pg.float64 else 2e-3
    for f, u in zip(fused, unfused, strict=True):
        np.testing.assert_allclose(f, u, rtol=tolerance, atol=tolerance)


def test_a_fused_program_equals_the_same_op_by_op(device):
    @settings(
        max_examples=examples(device, 150, 5),
        deadline=None,
        derandomize=True,
        suppress_health_check=relaxed,
        database=None,
    )
    @given(**programs)
    def check(program, seed, keep, size):
        with pg.device(device):
            compare_program(program, seed, keep, size)

    check()


@pytest.mark.thorough
def test_many_fused_programs_equal_the_same_op_by_op(device):
    @settings(max_examples=examples(device, 3000, 100), deadline=None, suppress_health_check=relaxed, database=None)
    @given(**programs)
    def check(program, seed, keep, size):
        with pg.device(device):
            compare_program(program, seed, keep, size)

    check()
