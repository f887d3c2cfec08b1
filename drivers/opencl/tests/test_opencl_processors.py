"""A PoCL that does not know the processor is told an older one, in memory laid out like its device.

Here: which name, where it is written, and what is said if it cannot be. Not here: PoCL itself, which every other test
uses: on a processor that its LLVM does not know, all of them fail without this.
"""

import ctypes
from types import SimpleNamespace

import pytest

from polygrad_opencl import devices, processors

TRIPLE = b"x86_64-unknown-linux-gnu"
NUMBERS = (0, 7, 1 << 62, 4097)  # words of a device that point nowhere


def a_device(*texts, platform="Portable Computing Language"):
    """A device of PoCL whose memory holds numbers and pointers to *texts*; and that memory, as words."""
    kept = [ctypes.create_string_buffer(text) for text in texts]
    pointers = [ctypes.addressof(text) for text in kept]
    words = (ctypes.c_void_p * (processors.SEARCHED // 8))(*NUMBERS, *pointers)
    device = SimpleNamespace(
        name="pthread-a processor", int_ptr=ctypes.addressof(words), platform=SimpleNamespace(name=platform), kept=kept,
        version="OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-generic",
    )  # fmt: skip
    return device, words


@pytest.mark.parametrize(
    ("features", "name"), [(processors.SKYLAKE, b"skylake-avx512"), (processors.HASWELL, b"haswell")]
)
def test_the_name_is_written_after_the_target_triple(features, name):
    device, words = a_device(b"generic", TRIPLE, b"generic", b"pthread")
    before = list(words)
    assert processors.is_unknown(device)
    assert processors.make_known(device, set(features)) is None
    changed = [n for n, (old, new) in enumerate(zip(before, words, strict=True)) if old != new]
    assert changed == [len(NUMBERS) + 2]
    assert ctypes.string_at(words[changed[0]]) == name
    told = list(words)
    assert processors.make_known(device, set(features)) is None  # again: it has a name by now
    assert list(words) == told


@pytest.mark.parametrize("texts", [(b"generic",), (TRIPLE, b"znver3"), (TRIPLE, b"generic", TRIPLE, b"generic")])
def test_memory_of_another_layout_is_left_alone(texts):
    device, words = a_device(*texts)
    before = list(words)
    assert "nor can it be told" in processors.make_known(device, set(processors.HASWELL))
    assert list(words) == before


def test_a_processor_like_no_older_one_gets_no_name():
    device, words = a_device(TRIPLE, b"generic")
    before = list(words)
    for features in ({"sse4_2"}, {*processors.HASWELL, "avx512f"}):  # functions for AVX-512 would be called
        assert "intel-opencl-rt" in processors.make_known(device, features)
    assert list(words) == before


def test_only_pocl_on_a_processor_without_a_name_is_told_one():
    device, _ = a_device(TRIPLE, b"generic")
    device.version = device.version.replace("generic", "znver3")
    assert not processors.is_unknown(device)
    other, _ = a_device(TRIPLE, b"generic", platform="Somebody's OpenCL")
    assert not processors.is_unknown(other)


def test_a_device_that_cannot_compile_is_left_out_and_the_reason_is_told(monkeypatch):
    device, _ = a_device(b"nothing")
    monkeypatch.setattr(devices, "_left_out", [])
    assert not devices._compiles(device)
    monkeypatch.setattr(devices, "list_devices", list)
    with pytest.raises(devices.DriverUnavailable, match="does not know this processor"):
        devices.find_device(0)


def test_features_are_read_as_linux_tells_them(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert processors.host_features(info) == {"fpu", "avx2", "fma"}
    assert processors.host_features(tmp_path / "missing") == set()
