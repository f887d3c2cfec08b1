"""The cuda driver: what can be tested without a GPU, and with one memory, ops, errors and what a launch costs.

Here: the driver alone, called through its methods. Not here: fused kernels' results on all dtypes, which the
conformance suite owns.
"""

import itertools
import os
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest

from polygrad.driver import CompileError, DeviceError, DriverUnavailable, OutOfMemory, Ref, UnsupportedOp
from polygrad.driver.ir import Instr, Kernel, Store, View
from polygrad_cuda import plugin, vendor
from polygrad_cuda.driver import CudaDriver
from polygrad_cuda.matmul_plan import Operand, collapse, operand, plan
from polygrad_cuda.scratch import contiguous_strides

DTYPES = {"bfloat16": ml_dtypes.bfloat16}


def np_dtype(name):
    return np.dtype(DTYPES.get(name, name))


# ---- without a GPU ----------------------------------------------------------------------------------


def test_importing_the_plugin_leaves_cupy_out():
    code = "import polygrad_cuda, sys; print([m for m in ('cupy', 'nvmath', 'cuda') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_the_plugin_describes_itself_without_a_device():
    (info,) = plugin.polygrad_drivers()
    assert info.name == "cuda"
    assert "polygrad-array[cuda]" in info.requires


def test_a_missing_library_says_what_to_install(monkeypatch):
    def refuse(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(vendor.importlib, "import_module", refuse)
    with pytest.raises(DriverUnavailable, match=r"needs CuPy.*pip install 'polygrad-array\[cuda\]'"):
        CudaDriver.count()


def test_the_declared_ops_are_the_methods():
    assert set(CudaDriver.ops()) >= {"copy", "matmul", "random_bits", "scatter_add", "scan", "sort", "nonzero"}


def test_an_operand_is_taken_in_place_if_its_rows_or_columns_are_contiguous():
    assert operand(4, 5, 7, 1) == Operand(transposed=False, leading=7)
    assert operand(4, 5, 1, 9) == Operand(transposed=True, leading=9)
    assert operand(1, 5, 99, 1) == Operand(transposed=False, leading=5)
    assert operand(4, 1, 3, 99) == Operand(transposed=False, leading=3)
    assert operand(4, 5, 0, 1) is None
    assert operand(4, 5, -5, 1) is None


def test_batch_axes_collapse_only_if_all_three_operands_do():
    assert collapse([(2, 12, 12, 6), (3, 4, 4, 2)]) == [(6, 4, 4, 2)]
    assert collapse([(2, 12, 0, 6), (3, 4, 4, 2)]) == [(2, 12, 0, 6), (3, 4, 4, 2)]


def emulate(planned, a, b, c):
    """Follow the plan as cuBLAS would, on flat arrays."""
    axes = (planned.batch, *planned.outer)
    for index in itertools.product(*(range(axis[0]) for axis in axes)):
        x, y, z = (sum(i * axis[s] for i, axis in zip(index, axes, strict=True)) for s in (1, 2, 3))
        for i, j in itertools.product(range(planned.m), range(planned.n)):
            steps = range(planned.k)
            left = [
                x + (k * planned.a.leading + i if planned.a.transposed else i * planned.a.leading + k) for k in steps
            ]
            right = [
                y + (j * planned.b.leading + k if planned.b.transposed else k * planned.b.leading + j) for k in steps
            ]
            c[z + i * planned.n + j] = sum(a[p] * b[q] for p, q in zip(left, right, strict=True))


@pytest.mark.parametrize("swap_a", [False, True])
@pytest.mark.parametrize("swap_b", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("spread", [None, "a", "b"])
def test_a_plan_gives_the_product(swap_a, swap_b, batch, spread):
    rng = np.random.default_rng(0)
    m, k, n = 3, 4, 2
    a = rng.standard_normal((*batch, *((k, m) if swap_a else (m, k))))
    b = rng.standard_normal((*batch, *((n, k) if swap_b else (k, n))))
    a, b = a.swapaxes(-1, -2) if swap_a else a, b.swapaxes(-1, -2) if swap_b else b
    if spread == "a":
        a = np.broadcast_to(a[(0,) * len(batch)], a.shape)
    if spread == "b":
        b = np.broadcast_to(b[(0,) * len(batch)], b.shape)
    planned, poor = plan((*batch, m, n), k, (elements(a), elements(b), contiguous_strides((*batch, m, n))))
    assert poor == (False, False)
    c = np.zeros(int(np.prod((*batch, m, n))))
    emulate(planned, flat(a), flat(b), c)
    np.testing.assert_allclose(c.reshape(*batch, m, n), a @ b)


def elements(array):
    return tuple(s // array.itemsize for s in array.strides)


def flat(array):
    """Return the memory under a view as one axis."""
    base = array
    while base.base is not None:
        base = base.base
    return base.reshape(-1)


# ---- with a GPU -------------------------------------------------------------------------------------


class Host:
    """Arrays in and out of a driver; the blocks live until `clear`."""

    def __init__(self, driver):
        self.driver, self.blocks = driver, []

    def put(self, array):
        array = np.asarray(array)
        base = array
        while base.base is not None and isinstance(base.base, np.ndarray):
            base = base.base
        handle = self.driver.allocate(max(1, base.nbytes))
        self.blocks.append(handle)
        dtype = array.dtype.name
        if base.nbytes:
            whole = Ref(handle, 0, (base.size,), (1,), dtype)
            self.driver.op_write(
                (whole,), (), {"data": memoryview(np.ascontiguousarray(base).reshape(-1).view(np.uint8))}
            )
        offset = (array.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // array.itemsize
        return Ref(handle, offset, array.shape, elements(array), dtype)

    def empty(self, shape, dtype):
        count = int(np.prod(shape))
        handle = self.driver.allocate(max(1, count * np_dtype(dtype).itemsize))
        self.blocks.append(handle)
        ref = Ref(handle, 0, tuple(shape), contiguous_strides(tuple(shape)), dtype)
        noise = np.full(count * np_dtype(dtype).itemsize, 0xA5, np.uint8)
        self.driver.op_write((ref,), (), {"data": memoryview(noise)})
        return ref

    def get(self, ref):
        out = np.empty(ref.shape, np_dtype(ref.dtype))
        self.driver.op_read((), (ref,), {"into": memoryview(out.reshape(-1).view(np.uint8))})
        return out

    def clear(self):
        for handle in self.blocks:
            self.driver.free(handle)


@pytest.fixture
def host(gpu):
    made = Host(gpu)
    yield made
    made.clear()


@pytest.mark.parametrize("nbytes", [1, 3, 4096, (8 << 20) - 1, (8 << 20) + 1, (40 << 20) + 7])
def test_what_is_written_is_read_back(host, nbytes):
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    kept = data.copy()
    ref = host.put(data)
    data[:] = 0  # the driver must not look at the caller's memory any more
    np.testing.assert_array_equal(host.get(ref), kept)


def test_many_small_writes_arrive_in_order(host):
    ref = host.empty((64,), "int32")
    for number in range(20_000):
        one = Ref(ref.handle, number % 64, (1,), (1,), "int32")
        host.driver.op_write((one,), (), {"data": memoryview(np.array([number], np.int32).view(np.uint8))})
    np.testing.assert_array_equal(np.sort(host.get(ref)), np.arange(20_000 - 64, 20_000))


def test_no_room_is_out_of_memory_and_the_device_goes_on(host):
    with pytest.raises(OutOfMemory, match=r"no room for .* bytes are free"):
        host.driver.allocate(1 << 50)
    test_what_is_written_is_read_back(host, 4096)


def test_a_strided_source_is_copied(host):
    base = np.arange(2 * 3 * 4 * 5, dtype=np.int16).reshape(2, 3, 4, 5)
    for view in (base, base.transpose(2, 0, 3, 1), base[::-1, 1:, ::2, ::-1], np.broadcast_to(base[0, 0], (7, 4, 5))):
        source = host.put(view)
        out = host.empty(view.shape, "int16")
        host.driver.op_copy((out,), (source,), {})
        np.testing.assert_array_equal(host.get(out), view)


LAYOUTS = {
    "plain": lambda x: x,
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "every second": lambda x: np.repeat(np.repeat(x, 2, -1), 2, -2)[..., ::2, ::2],
    "reversed": lambda x: np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1],
    "heads": lambda x: np.ascontiguousarray(np.moveaxis(x, -2, 0)).transpose(*range(1, x.ndim - 1), 0, x.ndim - 1),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8", "uint16", "int32", "int64"])
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_products_of_any_layout(host, dtype, left, right):
    rng = np.random.default_rng(1)
    for batch, m, k, n in (((), 33, 65, 17), ((3,), 8, 16, 24), ((2, 3), 5, 7, 9), ((7, 6), 1, 8, 1), ((), 1, 5, 1)):
        make = (lambda s: rng.integers(-9, 9, s)) if "int" in dtype else rng.standard_normal
        a, b = (make((*batch, *s)).astype(np_dtype(dtype)) for s in ((m, k), (k, n)))
        a, b = LAYOUTS[left](a) if a.ndim > 2 or left != "heads" else a, LAYOUTS[right](b)
        out = host.empty((*batch, m, n), dtype)
        host.driver.op_matmul((out,), (host.put(a), host.put(b)), {})
        if "int" in dtype:
            np.testing.assert_array_equal(host.get(out), a @ b)
        else:
            wide = (x.astype(np.float64) for x in (a, b))
            bound = k * {"float64": 1e-15, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
            got = host.get(out).astype(np.float64)
            np.testing.assert_allclose(got, np.matmul(*wide), atol=bound, rtol=bound / k * 4)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_products_with_a_repeated_operand(host, dtype):
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-9, 9, s).astype(dtype) for s in ((4, 3, 6, 5), (5, 8)))
    b = np.broadcast_to(b, (4, 3, 5, 8))
    out = host.empty((4, 3, 6, 8), dtype)
    host.driver.op_matmul((out,), (host.put(a), host.put(b)), {})
    np.testing.assert_array_equal(host.get(out), a @ b)
    host.driver.op_matmul((out,), (host.put(a[:, :1].repeat(3, 1)), host.put(b)), {})
    np.testing.assert_array_equal(host.get(out), a[:, :1].repeat(3, 1) @ b)


def test_float32_is_float32_unless_tf32_is_asked_for(host):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((512, 512)).astype(np.float32) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    out = host.empty((512, 512), "float32")
    errors = {}
    for precision in ("highest", "tf32"):
        host.driver.op_matmul((out,), (host.put(a), host.put(b)), {"precision": precision})
        errors[precision] = np.linalg.norm(host.get(out) - exact) / np.linalg.norm(exact)
    assert errors["highest"] < 2e-6
    assert 2e-5 < errors["tf32"] < 2e-3
    with pytest.raises(UnsupportedOp, match="'highest' and 'tf32', not 'low'"):
        host.driver.op_matmul((out,), (host.put(a), host.put(b)), {"precision": "low"})


def philox(key, counter):
    word = [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p, q = 0xD2511F53 * word[0], 0xCD9E8D57 * word[2]
        word = [(q >> 32) ^ word[1] ^ low, q & 0xFFFFFFFF, (p >> 32) ^ word[3] ^ high, p & 0xFFFFFFFF]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return word


def test_the_reference_for_random_bits_gives_the_known_answer():
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize(
    ("key", "counter", "n"), [(0, 0, 4), (3, 5, 1), ((1 << 64) - 1, (1 << 64) - 2, 19), (7 << 40, 1 << 33, 4099)]
)
def test_random_bits_are_philox(host, key, counter, n):
    out = host.empty((n,), "uint32")
    host.driver.op_random_bits((out,), (), {"key": key, "counter": counter})
    want = [w for block in range(-(-n // 4)) for w in philox(key, (counter + block) % (1 << 64))][:n]
    np.testing.assert_array_equal(host.get(out), np.array(want, np.uint32))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int32", "uint64"])
@pytest.mark.parametrize(
    ("n", "k", "m"),
    [(5, 7, 3), (50, 1000, 33), (3, 4000, 2), (1, 300, 130), (1000, 64, 1), (70_000, 5000, 3), (65_535, 20_000, 2),
     (70_000, 20_000, 2)],
)  # fmt: skip
def test_rows_are_added_up(host, dtype, n, k, m):
    rng = np.random.default_rng(4)
    index = rng.integers(-n, n, k)
    values = rng.integers(-4, 5, (k, m)).astype(np_dtype(dtype))
    out, status = host.empty((n, m), dtype), host.put(np.zeros(4, np.int32))
    host.driver.op_scatter_add((out,), (host.put(index), host.put(values)), {"status": status.handle, "tag": 9})
    want = np.zeros((n, m), np.int64 if "int" in dtype else np.float64)
    np.add.at(want, index, values.astype(want.dtype))
    np.testing.assert_array_equal(host.get(out), want.astype(np_dtype(dtype)))
    np.testing.assert_array_equal(host.get(status), 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int64", "uint16"])
@pytest.mark.parametrize("mode", ["max", "min", "multiply"])
def test_rows_are_combined(host, dtype, mode):
    function = {"max": np.maximum, "min": np.minimum, "multiply": np.multiply}[mode]
    start = {"max": -np.inf, "min": np.inf, "multiply": 1}[mode]
    if "int" in dtype and mode != "multiply":
        start = np.iinfo(dtype).min if mode == "max" else np.iinfo(dtype).max
    rng = np.random.default_rng(4)
    index = rng.integers(-9, 8, 90)  # nothing goes to the last row but by -1
    values = rng.integers(1 if mode == "multiply" else -4 if "u" not in dtype else 0, 3, (90, 5)).astype(
        np_dtype(dtype)
    )
    if "float" in dtype:
        values[3, 0] = np.nan
    out = host.empty((10, 5), dtype)
    attrs = {"status": host.put(np.zeros(4, np.int32)).handle, "tag": 9, "mode": mode}
    host.driver.op_scatter_reduce((out,), (host.put(index), host.put(values)), attrs)
    wide = np.float64 if "float" in dtype else np_dtype(dtype)
    want = np.full((10, 5), start, wide)
    function.at(want, index, values.astype(wide))
    np.testing.assert_array_equal(host.get(out).astype(wide), want.astype(np_dtype(dtype)).astype(wide))


def test_rows_are_added_up_alike_in_every_run(host):
    rng = np.random.default_rng(5)
    index, values = host.put(rng.integers(0, 40, 5000)), host.put(rng.standard_normal((5000, 64)).astype(np.float32))
    outs = [host.empty((40, 64), "float32") for _ in range(3)]
    for out in outs:
        host.driver.op_scatter_add((out,), (index, values), {})
    first = host.get(outs[0])
    assert all(np.array_equal(first, host.get(out)) for out in outs[1:])


@pytest.mark.parametrize("count", [3, 20_000])  # sorted by counting, and by the library
@pytest.mark.parametrize("bad", [10, -11, 1 << 40, -(1 << 63)])
def test_a_bad_row_is_reported(host, bad, count):
    index = np.zeros(count, np.int64)
    index[:3] = 0, bad, 3
    out, status = host.empty((10, 2), "float32"), host.put(np.zeros(4, np.int32))
    values = host.put(np.ones((count, 2), np.float32))
    host.driver.op_scatter_add((out,), (host.put(index), values), {"status": status.handle, "tag": 12})
    word = host.get(status)
    assert word[0] == 12
    assert (int(word[3]) << 32) | (int(word[2]) & 0xFFFFFFFF) == bad
    assert host.get(out)[:, 0].tolist() == [count - 2.0, 0.0, 0.0, 1.0, *[0.0] * 6]


def chain(parallel=1):
    """Return a kernel y = exp(x) * c."""
    body = (
        Instr("load", "float32", (), 0), Instr("exp", "float32", (0,)), Instr("scalar", "float32", (), 0),
        Instr("multiply", "float32", (1, 2)),
    )  # fmt: skip
    views = (View(0, "float32", (1,) * parallel), View(1, "float32", (1,) * parallel))
    return Kernel(parallel, 0, ("float32", "float32"), views, ("float32",), body, (Store(3, 1),))


def test_a_fused_kernel_runs_and_a_launch_is_cheap(host):
    x = np.random.default_rng(6).standard_normal(1000).astype(np.float32)
    source, out = host.put(x), host.empty((1000,), "float32")
    prepared = host.driver.prepare_fused(chain())
    call = ((source.handle, out.handle), (1000, 0, 0), (0.5,))
    prepared(*call)
    np.testing.assert_allclose(host.get(out), np.exp(x.astype(np.float64)) * 0.5, rtol=3e-7)
    best = 1.0
    for _ in range(5):
        host.driver.synchronize()
        start = time.perf_counter()
        for _ in range(500):
            prepared(*call)
        best = min(best, (time.perf_counter() - start) / 500)
        host.driver.synchronize()
    print(f"a launch costs {best * 1e6:.1f} microseconds")
    assert best < 20e-6


def test_subnormals_survive(host):
    x = np.array([1e-40, -3e-42], np.float32)
    body = (Instr("load", "float32", (), 0), Instr("add", "float32", (0, 0)))
    views = (View(0, "float32", (1,)), View(1, "float32", (1,)))
    kernel = Kernel(1, 0, ("float32", "float32"), views, (), body, (Store(1, 1),))
    source, out = host.put(x), host.empty((2,), "float32")
    host.driver.prepare_fused(kernel)((source.handle, out.handle), (2, 0, 0), ())
    np.testing.assert_array_equal(host.get(out), x + x)


def test_addresses_beyond_31_bits(host):
    n = (1 << 31) + 4099
    body = (
        Instr("iota", "int64", (), 0), Instr("const", "int64", (), 127), Instr("bitwise_and", "int64", (0, 1)),
        Instr("cast", "int8", (2,)),
    )  # fmt: skip
    kernel = Kernel(1, 0, ("int8",), (View(0, "int8", (1,)),), (), body, (Store(3, 0),))
    out = host.driver.allocate(n)
    host.blocks.append(out)
    host.driver.prepare_fused(kernel)((out,), (n, 0), ())
    for start in (0, (1 << 31) - 8, n - 16):
        got = host.get(Ref(out, start, (16,), (1,), "int8"))
        np.testing.assert_array_equal(got, np.arange(start, start + 16) & 127)


@pytest.mark.parametrize("dtype", ["int8", "float64"])
def test_a_transposed_copy_goes_through_tiles(host, dtype):
    base = np.random.default_rng(8).integers(0, 99, (3, 70, 90)).astype(dtype)
    view = base.swapaxes(1, 2)
    out = host.empty(view.shape, dtype)
    host.driver.op_copy((out,), (host.put(view),), {})
    np.testing.assert_array_equal(host.get(out), view)


def test_a_refused_text_is_a_compile_error(gpu):
    with pytest.raises(CompileError, match="NVRTC refused a kernel") as caught:
        gpu.compiler.function('extern "C" __global__ void broken() { nonsense; }', "broken")
    assert "nonsense" in caught.value.source
    assert "nonsense" in caught.value.log


def test_memory_info_counts_bytes(gpu):
    free, total = gpu.memory_info()
    assert 0 < free < total


CHILD = """
import os, sys
from polygrad_cuda.driver import CudaDriver
driver = CudaDriver(); driver.open(0, {})
block = driver.allocate(64)
child = os.fork()
if child == 0:
    driver.free(block)
    try:
        driver.allocate(64)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
driver.allocate(64)
print("parent goes on")
"""
LOST = """
from polygrad_cuda.driver import CudaDriver
driver = CudaDriver(); driver.open(0, {})
text = 'extern "C" __global__ void wild(int* p) { p[0] = 1; }'
driver.launch(text, "wild", (1, 1, 1), (1, 1, 1), ("pointer",), (64,))
for attempt in (driver.synchronize, lambda: driver.allocate(64)):
    try:
        attempt()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
driver.free(5)
"""


def in_child(code):
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False,
                          env=os.environ | {"PYTHONPATH": path}, timeout=120)  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.usefixtures("gpu")
def test_a_forked_child_is_refused_by_name():
    said = in_child(CHILD)
    assert "DeviceLost cuda:0 was opened before this process was forked" in said
    assert "'spawn'" in said
    assert "parent goes on" in said


@pytest.mark.usefixtures("gpu")
def test_a_lasting_fault_loses_the_device():
    said = in_child(LOST)
    assert said.count("DeviceLost cuda:0 is lost: a kernel touched memory that is not its own") == 2, said


def test_a_closed_device_says_so(gpu):
    other = CudaDriver()
    other.open(0, {})
    other.close()
    with pytest.raises(DeviceError, match="cuda:0 is closed"):
        other.allocate(64)
    assert gpu.memory_info().total > 0
