"""Random numbers on devices whose integers have 32 bits: the same bits where 32 do, a sentence where they do not.

Here: what a device without int64 and uint64 draws. Not here: devices that have them (`test_random.py`).
"""

import dataclasses

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver import DriverInfo
from polygrad.driver.loader import REGISTRY
from polygrad_conformance import philox
from polygrad_conformance.strict import VARIANTS, StrictDriver


class Narrow(StrictDriver):
    """A device without int64, uint64 and float64 that draws bits itself."""

    info = DriverInfo("narrow", summary="a device of 32 bits, for tests")

    @classmethod
    def count(cls):
        return 1

    def open(self, ordinal, options):
        info = super().open(VARIANTS.index("no_int64"), options)
        return dataclasses.replace(info, driver="narrow", ordinal=0, ops=info.ops | {"random_bits"})

    def op_random_bits(self, outs, ins, attrs):
        out = outs[0]
        words = philox.words(attrs["key"], attrs["counter"], out.shape[0])
        data = words.view(np.uint8).data.toreadonly()
        self.op_write(outs, (), {"data": data})


@pytest.fixture(scope="module", autouse=True)
def narrow():
    plugin = Narrow.plugin()
    REGISTRY.register(plugin)
    yield
    REGISTRY.unregister(plugin)


DRAWS = {
    "normal": lambda **kw: pg.random.normal((7, 5), dtype="float32", **kw),
    "normal of float16": lambda **kw: pg.random.normal((9,), 1.0, 0.5, dtype="float16", **kw),
    "uniform": lambda **kw: pg.random.uniform((33,), -2.0, 3.0, dtype="float32", **kw),
    "exponential": lambda **kw: pg.random.exponential((9,), dtype="float32", **kw),
    "bernoulli": lambda **kw: pg.random.bernoulli(0.3, (64,), **kw),
    "bits": lambda **kw: pg.random.bits((13,), **kw),
    "permutation": lambda **kw: pg.random.permutation(12, **kw),
}


@pytest.mark.parametrize("name", DRAWS)
def test_32_bits_are_enough_for_the_same_numbers(name):
    pg.random.seed(5)
    here = DRAWS[name](device="narrow:0")
    pg.random.seed(5)
    np.testing.assert_array_equal(here.numpy(), DRAWS[name](device="cpu:0").numpy())


def test_integers_need_64_bits_and_say_so():
    with pytest.raises(pg.DTypeError) as refused:
        pg.random.randint(0, 10, (4,), dtype="int32", device="narrow:0")
    assert str(refused.value) == (
        "cannot draw integers on narrow:0: it has no uint64, in which they are made; draw them on another device "
        "and move them with .to_device('narrow:0')"
    )
