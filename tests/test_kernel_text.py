"""Kernels as text: JSON that survives a trip and is refused when damaged, and the lines that people read.

Here: `polygrad.driver`'s serial and show. Not here: source code of kernels (`test_render_*.py`).
"""

import contextlib
import json
import math

import numpy as np
import pytest

from polygrad.driver.ir import Kernel, Store, View
from polygrad.driver.serial import from_json, to_json
from polygrad.driver.show import show
from polygrad.driver.verify import VerifyError
from polygrad_conformance.random_kernels import random_case
from support.kernels import CASES, GOOD, F, program, softmax

RNG = np.random.default_rng(20)


def test_kernels_survive_json():
    for seed in range(200):
        kernel = random_case(seed).kernel
        back = from_json(to_json(kernel))
        assert back == kernel
        assert repr(back) == repr(kernel), "1, 1.0 and True are equal but not the same"


def test_non_finite_literals_survive_json():
    kernel = Kernel(
        1, 0, (F,), (View(0, F, (1,), (0,), fill=math.nan), View(0, F, (1,))), (),
        program(("const", F, (), math.inf), ("const", F, (), -math.inf), ("load", F, (), 0)), (Store(1, 1),),
    )  # fmt: skip
    assert from_json(to_json(kernel)) == kernel


def test_another_major_version_is_refused_and_a_later_minor_is_read():
    text = json.loads(to_json(softmax()))
    text["polygrad_ir"] = [1, 7]
    assert from_json(json.dumps(text)) == softmax()
    text["polygrad_ir"] = [2, 0]
    with pytest.raises(VerifyError, match=r"the kernel is of IR 2\.0 and this is IR 1\.0"):
        from_json(json.dumps(text))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"polygrad_ir": [1, 0]}', "null"])
def test_what_is_no_kernel_is_refused(text):
    with pytest.raises(VerifyError, match="the text is no kernel"):
        from_json(text)


def test_damaged_json_is_refused_and_nothing_worse():
    for case in CASES:
        data = json.loads(to_json(case.kernel))
        for _ in range(10):
            damaged = json.loads(json.dumps(data))
            rows = damaged[str(RNG.choice(["views", "body", "stores"]))]
            row = rows[RNG.integers(len(rows))]
            row[RNG.integers(len(row))] = [None, -1, 99, "add", [0], [[]], {}, True, 1.5][RNG.integers(9)]
            with contextlib.suppress(VerifyError):
                from_json(json.dumps(damaged))


def test_json_of_a_malformed_kernel_is_refused():
    with pytest.raises(VerifyError, match="stores nothing"):
        from_json(to_json(softmax()._replace(stores=())))


def test_show_reads_like_a_program():
    assert show(softmax(), (5, 7, 0, 7, 2, 9)).splitlines() == [
        "kernel: i0 < 5; reduced i1 < 7; 3 passes over the reduced axes",
        "  %0 = load b0[7*i0 + i1] : float32   # FULL",
        "  %1 = reduce max %0 : float32        # ROW, after 1 reduction",
        "  %2 = subtract %0 %1 : float32       # FULL, after 1 reduction",
        "  %3 = exp %2 : float32               # FULL, after 1 reduction",
        "  %4 = reduce sum %3 : float32        # ROW, after 2 reductions",
        "  %5 = divide %3 %4 : float32         # FULL, after 2 reductions",
        "  store b1[2 + 9*i0 + i1] = %5",
    ]
    text = show(GOOD)
    assert "%2 = load b0[v2.o + v2.gs0*(%1 of v2.gn0)] : float32" in text
    assert "where v0.lo1 <= i1 < v0.hi1 else 0" in text
    assert "store b4[v4.o + i1 + v4.ps*part] = %9 summed over i0 in v4.parts parts" in text


def test_every_random_kernel_can_be_shown():
    for case in CASES:
        lines = show(case.kernel, case.ints).splitlines()
        assert len(lines) == 1 + len(case.kernel.body) + len(case.kernel.stores)
