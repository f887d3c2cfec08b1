"""Several devices and several threads: transfers with gradients, shared pending arrays.

Here: what happens between devices and between threads. Not here: drivers, their locks.
"""

import multiprocessing
import subprocess
import sys
import threading

import numpy as np
import pytest

import polygrad as pg


def test_arrays_move_between_devices_with_their_gradients(device, other_device):
    x = pg.asarray([1.0, 2.0, 3.0], dtype="float32").requires_grad_()
    y = (x * 2.0).to_device(other_device)
    assert (y.device, y.requires_grad) == (other_device, True)
    assert x.to(device) is x
    z = pg.sum(y * pg.asarray([1.0, 10.0, 100.0], dtype="float32", device=other_device))
    z.backward()
    assert (x.grad.device, x.grad.tolist()) == (device, [2.0, 20.0, 200.0])
    w = pg.asarray([1.0], dtype="float32", device=other_device).requires_grad_()
    pg.sum(w.to_device(device) * x.detach()).backward()
    assert (w.grad.device, w.grad.tolist()) == (other_device, [6.0])
    assert pg.grad(lambda v: pg.sum(v.to_device(other_device) ** 2).to_device(device))(x.detach()).tolist() == [
        2.0,
        4.0,
        6.0,
    ]


def test_views_and_other_dtypes_move(device, other_device):
    value = np.arange(12).reshape(3, 4)
    for dtype in ("int32", "bool", "float16", "bfloat16", "uint8"):
        x = pg.asarray(value % 2 == 0 if dtype == "bool" else value, dtype=dtype)
        moved = x.T[1:].to_device(other_device)
        np.testing.assert_array_equal(moved.numpy(), x.numpy().T[1:])
    assert pg.zeros((0, 2)).to_device(other_device).shape == (0, 2)


def test_the_same_numbers_on_both_devices(device, other_device):
    for draw in (pg.random.uniform, pg.random.normal):
        values = []
        for name in (device, other_device):
            pg.random.seed(11)
            values.append(draw((1000,), dtype="float32", device=name).numpy())
        np.testing.assert_array_equal(*values)


def run_threads(count, work):
    errors = []

    def guarded(k):
        try:
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(k,)) for k in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads)
    if errors:
        raise errors[0]


def test_many_threads_read_the_same_pending_arrays(device, rng):
    value = rng.standard_normal((50, 40)).astype(np.float32)
    x = pg.asarray(value)
    shared = [pg.exp(x * 0.1) @ pg.tanh(x.T) + float(k) for k in range(6)]
    total = pg.sum(pg.stack(shared))
    want = np.exp(value.astype(float) * 0.1) @ np.tanh(value.astype(float).T)
    start = threading.Barrier(8)

    def work(k):
        with pg.device(device):
            start.wait(20)
            for j in range(6):
                got = shared[(k + j) % 6]
                np.testing.assert_allclose(got.numpy(), want + (k + j) % 6, rtol=1e-4, atol=1e-4)
            assert total.item() == pytest.approx(6 * want.sum() + 15 * want.size, rel=1e-3)

    run_threads(8, work)


def test_many_threads_train_each_its_own(device):
    def work(k):
        with pg.device(device):
            w = pg.full((20,), float(k + 1), dtype="float32").requires_grad_()
            for step in range(15):
                loss = pg.sum((w - 1.0) ** 2)
                loss.backward()
                w = (w.detach() - 0.1 * w.grad).requires_grad_()
                assert loss.item() == pytest.approx(20 * (k * 0.8**step) ** 2, rel=1e-3, abs=1e-6)

    run_threads(8, work)


def test_many_threads_share_one_leaf(device):
    x = pg.asarray([1.0, 2.0], dtype="float32")

    def work(k):
        with pg.device(device):
            for _ in range(10):
                assert pg.grad(lambda v: pg.sum(v * v) * float(k))(x).tolist() == [2.0 * k, 4.0 * k]

    run_threads(8, work)
    assert not x.requires_grad


def test_a_device_has_one_life_whatever_it_is_called(device):
    driver = device.partition(":")[0]
    if not device.endswith(":0"):
        pytest.skip("not run: needs the first device of a driver")
    x, y = pg.ones(3, dtype="float32", device=driver), pg.ones(3, dtype="float32", device=device.upper())
    assert x.device == y.device == device
    assert (x + y).tolist() == [2.0] * 3
    assert x.to_device(driver) is x
    used = pg.memory_stats(driver)["used"]
    z = pg.ones(1000, dtype="float32", device=device).realize()
    assert pg.memory_stats(device.upper())["used"] > used
    del z


FORKING = """
import os, sys, threading, time, polygrad as pg

def work():
    x = pg.ones((300, 300), dtype="float32")
    return float(pg.sum(x @ x * 2.0))

def busily():
    while not done.is_set():
        work()

pg.set_device("cpu:0")
done = threading.Event()
threads = [threading.Thread(target=busily) for _ in range(2)]
for thread in threads:
    thread.start()
ends = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        os._exit(work() != 54e6)
    for _ in range(200):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        time.sleep(0.05)
    else:
        os.kill(child, 9)
        status = "hangs"
        os.waitpid(child, 0)
    ends.append(status)
    if status:
        break
done.set()
print(ends)
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="not run: needs a system that forks")
def test_a_child_that_is_forked_while_other_threads_compute_does_not_hang():
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING]  # newer Pythons warn of threads
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout == f"{[0] * 8}\n", run.stderr
