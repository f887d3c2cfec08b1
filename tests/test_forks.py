"""What a fork does to open devices: a child may not use its parent's, nor hang for a lock that it inherited.

Here: forks, on drivers of host memory. Not here: threads of one process (`test_threads.py`).
"""

import gc
import multiprocessing
import os
import threading
import warnings

import pytest

from polygrad.driver.binding import open_device
from support.toys import (
    COPY,
    Seen,
    faulty,
    launched,
)


def in_child(call):
    """Return the text that *call* gives or raises in a forked child."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads, as we do
        child = os.fork()
    if child == 0:
        try:
            said = str(call())
        except BaseException as error:  # the child must end here, whatever happens
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


FORKED = (
    "DeviceLost: device toy:0 was opened before this process was forked, and its driver cannot be used in a child; "
    'start processes with multiprocessing.get_context("spawn")'
)
forking = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="not run: needs a system that forks"
)


@forking
def test_a_device_of_the_parent_is_refused_in_a_child(registry):
    device = open_device(registry, "toy")
    launch = device.prepare(COPY)
    for call in (
        lambda: device.allocate(4),
        lambda: launch((bytearray(4), bytearray(4)), (1, 0, 0), ()),
        lambda: device.prepare(COPY),
        lambda: open_device(registry, "toy"),
        lambda: (registry.register(Seen()), device.allocate(4)),
    ):
        assert in_child(call) == FORKED
    assert in_child(lambda: (device.free(1), device.close(), gc.collect())[:2]) == "(None, None)"
    assert in_child(lambda: open_device(registry, "toy:1").name) == "toy:1"
    assert launched(device) == b"abcd"


@forking
def test_a_driver_that_survives_forks_is_used_in_a_child():
    device = open_device(faulty(fork="safe"), "toy")
    assert in_child(lambda: launched(device)) == "b'abcd'"


@forking
def test_a_lock_held_by_another_thread_at_the_fork_does_not_hang_the_child(registry):
    open_device(registry, "toy")
    held, done = threading.Event(), threading.Event()

    def holding():
        with registry.lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=holding)
    thread.start()
    held.wait()
    assert in_child(lambda: open_device(registry, "toy:1").name) == "toy:1"
    done.set()
    thread.join()
