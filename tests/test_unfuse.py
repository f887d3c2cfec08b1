"""`unfuse` with NumPy as the op library, against the oracle.

Here: the helper of drivers that have an op library and no compiler. Not here: PyTorch (`examples/driver-torch`).
"""

import operator

import numpy as np
import pytest

from polygrad.driver import Instr, Kernel, Ref, Store, View, oracle, unfuse
from polygrad.driver.ir import DTYPES, ITEMSIZE, REDUCTIONS
from polygrad_conformance.random_kernels import compare, random_case

SCALAR_OPS = frozenset(oracle.FUNCTIONS)


def strided(ref):
    dtype = oracle.compute_dtype(ref.dtype)
    flat = ref.handle[: ref.handle.size // dtype.itemsize * dtype.itemsize].view(dtype)
    strides = [stride * dtype.itemsize for stride in ref.strides]
    return np.lib.stride_tricks.as_strided(flat[ref.offset :], ref.shape, strides)


def one(name):
    """The oracle's function for one op, as an op of a library."""

    def function(*values):
        with np.errstate(all="ignore"):
            dtype = str(values[-1].dtype)
            made = "bool" if name in ("less", "less_equal", "equal", "not_equal") else dtype
            return oracle.compute(Instr(name, made), values)

    return function


class NumPyLibrary(unfuse.Library):
    functions = {name: one(name) for name in (*SCALAR_OPS, "where")}
    reshape, broadcast, arange = staticmethod(np.reshape), staticmethod(np.broadcast_to), staticmethod(np.arange)
    copy, take = staticmethod(np.copy), staticmethod(operator.getitem)

    def load(self, ref):
        return strided(ref)

    def store(self, ref, value):
        strided(ref)[...] = value

    def constant(self, number, dtype, rank):
        return np.full((1,) * rank, number, oracle.compute_dtype(dtype))

    def cast(self, value, source, dtype):
        return oracle.compute(Instr("cast", dtype), [value])

    def bitcast(self, value, source, dtype):
        return oracle.compute(Instr("bitcast", dtype), [value])

    def pad(self, value, widths, fill):
        return np.pad(value, widths, constant_values=fill)

    def first(self, value, mask):
        return int(value[mask][0]) if mask.any() else None

    def reduce(self, name, value, axis, dtype):
        whole = np.moveaxis(value, axis, -1)
        return oracle.reduce(Instr("reduce", dtype, (), name), whole, whole.shape, whole.ndim - 1)[..., 0]


def launch(case):
    """Run a case by `unfuse`, in bytes, and return its buffers."""
    blocks = [np.frombuffer(array.tobytes(), np.uint8).copy() for array in case.fresh()]
    unfuse.unfuse(NumPyLibrary(), case.kernel)(blocks, case.ints, case.scalars)
    return [b.view(oracle.compute_dtype(d)) for b, d in zip(blocks, case.kernel.buffers, strict=True)]


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_kernels_agree_with_the_oracle(first):
    for seed in range(first, first + 50):
        case = random_case(seed, dtypes=DTYPES, scalar_ops=SCALAR_OPS, reductions=REDUCTIONS)
        compare(case, launch(case))


def test_the_random_kernels_visit_every_kind_of_load_and_store():
    seen = set()
    for seed in range(300):
        kernel = random_case(seed, dtypes=DTYPES, scalar_ops=SCALAR_OPS, reductions=REDUCTIONS).kernel
        for view in kernel.views:
            seen |= {("window", bool(view.window)), ("gathers", view.gathers), ("partial", view.partial)}
            seen.add(("both", bool(view.window and view.gathers)))
        seen |= {("guard", i.guard >= 0) for i in kernel.body}
        seen |= {("index", kernel.body[a].dtype) for i in kernel.body if i.op == "load" for a in i.args}
    assert {("window", True), ("gathers", 2), ("partial", True), ("both", True), ("guard", True)} <= seen
    assert ("index", "uint64") in seen


def gathering(dtype):
    views = (View(0, dtype, (1,)), View(1, "float32", (0,), gathers=1), View(2, "float32", (1,)))
    body = (Instr("load", dtype, (), 0), Instr("load", "float32", (0,), 1))
    return Kernel(1, 0, (dtype, "float32", "float32", "int32"), views, (), body, (Store(1, 2),), 3)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64"])
def test_a_bad_index_is_reported_once_and_clamped(dtype):
    huge = {"int8": 100, "int64": -(2**40), "uint64": 2**64 - 3}[dtype]
    kernel, index = gathering(dtype), np.array([1, 4, huge, 0], dtype)
    source = np.arange(5, dtype=np.float32)
    wanted = [index, source, np.zeros(4, np.float32), np.zeros(4, np.int32)]
    ints = (4, 0, 0, 1, 5, 0, 77)
    oracle.run(kernel, wanted, ints, ())
    blocks = [a.view(np.uint8).copy() for a in (index, source, np.zeros(4, np.float32), np.zeros(4, np.int32))]
    unfuse.unfuse(NumPyLibrary(), kernel)(blocks, ints, ())
    np.testing.assert_array_equal(blocks[2].view(np.float32), wanted[2])
    np.testing.assert_array_equal(blocks[3].view(np.int32), wanted[3])
    assert wanted[3][0] == 77
    assert wanted[2][2] in (0.0, 4.0)


def test_an_aliased_store_sees_what_was_there_before():
    views = (View(0, "int32", (None,)), View(0, "int32", (1,)), View(1, "int32", (1,)))
    kernel = Kernel(
        1, 0, ("int32", "int32"), views, (),
        (Instr("load", "int32", (), 0), Instr("negative", "int32", (0,))), (Store(1, 1), Store(0, 2)),
    )  # fmt: skip
    blocks = [np.arange(4, dtype=np.int32).view(np.uint8), np.zeros(4, np.int32).view(np.uint8)]
    unfuse.unfuse(NumPyLibrary(), kernel)(blocks, (4, 3, -1, 0, 0), ())
    assert blocks[0].view(np.int32).tolist() == [-3, -2, -1, 0]
    assert blocks[1].view(np.int32).tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_random_bits_are_those_of_philox(count):
    from polygrad_conformance.philox import words

    for key, counter in ((0, 0), (2**64 - 1, 2**64 - 2), (12345678901234567890, 2**33 + 5)):
        block = np.zeros(ITEMSIZE["uint32"] * (count + 1), np.uint8)
        unfuse.random_bits(NumPyLibrary(), Ref(block, 1, (count,), (1,), "uint32"), key, counter)
        np.testing.assert_array_equal(block.view(np.uint32)[1:], words(key, counter, count))
        assert block.view(np.uint32)[0] == 0
