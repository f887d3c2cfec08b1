"""The OpenCL driver itself: devices and their order, memory, programs on disk, launches, ops, forks, threads.

Here: what is this driver's own. Not here: what every driver must do (the conformance suite), the renderer.
"""

import multiprocessing
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from polygrad.driver import (
    CompileError,
    DeviceLost,
    DriverUnavailable,
    Instr,
    Kernel,
    LaunchError,
    OutOfMemory,
    Ref,
    Store,
    View,
)
from polygrad.driver.counters import builds
from polygrad_conformance.random_kernels import compare, random_case

THOROUGH = bool(os.environ.get("POLYGRAD_TEST_THOROUGH"))
cl = pytest.importorskip("pyopencl", reason="not run: needs pyopencl")

from polygrad_opencl import devices, faults, matmul, matmul_form, plugin, programs  # noqa: E402  the package is looked for first


def flat(handle, nbytes):
    return Ref(handle, 0, (nbytes,), (1,), "uint8")


def upload(driver, array):
    array = np.ascontiguousarray(array)
    handle = driver.allocate(array.nbytes)
    driver.op_write([flat(handle, array.nbytes)], [], {"data": memoryview(array.view(np.uint8).reshape(-1))})
    return handle


def download(driver, handle, like):
    out = np.empty_like(like)
    driver.op_read([], [flat(handle, out.nbytes)], {"into": memoryview(out.view(np.uint8).reshape(-1))})
    return out


def row_softmax():
    views = (View(0, "float32", (None, 1)), View(1, "float32", (None, 1)))
    body = (
        Instr("load", "float32", (), 0), Instr("reduce", "float32", (0,), "max"), Instr("subtract", "float32", (0, 1)),
        Instr("exp", "float32", (2,)), Instr("reduce", "float32", (3,), "sum"), Instr("divide", "float32", (3, 4)),
    )  # fmt: skip
    return Kernel(1, 1, ("float32", "float32"), views, (), body, (Store(5, 1),))


def scaled():
    views = (View(0, "float32", (1,)), View(1, "float32", (1,)))
    body = (Instr("load", "float32", (), 0), Instr("scalar", "float32", (), 0), Instr("multiply", "float32", (0, 1)))
    return Kernel(1, 0, ("float32", "float32"), views, ("float32",), body, (Store(2, 1),))


# ---- devices ----------------------------------------------------------------------------------------------


def fake(platform, name, kind, unit=0):
    return SimpleNamespace(
        platform=SimpleNamespace(name=platform, vendor="someone"), name=name, type=kind, available=True, unit=unit
    )


def test_devices_are_sorted_by_what_they_are_and_not_by_the_loader():
    types = cl.device_type
    found = [
        fake("Oclgrind", "Oclgrind Simulator", types.CPU | types.GPU | types.ACCELERATOR),
        fake("Portable Computing Language", "pthread", types.CPU),
        fake("Intel(R) OpenCL", "a CPU", types.CPU),
        fake("Zed", "a GPU", types.GPU),
        fake("Zed", "an FPGA", types.ACCELERATOR),
    ]
    ordered = sorted(found, key=lambda device: devices.rank(device, 0))
    assert [d.name for d in ordered] == ["a GPU", "an FPGA", "a CPU", "pthread", "Oclgrind Simulator"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [("portable", True), ("PTHREAD", True), ("intel", False), ("1", True), ("0", False), ("1:2", True), (":2", True),
     (":1", False), ("Portable:pthr", True), ("Portable:gpu", False)],
)  # fmt: skip
def test_a_device_is_picked_by_part_of_its_name_or_by_number(wanted, expected):
    assert devices.matches(wanted, 1, 2, fake("Portable Computing Language", "pthread", 2)) is expected


def test_a_device_that_does_not_exist_is_refused_with_the_list(driver):
    with pytest.raises(DriverUnavailable, match=r"there is no device opencl:99; opencl:0 is "):
        devices.find_device(99)


