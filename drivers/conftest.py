"""What the drivers' own tests share: calling an op as the core does, a generator.

Here: the fixtures `call`, which wants a fixture `driver` of the test's module or folder, and `rng`.
Not here: opening a driver, which each does in its own way; what all of the project's tests share (`tests/conftest.py`).
"""

import numpy as np
import pytest

from polygrad.driver import Ref

NOISE = 77.0  # what results hold before a call, and must not keep


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def call(driver, request):
    """A function (name, shapes of results, operands, offset, **attrs) that returns the results of an op.

    Operands lie *offset* elements into their blocks: 1 if the module has no OFFSET that says otherwise.
    """
    usual = getattr(request.module, "OFFSET", 1)

    def ref(array, offset):
        array = np.ascontiguousarray(array)
        block = driver.allocate((array.size + offset) * array.itemsize)
        made = Ref(block, offset, array.shape, tuple(s // array.itemsize for s in array.strides), array.dtype.name)
        driver.op_write([made], [], {"data": memoryview(array.reshape(-1).view(np.uint8))})
        return made

    def value(made):
        out = np.empty(made.shape, made.dtype)
        driver.op_read([], [made], {"into": memoryview(out.reshape(-1).view(np.uint8))})
        return out

    def call(name, results, operands, offset=usual, **attrs):
        ins = [ref(x, offset) for x in operands]
        outs = [ref(np.full(shape, NOISE, operands[0].dtype), 0) for shape in results]
        getattr(driver, f"op_{name}")(outs, ins, attrs)
        found = [value(made) for made in outs]
        for made in (*ins, *outs):
            driver.free(made.handle)
        return found

    return call
