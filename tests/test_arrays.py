"""Arrays as users hold them: views, when things are computed, values leaving the library, memory, the namespace.

Here: what holds for every array whatever op made it. Not here: ops one by one (`test_ops_on_devices.py`), indexing,
dtypes.
"""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

import polygrad as pg


def test_views_cost_no_launch_and_no_memory(device, rng):
    value = rng.standard_normal((6, 8)).astype(np.float32)
    x = pg.asarray(value).realize()
    views = [
        x.T,
        x[1:5:2],
        x[::-1],
        pg.reshape(x, (3, 16)),
        pg.broadcast_to(x[:, :1], (6, 9)),
        pg.expand_dims(x, 1),
        x[2, 3:],
        x.mT[:, 1],
    ]
    used = pg.memory_stats()["used"]
    with pg.launch_counter() as c:
        pg.realize(views)
    assert c.total == 0
    assert pg.memory_stats()["used"] == used
    expected = [
        value.T,
        value[1:5:2],
        value[::-1],
        value.reshape(3, 16),
        np.broadcast_to(value[:, :1], (6, 9)),
        value[:, None],
        value[2, 3:],
        value.T[:, 1],
    ]
    for got, want in zip(views, expected, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
        np.testing.assert_array_equal((got * 2.0).numpy(), want * 2)
        np.testing.assert_array_equal(pg.sum(got, axis=0).numpy().round(3), want.sum(0).round(3))


def test_views_of_views(device, rng):
    value = rng.standard_normal((4, 6, 5)).astype(np.float32)
    x = pg.asarray(value).realize()
    y = x[1:, ::2, ::-1].realize()
    z = pg.permute_dims(y, (2, 0, 1))[1:4].realize()
    want = np.transpose(value[1:, ::2, ::-1], (2, 0, 1))[1:4]
    np.testing.assert_array_equal(z.numpy(), want)
    np.testing.assert_array_equal(pg.reshape(z, (-1,)).numpy(), want.reshape(-1))
    np.testing.assert_array_equal(pg.reshape(z * 1.0, (3, 9)).numpy(), want.reshape(3, 9))
    np.testing.assert_allclose((z[0] @ z[1].mT).numpy(), want[0] @ want[1].T, rtol=1e-5)
    pieces = pg.unstack(x, axis=1)
    pg.realize(pieces)
    np.testing.assert_array_equal(pieces[4].numpy(), value[:, 4])


MATRICES = [(1, 1, 1), (3, 5, 7), (16, 16, 16), (17, 33, 65), (64, 1, 64), (1, 100, 1), (130, 70, 3)]


@pytest.mark.parametrize("size", MATRICES, ids=str)
def test_products_of_strided_matrices(size, device, rng):
    m, k, n = size
    a, b = (rng.integers(-8, 8, s).astype(np.float32) for s in ((m + 2, k + 3), (k + 3, n + 2)))
    x, y = pg.asarray(a).realize(), pg.asarray(b).realize()
    want = a[1 : m + 1, 2 : k + 2] @ b[2 : k + 2, 1 : n + 1]
    np.testing.assert_array_equal((x[1 : m + 1, 2 : k + 2] @ y[2 : k + 2, 1 : n + 1]).numpy(), want)
    turned = pg.asarray(np.ascontiguousarray(a[1 : m + 1, 2 : k + 2].T)).realize()
    np.testing.assert_array_equal((turned.T @ y[2 : k + 2, 1 : n + 1]).numpy(), want)
    backwards = x[1 : m + 1, 2 : k + 2][::-1] @ y[2 : k + 2, 1 : n + 1][:, ::-1]
    np.testing.assert_array_equal(backwards.numpy(), want[::-1, ::-1])


def test_integer_products_are_exact(device):
    a = np.asarray([[2**20 + 1, 3], [-5, 2**21]], np.int64)
    if "int64" not in pg.__array_namespace_info__().dtypes(device=device):
        pytest.skip(f"not run: needs int64 on {device}")
    np.testing.assert_array_equal((pg.asarray(a) @ pg.asarray(a)).numpy(), a @ a)


def test_values_are_those_of_the_moment_they_were_written(device):
    buffer = np.arange(100_000, dtype=np.float32)
    x = pg.asarray(buffer)
    y = x + 1.0
    buffer[:] = -7.0
    assert (x[3].item(), y[3].item(), y[-1].item()) == (3.0, 4.0, 100_000.0)
    a = pg.asarray([1.0, 2.0, 3.0])
    b = a * 10.0
    a[0] = 99.0
    assert (a.tolist(), b.tolist()) == ([99.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    a, b = b + 0.0, a + 0.0
    a[1:] = a[:-1]
    assert (a.tolist(), b.tolist()) == ([10.0, 10.0, 20.0], [99.0, 2.0, 3.0])
    out = a.numpy()
    out[:] = 0.0
    assert a.tolist() == [10.0, 10.0, 20.0]


def test_padding_keeps_its_value_whatever_is_fused(device):
    x = pg.asarray([1.0, 2.0])
    assert (pg.pad(pg.exp(x) - pg.exp(x) + x, ((1, 1),)) * 2.0).tolist() == [0.0, 2.0, 4.0, 0.0]
    assert pg.exp(pg.pad(x * 0.0, ((1, 0),), constant_values=0.0)).tolist() == [1.0, 1.0, 1.0]
    assert pg.max(pg.pad(x - 5.0, ((0, 1),), constant_values=-100.0)).item() == -3.0
    assert pg.sum(pg.pad(1.0 / x, ((2, 2),))).item() == 1.5


def test_what_is_realized_is_not_computed_again(device):
    x = pg.asarray(np.ones((64, 64), np.float32)).realize()
    y = pg.tanh(x @ x)
    y.realize()
    with pg.launch_counter() as c:
        y.realize()
        y.numpy()
    assert c.total == 0
    with pg.launch_counter() as c:
        (y + 1.0).realize()
    assert (c.total, c.ops) == (1, 0)


def test_eager_computes_at_once(device):
    x = pg.asarray([1.0, 2.0]).realize()
    with pg.launch_counter() as c, pg.eager():
        y = pg.exp(x)
        first = c.total
        z = y + 1.0
    assert (first, c.total) == (1, 2)
    with pg.launch_counter() as c:
        z.numpy()
    assert c.total == 0


def test_explain_says_what_would_run(device, capsys):
    x = pg.asarray(np.ones((8, 16), np.float32)).realize()
    y = pg.softmax(x)
    with pg.launch_counter() as c:
        text = pg.explain(y)
    assert c.total == 0
    assert capsys.readouterr().out == text + "\n"
    assert text.splitlines()[0] == f"{device}: 1 launch"
    assert "fused kernel over [8], reducing [16]: reads 512 bytes, writes 512 bytes" in text
    assert pg.explain(y.realize()) == "nothing to launch: the values are there"
    assert "matmul of float32[8, 16] and float32[16, 8] to float32[8, 8]" in pg.explain(
        x @ x.T
    ) or "fused kernel" in pg.explain(x @ x.T)
    pg.explain(x[pg.arange(3), pg.asarray([1, 2, 3])])


def test_explain_counts_the_copy_of_strided_memory(device):
    x = pg.asarray(np.arange(12, dtype=np.float32).reshape(3, 4)).realize()
    for strided in (x.T.realize(), x[:, 1:3].realize()):
        for make in (lambda v: pg.reshape(v, (2, -1)), lambda v: pg.reshape(v, (3, -1)) * 2, lambda v: v + 1):
            told = pg.explain(make(strided))
            before = strided._node.storage
            with pg.launch_counter() as c:
                make(strided).realize()
            strided._node.storage = before
            assert told.splitlines()[0] == f"{device}: {c.total} launch{'es' * (c.total != 1)}", told
            assert "reads 0 bytes" not in told  # a kernel that loads what it stores


def test_a_profile_shows_each_launch(device, tmp_path):
    x = pg.asarray(np.ones((8, 16), np.float32)).realize()
    with pg.profile() as p:
        (x * 2.0 + 1.0).realize()
    assert "launch" in str(p)
    p.export(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").read_text().startswith(("{", "["))


def test_values_leave_as_python_and_numpy(device, monkeypatch):
    monkeypatch.setenv("POLYGRAD_FALLBACK", "allow")  # of NumPy asking for a device's array
    x = pg.asarray([[1.5, 2.0], [3.0, 4.0]], dtype="float32")
    assert x.tolist() == [[1.5, 2.0], [3.0, 4.0]]
    array = x.numpy()
    assert (type(array), array.dtype, array.flags.writeable) == (np.ndarray, np.float32, True)
    np.testing.assert_array_equal(np.asarray(x), array)
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.array(x.T).tolist() == [[1.5, 3.0], [2.0, 4.0]]
    assert [row.tolist() for row in x] == [[1.5, 2.0], [3.0, 4.0]]
    assert len(x) == 2
    assert pg.asarray([1, 2], dtype="bfloat16").numpy().dtype == pg.bfloat16
    assert pg.asarray([True, False]).tolist() == [True, False]
    leaf = pg.asarray(2.0).requires_grad_()
    assert (leaf.item(), float(leaf), leaf.tolist()) == (2.0, 2.0, 2.0)


def test_printing(device):
    text = repr(pg.asarray([[1.0, 2.0], [3.0, 4.0]], dtype="float32"))
    assert text == f"Array([[1., 2.],\n       [3., 4.]], dtype=float32, device='{device}')"
    assert repr(pg.asarray(7, dtype="int32")) == f"Array(7, dtype=int32, device='{device}')"
    assert (
        repr(pg.asarray([1.0], dtype="float32").requires_grad_())
        == f"Array([1.], dtype=float32, device='{device}', requires_grad=True)"
    )
    assert repr(pg.asarray([0.5], dtype="bfloat16")) == f"Array([0.5], dtype=bfloat16, device='{device}')"
    assert "..." in repr(pg.zeros(5000))
    assert repr(pg.zeros((0, 3), dtype="float32")).startswith("Array([], ")


def test_memory_is_shared_when_it_is_asked_for(device):
    if not pg.asarray([1.0]).device.startswith("cpu"):
        pytest.skip("not run: needs a device in host memory")
    value = np.arange(4.0)
    x = pg.asarray(value, copy=False)
    assert np.shares_memory(np.asarray(x, copy=False), value)
    y = pg.from_dlpack(value)
    assert y.tolist() == [0.0, 1.0, 2.0, 3.0]
    exported = np.asarray(pg.ones(1000).realize(), copy=False)
    gc.collect()
    for _ in range(20):
        pg.zeros(1000).realize()
    assert exported.tolist() == [1.0] * 1000


def test_a_loop_reuses_its_memory(device):
    x = pg.asarray(np.ones(250_000, np.float32)).realize()
    for _ in range(3):
        (pg.exp(x) * 2.0).realize()
    pg.synchronize()
    before = pg.memory_stats()
    with pg.launch_counter() as c:
        for _ in range(50):
            y = pg.exp(x) * 2.0
            y.realize()
    after = pg.memory_stats()
    assert c.allocations == 0
    assert after["held"] == before["held"]
    del y
    assert pg.memory_stats()["used"] <= before["used"]


def test_empty_cache_gives_free_blocks_back(device):
    x = pg.asarray(np.ones(500_000, np.float32)).realize()
    del x
    gc.collect()
    assert pg.memory_stats()["held"] >= 2_000_000
    assert pg.empty_cache() >= 2_000_000
    assert pg.memory_stats()["held"] - pg.memory_stats()["used"] < 1_000_000


def test_a_loop_that_nobody_reads_does_not_grow(device):
    x = pg.asarray(np.ones(1000, np.float32)).realize()
    y = x
    for _ in range(20_000):
        y = y * 0.999 + 0.001
    assert pg.memory_stats()["used"] < 100_000_000
    np.testing.assert_allclose(y.numpy(), np.ones(1000), rtol=1e-4)


def test_a_wide_graph(device):
    count = 600 if device.startswith("cpu") else 120  # one kernel of so many parts
    parts = [pg.full((1,), float(k), dtype="float32") for k in range(count)]
    joined = pg.concat(parts)
    assert joined.shape == (count,)
    assert pg.sum(joined).item() == count * (count - 1) / 2


def test_import_loads_no_driver():
    drivers = "'polygrad_c', 'polygrad_o', 'pyopencl', 'cupy'"  # polygrad__mypyc is the compiled scheduler
    code = f"import sys, polygrad; print([m for m in sys.modules if m.startswith(({drivers}))])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


def test_methods_and_functions_agree(device):
    x = pg.asarray([[1.0, -2.0], [3.0, 4.0]])
    assert x.sum(axis=0).tolist() == pg.sum(x, axis=0).tolist()
    assert x.reshape(4).tolist() == x.reshape((4,)).tolist() == [1.0, -2.0, 3.0, 4.0]
    assert x.transpose().tolist() == x.T.tolist()
    assert abs(x).tolist() == x.abs().tolist()
    assert (-x).tolist() == (0.0 - x).tolist()
    assert (2.0 ** x[0]).tolist() == [2.0, 0.25]
    assert (x @ x).tolist() == x.matmul(x).tolist()
    assert (7 // pg.asarray([2, -2])).tolist() == [3, -4]
    assert (7 % pg.asarray([4, -4])).tolist() == [3, -1]
    assert divmod(7, 4) == ((7 // pg.asarray(4)).item(), (7 % pg.asarray(4)).item())


def test_the_namespace_inspects_itself(device):
    info = pg.asarray([1.0]).__array_namespace__().__array_namespace_info__()
    assert device in info.devices()
    assert info.default_device() == device
    assert {"bool", "int32", "float32"} <= set(info.dtypes(device=device))
    assert set(info.dtypes(device=device, kind="bool")) == {"bool"}
    assert pg.can_cast(pg.int8, pg.int16)
    assert not pg.can_cast(pg.float64, pg.float32)
    assert pg.finfo(pg.float32).eps == 2.0**-23
    assert pg.iinfo(pg.int8).max == 127


def test_the_default_device_of_a_block_and_of_the_process(device):
    outer = pg.get_device()
    assert outer == device
    with pg.device("cpu"):
        assert pg.get_device() == "cpu:0"
        assert pg.zeros(1).device == "cpu:0"
    assert pg.get_device() == outer
    seen = []
    thread = threading.Thread(target=lambda: seen.append(pg.get_device()))
    thread.start()
    thread.join()
    assert seen[0] in pg.list_devices()  # the process's, whatever this thread's block says