def test_the_runtime_that_pip_installed_is_registered_beside_the_systems(tmp_path):
    environ = {}
    assert devices.register_installed_runtimes(environ, str(tmp_path)) is None
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libintelocl.so").touch()
    assert (
        devices.register_installed_runtimes(environ, str(tmp_path)) is None
    )  # without its maths library it cannot start
    (tmp_path / "lib" / "libsvml.so").touch()
    folder = devices.register_installed_runtimes(environ, str(tmp_path))
    assert environ["OCL_ICD_VENDORS"] == folder
    with open(os.path.join(folder, "intel-pip.icd")) as file:
        assert file.read() == f"{tmp_path / 'lib' / 'libintelocl.so'}\n"
    assert devices.register_installed_runtimes({"OCL_ICD_VENDORS": "mine"}, str(tmp_path)) is None


def test_importing_the_driver_asks_no_runtime_and_imports_no_vendor_library():
    code = "import sys, polygrad_opencl; polygrad_opencl.plugin.polygrad_drivers(); print('pyopencl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# ---- memory -----------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_when_it_is_asked_for(driver):
    before = driver.in_use
    with pytest.raises(OutOfMemory, match=r"opencl:0 cannot allocate \d+ bytes: \d+ of \d+ are in use"):
        driver.allocate(driver.largest + 1)
    handles = [driver.allocate(1 << 20)]
    total, driver.total = driver.total, driver.in_use + (1 << 19)
    try:
        with pytest.raises(MemoryError):
            driver.allocate(1 << 20)
    finally:
        driver.total = total
    assert driver.memory_info().free == driver.total - driver.in_use
    driver.free(handles.pop())
    assert driver.in_use == before


def test_faults_have_names():
    def kind(text):
        return type(faults.translated(RuntimeError(text), "opencl:0", "run"))

    assert kind("create_buffer failed: INVALID_BUFFER_SIZE") is OutOfMemory
    assert kind("clFinish failed: OUT_OF_RESOURCES") is OutOfMemory
    assert kind("clEnqueueNDRangeKernel failed: INVALID_WORK_GROUP_SIZE") is LaunchError
    assert kind("clFinish failed: INVALID_COMMAND_QUEUE") is DeviceLost


# ---- programs ---------------------------------------------------------------------------------------------


def test_a_kernel_that_does_not_compile_shows_source_and_log(driver):
    with pytest.raises(CompileError, match="could not compile a kernel") as caught:
        driver.session.store.program("kernel void broken(global float* a) { a[0] = nothing; }")
    assert "nothing" in caught.value.log
    assert "nothing" in caught.value.source


def test_only_a_simulator_gets_code_without_optimisation():
    def options(platform, config=0, kind=0):
        device = fake(platform, "a device", kind)
        device.platform.version = device.version = device.driver_version = "1"
        device.single_fp_config = config
        return programs.ProgramStore(cl, SimpleNamespace(context=None, device=device), None).options

    assert options("Portable Computing Language") == "-w"
    assert options("Oclgrind") == "-w -cl-opt-disable"
    exact = cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
    assert options("a vendor", exact, cl.device_type.GPU) == "-w -cl-fp32-correctly-rounded-divide-sqrt"
    assert options("a vendor", exact, cl.device_type.CPU) == "-w"


ANOTHER_PROCESS = """
import os, sys
sys.path[:0] = {path!r}
from test_opencl_driver import *
plugin.polygrad_open("opencl", 0, {{}})
driver = plugin.devices[0]
x = np.ones(100, np.float32)
handles = [upload(driver, x), upload(driver, x)]
"""


def another(doing):
    """Return a program that opens the device and does something with it."""
    return ANOTHER_PROCESS.format(path=[os.path.dirname(__file__), *sys.path]) + doing


COMPILING = """
driver.prepare_fused(scaled())(handles, (100, 0, 0), (3.0,))
assert (download(driver, handles[1], x) == 3).all()
print(builds())
"""


