"""Memory shared with other libraries: DLPack both ways, the buffer protocol, NumPy's views.

Here: what is shared without a copy (by address), what is copied, what is refused; what a driver is asked for, by one
that remembers it. Not here: GPUs (drivers/cuda/tests).
"""

import dataclasses
import gc

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver import DriverInfo, Features
from polygrad.driver.loader import REGISTRY
from polygrad_cpu.driver import CpuDriver

HOST = (1, 0)
DTYPES = ("bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "complex128")


def address(array) -> int:
    return array.__array_interface__["data"][0]


def sample(dtype: str, device: str):
    return pg.asarray(np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype), device=device)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_sees_the_arrays_own_memory(dtype: str) -> None:
    x = sample(dtype, "cpu:0")
    first, second = np.from_dlpack(x), np.asarray(x, copy=False)
    assert address(first) == address(second)
    for seen in (first, second):
        assert not seen.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            seen.flags.writeable = True
        np.testing.assert_array_equal(seen, x.numpy())
    assert address(np.from_dlpack(x, copy=True)) != address(first)
    # from Python 3.12 on NumPy asks the buffer protocol first, and refuses in its own words
    with pytest.raises(ValueError, match=f"cannot view {dtype} as int16 without a copy|Unable to avoid copy"):
        np.asarray(x, dtype="int16", copy=False)


def test_the_buffer_protocol_sees_memory_that_it_may_not_write() -> None:
    x = sample("float32", "cpu:0")
    assert address(np.asarray(x.__buffer__(0))) == address(np.asarray(x, copy=False))
    with pytest.raises(BufferError, match="read-only"):
        x.__buffer__(1)