def test_a_second_process_compiles_nothing_and_a_damaged_binary_is_compiled_again(driver, tmp_path):
    code = another(COMPILING)
    env = {**os.environ, "POLYGRAD_CACHE_DIR": str(tmp_path)}

    def compiled():
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert compiled() == 1
    assert compiled() == 0
    for entry in (tmp_path / "opencl").iterdir():
        entry.write_bytes(entry.read_bytes()[:50])
    assert compiled() == 1


FORKED = """
prepared = driver.prepare_fused(scaled())
prepared(handles, (100, 0, 0), (3.0,))
driver.synchronize()
calls = [lambda: driver.allocate(8), lambda: driver.synchronize(), lambda: download(driver, handles[0], x),
         lambda: prepared(handles, (100, 0, 0), (3.0,)), lambda: plugin.polygrad_open("opencl", 0, {})]
child = os.fork()
if child == 0:
    caught = 0
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            caught += "spawn" in str(error)
    os._exit(0 if caught == len(calls) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="not run: needs os.fork")
def test_a_forked_child_is_told_to_spawn(driver):
    code = another(FORKED)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "0\n", done.stderr


def spawned(queue):
    plugin.polygrad_open("opencl", 0, {})
    driver = plugin.devices[0]
    x = np.arange(5, dtype=np.float32)
    queue.put(download(driver, upload(driver, x), x).tolist())


# ---- launches ---------------------------------------------------------------------------------------------


def check_case(driver, seed):
    info = driver.info_of
    case = random_case(seed, dtypes=info.dtypes, scalar_ops=info.scalar_ops, reductions=info.reductions)
    handles = [upload(driver, array) for array in case.buffers]
    driver.prepare_fused(case.kernel)(handles, case.ints, case.scalars)
    compare(case, [download(driver, h, array) for h, array in zip(handles, case.buffers, strict=True)])
    for handle in handles:
        driver.free(handle)


@pytest.mark.parametrize("seed", range(60 if THOROUGH else 6))
def test_random_kernels_agree_with_the_oracle(driver, seed):
    check_case(driver, seed)


@pytest.mark.parametrize("seed", range(50 if THOROUGH else 3))
def test_random_kernels_agree_in_the_style_of_gpus(driver, seed, monkeypatch):
    monkeypatch.setattr(driver.fused, "style", "gpu")
    monkeypatch.setattr(driver.fused, "_prepared", {})
    check_case(driver, seed)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 7), (40, 1000), (1, 200_000), (2, 65_537), (5000, 16)])
def test_softmax_of_few_and_of_many_rows(driver, rows, columns):
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    handles = [upload(driver, x), upload(driver, x)]
    driver.prepare_fused(row_softmax())(handles, (rows, columns, 0, columns, 0, columns), ())
    wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(download(driver, handles[1], x), wide / wide.sum(1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize(("rows", "columns"), [(1, 40), (3000, 24), (100_000, 3), (70, 5001)])
def test_sums_of_columns(driver, rows, columns):
    views = (View(0, "float64", (1, None)), View(1, "float64", (1, 0)))
    body = (Instr("load", "float64", (), 0), Instr("reduce", "float64", (0,), "sum"))
    kernel = Kernel(1, 1, ("float64", "float64"), views, (), body, (Store(1, 1),))
    x = np.random.default_rng(1).standard_normal((rows, columns))
    handles = [upload(driver, x), upload(driver, x[0])]
    driver.prepare_fused(kernel)(handles, (columns, rows, 0, columns, 0), ())
    np.testing.assert_allclose(download(driver, handles[1], x[0]), x.sum(0), rtol=1e-11, atol=1e-11)


def test_other_scalars_and_other_sizes_compile_nothing(driver):
    x = np.arange(1000, dtype=np.float32)
    handles = [upload(driver, x), upload(driver, x)]
    prepared = driver.prepare_fused(scaled())
    prepared(handles, (1000, 0, 0), (2.0,))
    before = builds()
    for factor, count in ((3.0, 1000), (0.5, 7), (-1.0, 512)):
        prepared(handles, (count, 0, 0), (factor,))
        np.testing.assert_array_equal(download(driver, handles[1], x)[:count], (x * np.float32(factor))[:count])
    assert builds() == before


def test_threads_launch_the_same_kernels_at_once(driver):
    softmax, double = driver.prepare_fused(row_softmax()), driver.prepare_fused(scaled())
    wrong = []

    def work(number):
        x = np.full((2, 40_000), number, np.float32)
        a, b = upload(driver, x), upload(driver, x)
        for _ in range(20):
            softmax((a, b), (2, 40_000, 0, 40_000, 0, 40_000), ())
            if not np.allclose(download(driver, b, x), 1 / 40_000):
                wrong.append(number)
            double((a, b), (80_000, 0, 0), (2.0,))
            if not (download(driver, b, x) == 2 * number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- ops --------------------------------------------------------------------------------------------------


def test_random_bits_are_philox(driver):
    like = np.zeros(11, np.uint32)
    handle = upload(driver, like)
    driver.op_random_bits([Ref(handle, 1, (10,), (1,), "uint32")], [], {"key": 0, "counter": 0})
    got = download(driver, handle, like)
    assert got[0] == 0
    assert [f"{word:08x}" for word in got[1:5]] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    driver.op_random_bits([Ref(handle, 0, (4,), (1,), "uint32")], [], {"key": 0, "counter": 1})
    np.testing.assert_array_equal(download(driver, handle, like)[:4], got[5:9])
    driver.op_random_bits([Ref(handle, 0, (4,), (1,), "uint32")], [], {"key": (1 << 64) - 1, "counter": (1 << 64) - 1})
    wrapped = philox((1 << 64) - 1, (1 << 64) - 1)
    assert download(driver, handle, like)[:4].tolist() == wrapped


def philox(counter, key):
    """Philox-4x32-10 in Python, from the paper."""
    c, k = [counter & 0xFFFFFFFF, counter >> 32, 0, 0], [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@pytest.mark.parametrize("dtype", ["float32", "int16", "float16", "bfloat16", "float64", "uint8"])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_scatter_add_accumulates_duplicates(driver, dtype, kind, monkeypatch):
    monkeypatch.setattr(driver.session, "kind", kind)
    numpy_dtype = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    rng = np.random.default_rng(3)
    index = rng.integers(-7, 7, 50)
    values = rng.integers(0, 5, (50, 3)).astype(numpy_dtype)
    out = np.full((9, 3), 77).astype(numpy_dtype)  # offset of two rows; the rest must be cleared
    handle = upload(driver, out)
    ref = Ref(handle, 6, (7, 3), (3, 1), dtype)
    driver.op_scatter_add([ref], [
        Ref(upload(driver, index), 0, (50,), (1,), "int64"), Ref(upload(driver, values), 0, (50, 3), (3, 1), dtype),
    ], {})  # fmt: skip
    want = np.zeros((7, 3))
    np.add.at(want, index, values.astype(np.float64))
    got = download(driver, handle, out)
    assert (got[:2] == 77).all()
    np.testing.assert_array_equal(got[2:], want.astype(numpy_dtype))


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("mode", ["max", "min", "multiply"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "int8", "uint16", "float16"])
def test_scatter_reduce_combines_duplicates(driver, dtype, mode, kind, monkeypatch):
    monkeypatch.setattr(driver.session, "kind", kind)
    function, start = {
        "max": (np.maximum, -np.inf), "min": (np.minimum, np.inf), "multiply": (np.multiply, 1),
    }[mode]  # fmt: skip
    if "float" not in dtype and mode != "multiply":
        start = np.iinfo(dtype).min if mode == "max" else np.iinfo(dtype).max
    rng = np.random.default_rng(4)
    index, values = rng.integers(-7, 7, 12), rng.integers(0 if "u" in dtype else -3, 4, (12, 3)).astype(dtype)
    values[0, 0] = np.nan if "float" in dtype else 3
    index[index % 7 == 6] = 0  # nothing goes to the last row
    out, want = np.full((7, 3), 77).astype(dtype), np.full((7, 3), start).astype(dtype)
    function.at(want, index, values)
    handle = upload(driver, out)
    driver.op_scatter_reduce([Ref(handle, 0, (7, 3), (3, 1), dtype)], [
        Ref(upload(driver, index), 0, (12,), (1,), "int64"), Ref(upload(driver, values), 0, (12, 3), (3, 1), dtype),
    ], {"mode": mode})  # fmt: skip
    np.testing.assert_array_equal(download(driver, handle, out), want)


def test_scatter_add_reports_a_bad_index(driver):
    index, values, out = np.array([0, 5, -9]), np.ones((3, 2), np.float32), np.zeros((3, 2), np.float32)
    status = upload(driver, np.zeros(4, np.int32))
    driver.op_scatter_add([Ref(upload(driver, out), 0, (3, 2), (2, 1), "float32")], [
        Ref(upload(driver, index), 0, (3,), (1,), "int64"), Ref(upload(driver, values), 0, (3, 2), (2, 1), "float32"),
    ], {"status": status, "tag": 42})  # fmt: skip
    assert download(driver, status, np.zeros(4, np.int32)).tolist() == [42, 0, 5, 0]


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", "int64", "bool"])
def test_copies_of_any_layout(driver, dtype):
    base = (np.arange(2 * 3 * 40) % 2 if dtype == "bool" else np.arange(2 * 3 * 40) % 100).reshape(2, 3, 40)
    stored = base.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    handle = upload(driver, stored)
    layouts = [
        stored, stored.transpose(2, 0, 1), stored[:, ::-1, ::-3], np.broadcast_to(stored[0, 0], (4, 40)),
        stored[1, 1:2, :1],
    ]  # fmt: skip
    for view in layouts:
        start = (view.__array_interface__["data"][0] - stored.__array_interface__["data"][0]) // stored.itemsize
        out = np.zeros(view.size + 1, stored.dtype)
        target = upload(driver, out)
        strides = tuple(s // stored.itemsize for s in view.strides)
        dense = tuple(s // stored.itemsize for s in np.empty(view.shape, stored.dtype).strides)
        driver.op_copy([Ref(target, 1, view.shape, dense, dtype)], [Ref(handle, start, view.shape, strides, dtype)], {})
        got = download(driver, target, out)
        np.testing.assert_array_equal(got[1:].reshape(view.shape), view)
        assert not got[0]


def matrices(dtype, shape, layout, rng):
    """An array of *shape* in C order, transposed, or with gaps and from the end."""
    numpy_dtype = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    *batch, r, c = shape
    drawn = {"c": (r, c), "t": (c, r), "gaps": (2 * r, 3 * c)}[layout]
    full = rng.integers(-9, 9, (*batch, *drawn)) if "int" in dtype else rng.standard_normal((*batch, *drawn))
    full = full.astype(numpy_dtype)
    view = {"c": full, "t": full.swapaxes(-1, -2), "gaps": full[..., ::-2, ::3]}[layout]
    start = (view.__array_interface__["data"][0] - full.__array_interface__["data"][0]) // full.itemsize
    return full, view, start


@pytest.mark.parametrize("way", ["host", "own", "own gpu"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint8"])
def test_products_of_any_layout(driver, way, dtype, monkeypatch):
    monkeypatch.setenv("POLYGRAD_OPENCL_GEMM", way.split()[0])
    monkeypatch.setenv("POLYGRAD_OPENCL_STYLE", "gpu" if "gpu" in way else "")
    rng = np.random.default_rng(0)
    sizes = [
        ((), 1, 1, 1),
        ((), 3, 5, 7),
        ((), 65, 33, 17),
        ((), 1, 100, 50),
        ((3,), 5, 9, 4),
        ((2, 1, 3), 1, 8, 4),
        ((2, 2, 2, 2), 5, 3, 4),
    ]
    if way == "own gpu" and dtype != "float32":
        sizes = sizes[2::3]  # each layout is a program of its own there
    if way == "host" and "float" in dtype:
        sizes += [((), 300, 177, 200), ((3,), 120, 161, 150)]  # these in pieces
    for number, (batch, m, n, k) in enumerate(sizes):
        layouts = [(a, b) for a in ("c", "t", "gaps") for b in ("c", "t", "gaps")]
        for a, b in layouts if not batch else layouts[number % 3 :: 3]:
            check_product(driver, dtype, (batch, m, n, k), (a, b), rng, shared=number % 3 if batch else 0)


@pytest.mark.parametrize(
    ("sizes", "dtype", "wanted"),
    [
        (((), 132, 260, 24), "float32", (128, 128, 1)),
        (((), 70, 36, 600), "float32", (64, 64, 2)),
        (((3,), 7, 140, 530), "float16", (16, 128, 2)),
        (((2,), 129, 9, 16), "float32", (128, 16, 1)),
        (((), 36, 68, 1030), "float64", (64, 64, 4)),
        (((), 130, 68, 20), "float64", (128, 64, 1)),
    ],
)
def test_products_in_tiles_of_all_sizes_and_in_parts(driver, sizes, dtype, wanted, monkeypatch):
    monkeypatch.setenv("POLYGRAD_OPENCL_GEMM", "own")
    monkeypatch.setenv("POLYGRAD_OPENCL_STYLE", "gpu")
    monkeypatch.setattr(driver.session, "compute_units", 4 if sizes[0] == () else 6)
    forms = []
    chosen = matmul.form_of
    monkeypatch.setattr(matmul, "form_of", lambda *args, **more: forms.append(chosen(*args, **more)) or forms[-1])
    rng = np.random.default_rng(1)
    for layouts in (("c", "c"), ("t", "t")):
        check_product(driver, dtype, sizes, layouts, rng)
    assert {(form.rows, form.columns, split.parts) for form, split in forms} == {wanted}
    assert {(form.a.inner, form.b.inner) for form, _ in forms} == {(True, False), (False, True)}
    assert any(form.a.vector or form.b.vector for form, _ in forms)


@pytest.mark.parametrize(
    ("sizes", "dtype", "row", "relu"),
    [
        (((), 33, 70, 24), "float32", True, True),
        (((), 36, 68, 1030), "float32", False, True),  # in parts
        (((2,), 7, 36, 530), "float16", False, False),
        (((3, 2, 2), 5, 9, 3), "float32", False, False),  # in several launches
    ],
)
def test_products_end_with_a_sum(driver, sizes, dtype, row, relu, monkeypatch):
    monkeypatch.setenv("POLYGRAD_OPENCL_STYLE", "gpu")
    monkeypatch.setattr(driver.session, "compute_units", 4)
    rng = np.random.default_rng(2)
    batch, m, n, k = sizes
    a, b = (rng.integers(-2, 3, (*batch, *shape)).astype(dtype) for shape in ((m, k), (k, n)))
    c = rng.integers(-2, 3, n + 1 if row else np.prod(batch, dtype=int) * m * n + 1).astype(dtype)
    out = np.zeros((*batch, m, n), dtype)
    strides = tuple(s // out.itemsize for s in out.strides)
    handles = [upload(driver, x) for x in (a, b, c, out)]
    refs = [
        Ref(h, 0, x.shape, tuple(s // x.itemsize for s in x.strides), dtype)
        for h, x in zip(handles[:2], (a, b), strict=True)
    ]
    refs.append(Ref(handles[2], 1, out.shape, (*(0,) * (out.ndim - 1), 1) if row else strides, dtype))
    attrs = {"activation": "relu"} if relu else {}
    driver.op_matmul_add([Ref(handles[3], 0, out.shape, strides, dtype)], refs, attrs)
    got = download(driver, handles[3], out)
    for handle in handles:
        driver.free(handle)
    want = np.matmul(a.astype(np.float64), b) + (c[1:] if row else c[1:].reshape(out.shape))
    np.testing.assert_array_equal(got, np.maximum(want, 0) if relu else want)


def test_vectors_are_read_only_where_all_are_aligned():
    layout = matmul_form.Layout(((2, 64 * 64, 64 * 64, 64 * 64),), 64, 64, 64, (64, 1), (1, 64))
    square = matmul_form.Layout((), 512, 512, 512, (512, 1), (512, 1))

    def readings(changed, offsets=(0, 0, 0)):
        form, _ = matmul_form.form_of("float32", changed, offsets, matmul_form.Size(8, 1 << 15))
        return form.a, form.b

    along, across = matmul_form.Reading(inner=True, vector=True), matmul_form.Reading(inner=False, vector=True)
    assert readings(layout) == (along, along)
    assert matmul_form.tile_of("float32", square, 1, matmul_form.Size(8, 1 << 15)) == matmul_form.LEAN
    assert matmul_form.tile_of("float32", square, 1, matmul_form.Size(8, 48 << 10)) == matmul_form.LARGE
    assert readings(layout._replace(a=(1, 64), b=(64, 1))) == (across, across)
    assert readings(layout, (0, 2, 4)) == (along._replace(vector=False), along)
    assert readings(layout._replace(a=(66, 1)))[0].vector is False
    assert readings(layout._replace(k=63))[0].vector is False
    assert readings(layout._replace(a=(1, 64), m=63))[0].vector is False
    assert readings(layout._replace(a=(64, 2)))[0].vector is False
    assert readings(layout._replace(batch=((2, 4096, 4098, 4096),)))[0].vector is False


def check_product(driver, dtype, sizes, layouts, rng, shared=0):
    batch, m, n, k = sizes
    a_full, a, a_start = matrices(dtype, (*(() if shared == 1 else batch), m, k), layouts[0], rng)
    b_full, b, b_start = matrices(dtype, (*(() if shared == 2 else batch), k, n), layouts[1], rng)
    refs, handles = [], []
    for full, view, start in ((a_full, a, a_start), (b_full, b, b_start)):
        strides = tuple(s // full.itemsize for s in view.strides)
        missing = len(batch) + 2 - view.ndim
        handles.append(upload(driver, full))
        refs.append(Ref(handles[-1], start, (*batch, *view.shape[-2:]), (*(0,) * missing, *strides), dtype))
    out = np.zeros((*batch, m, n), a.dtype)
    handles.append(upload(driver, out))
    strides = tuple(s // out.itemsize for s in out.strides)
    driver.op_matmul([Ref(handles[-1], 0, out.shape, strides, dtype)], refs, {"precision": "highest"})
    got = download(driver, handles[-1], out)
    for handle in handles:
        driver.free(handle)
    if "int" in dtype:
        np.testing.assert_array_equal(got, np.matmul(a, b))
        return
    tolerance = {"float32": 2e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 2e-2}[dtype] * k
    wide = np.matmul(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(got.astype(np.float64), wide, rtol=tolerance, atol=tolerance)


def test_small_batches_of_one_matrix_become_one_product():
    a = Ref(0, 0, (5, 2, 3), (6, 3, 1), "float32")
    b = Ref(0, 0, (5, 3, 4), (0, 4, 1), "float32")
    out = Ref(0, 0, (5, 2, 4), (8, 4, 1), "float32")
    assert matmul.layout_of(out, a, b) == matmul.Layout((), 10, 4, 3, (3, 1), (4, 1))


def test_a_spawned_process_opens_the_device_again(driver):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=spawned, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == [0.0, 1.0, 2.0, 3.0, 4.0]
    process.join()