def test_part_of_an_array_is_seen_where_it_lies() -> None:
    x = sample("float64", "cpu:0").realize()
    part = np.asarray(x[1:, 1:], copy=False)
    np.testing.assert_array_equal(part, [[4.0, 5.0]])
    assert address(part) == address(np.asarray(x, copy=False)) + 4 * 8


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_torch_sees_the_arrays_own_memory(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    x = sample(dtype, "cpu:0")
    assert torch.from_dlpack(x).data_ptr() == address(np.asarray(x, copy=False))


def test_a_strided_array_is_shared_as_it_lies() -> None:
    x = sample("float64", "cpu:0").realize()
    turned = x.T.realize()
    assert np.from_dlpack(turned).strides == (8, 24)
    assert address(np.from_dlpack(turned)) == address(np.from_dlpack(x))


def test_complex_values_stay_right_after_they_are_laid_out_for_others() -> None:
    x = pg.asarray([1 + 2j, 3 - 1j])
    before = (x * x).numpy()
    np.from_dlpack(x)
    np.testing.assert_array_equal((x * x).numpy(), before)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("leave", [np.from_dlpack, lambda x: np.asarray(x, copy=False)])
def test_what_is_exported_outlives_the_array(leave, dtype: str) -> None:
    x = sample(dtype, "cpu:0")
    seen = leave(x)
    expected = x.numpy()
    del x
    gc.collect()
    others = [pg.full(6, 9.0, dtype="float64").realize() for _ in range(20)]
    np.testing.assert_array_equal(seen, expected)
    del others


@pytest.mark.parametrize("dtype", ["int32", "float32", "complex64"])
def test_a_device_takes_what_it_exports(device: str, dtype: str) -> None:
    x = sample(dtype, device)
    expected = x.numpy()
    try:
        y = pg.from_dlpack(x[1:])
    except BufferError:
        pytest.skip(f"not run: needs a driver that exports parts of {device}'s memory")
    assert y.device == device
    del x
    gc.collect()
    others = [pg.full(6, 9.0, dtype="float32", device=device).realize() for _ in range(20)]
    np.testing.assert_array_equal(y.numpy(), expected[1:])
    del others


def test_an_old_consumer_gets_a_copy_unless_it_forbids_that() -> None:
    x = sample("float32", "cpu:0")
    own = address(np.asarray(x, copy=False))

    class Old:
        def __init__(self, **keywords) -> None:
            self.keywords = keywords

        def __dlpack_device__(self) -> tuple[int, int]:
            return x.__dlpack_device__()

        def __dlpack__(self, **_):
            return x.__dlpack__(**self.keywords)

    assert address(np.from_dlpack(Old())) != own
    assert address(np.from_dlpack(Old(copy=False))) == own


def test_another_device_gives_the_host_a_copy_only_when_asked(device: str) -> None:
    x = sample("float32", device)
    if x.__dlpack_device__() == HOST:
        pytest.skip("needs a device whose memory is not the host's")
    with pytest.raises(BufferError, match="its memory lies elsewhere"):
        x.__dlpack__(dl_device=HOST, copy=False)
    with pytest.raises(ValueError, match="its memory is not the host's"):
        np.asarray(x, copy=False)
    assert "dltensor" in repr(x.__dlpack__(dl_device=HOST))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_device_exports_its_memory(device: str, dtype: str) -> None:
    x = sample(dtype, device)
    kind, number = x.__dlpack_device__()
    assert (kind, number) == {"cpu": HOST, "opencl": (4, int(device[-1])), "cuda": (2, int(device[-1]))}[device[:-2]]
    for keywords in ({}, {"copy": True}, {"max_version": (1, 0)}):
        assert "dltensor" in repr(x.__dlpack__(**keywords))


def test_a_foreign_device_is_refused() -> None:
    with pytest.raises(BufferError, match="only the host"):
        sample("float32", "cpu:0").__dlpack__(dl_device=(8, 0))


def test_a_stream_of_the_host_is_refused() -> None:
    with pytest.raises(BufferError, match="stream must be None"):
        sample("float32", "cpu:0").__dlpack__(stream=1)


def test_asking_numpy_for_a_device_array_is_told_once_and_can_be_forbidden(device: str, monkeypatch) -> None:
    from polygrad.runtime import lacking

    x = sample("float32", device)
    if x.__dlpack_device__() == HOST:
        pytest.skip("needs a device whose memory is not the host's")
    monkeypatch.setattr(lacking, "_warned", set())
    with pytest.warns(pg.FallbackWarning, match=r"\.numpy\(\) says so"):
        np.asarray(x)
    np.asarray(x)  # told once
    monkeypatch.setenv("POLYGRAD_FALLBACK", "error")
    with pytest.raises(TypeError, match="forbids"):
        np.asarray(x)
    monkeypatch.setenv("POLYGRAD_FALLBACK", "silent")
    with pytest.raises(ValueError, match="one of warn, error, allow"):
        np.asarray(x)


@pytest.mark.parametrize("leave", [np.asarray, np.from_dlpack, np.array])
def test_an_array_that_needs_gradients_does_not_leave(leave) -> None:
    with pytest.raises(pg.GradError, match=r"\.detach\(\)"):
        leave(pg.ones(3).requires_grad_())


# ---- what a driver is asked for --------------------------------------------------------------------------------------


class Shared:
    """What the driver below exports: a reference, and what keeps its memory alive; its own capsule too."""

    def __init__(self, ref, owner) -> None:
        self.ref, self.owner = ref, owner

    def __dlpack_device__(self) -> tuple[int, int]:
        return 12, 0  # kDLExtDev

    def __dlpack__(self, **_):
        return self


class Apart(CpuDriver):
    """A device whose memory is not the host's, and which takes what it exports, wherever in a block it begins."""

    info = DriverInfo("apart", summary="memory apart")

    def open(self, ordinal, options):
        return dataclasses.replace(super().open(ordinal, options), driver="apart", features=Features())

    def view(self, handle, nbytes):
        return None

    def export(self, ref, owner):
        return Shared(ref, owner)

    def import_(self, producer):
        found = producer.__dlpack__()
        return (found.ref, found) if isinstance(found, Shared) else None


@pytest.fixture
def apart():
    pg.register_driver(Apart)
    try:
        with pg.device("apart:0") as name:
            yield name
    finally:
        gc.collect()
        REGISTRY.unregister(REGISTRY.loaded["apart"].plugin)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_device_exports_a_copy_when_one_is_asked_for(apart, dtype: str) -> None:
    x = sample(dtype, apart)
    own, copy = x.__dlpack__(), x.__dlpack__(copy=True)
    assert x.__dlpack__(copy=False).ref.handle is x.__dlpack__().ref.handle is own.ref.handle
    assert copy.ref.handle is not own.ref.handle
    assert pg.from_dlpack(copy).tolist() == x.tolist()
    x[0, 0] = 9.0
    assert pg.from_dlpack(copy).tolist() == sample(dtype, "cpu:0").tolist()


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_memory_that_a_device_exported_is_not_given_to_others(apart, dtype: str) -> None:
    x = sample(dtype, apart)
    shared = x.__dlpack__()
    del x
    gc.collect()
    others = [sample(dtype, apart) for _ in range(20)]
    handles = [y.__dlpack__().ref.handle for y in others]
    assert not any(handle is shared.ref.handle for handle in handles)
    used = pg.memory_stats(apart)["used"]
    del shared
    gc.collect()
    assert pg.memory_stats(apart)["used"] < used, "it is never given back"


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_what_a_device_takes_may_begin_anywhere_in_a_block(apart, dtype: str) -> None:
    whole = pg.asarray(np.arange(24).reshape(6, 4).astype(dtype) * (1 + (2j if dtype[0] == "c" else 0)), device=apart)
    whole.__dlpack__()  # from now on complex numbers lie as others lay them out, and so do parts of the array
    for part, offset in ((whole[2:, 1:], 9), (whole.T[1:, ::2], 1), (whole[5, 3], 23), (whole[::-1], 20)):
        shared = part.__dlpack__()
        assert shared.ref.offset == offset
        taken = pg.from_dlpack(shared)
        assert (taken.device, taken.dtype, taken.shape) == (apart, whole.dtype, part.shape)
        np.testing.assert_array_equal(taken.numpy(), part.numpy())
        np.testing.assert_array_equal((taken * 2).numpy(), part.numpy() * 2)
