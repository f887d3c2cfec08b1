"""safetensors files.

Here: round trips, damage, atomic writing. Not here: which arrays a model has.
"""

import json
import os
import struct

import numpy as np
import pytest

import polygrad as pg

ALL = ["bool", "bfloat16", "float16", "float32", "float64", *(f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64))]


def written(path, entries, *, cut=0, claim=0):
    header, blob = {}, b""
    for name, (code, shape, data) in entries.items():
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [len(blob), len(blob) + len(data) + claim]}
        blob += data
    text = json.dumps(header).encode()
    text += b" " * (1 - len(text) % 2)  # an odd length: the data starts at an odd address
    raw = struct.pack("<Q", len(text)) + text + blob
    path.write_bytes(raw[: len(raw) - cut])
    return path


def test_every_dtype_shape_and_the_metadata_come_back(device, tmp_path):
    have = pg.__array_namespace_info__().dtypes(device=device)
    arrays = {}
    for name in (n for n in ALL if n in have):
        arrays[name] = pg.asarray(np.arange(6).reshape(2, 3) % 2, device=device).astype(name)
        arrays[f"{name} empty"] = pg.zeros((0, 4), dtype=name)
        arrays[f"{name} scalar"] = pg.ones((), dtype=name)
    path = tmp_path / "all.safetensors"
    pg.io.save_safetensors(arrays, path, {"made by": "a test"})
    back = pg.io.load_safetensors(path)
    assert set(back) == set(arrays)
    for name, array in arrays.items():
        assert (back[name].dtype, back[name].shape, back[name].device) == (array.dtype, array.shape, device)
        assert back[name].tolist() == array.tolist()
    assert pg.io.read_metadata(path) == {"made by": "a test"}


def test_a_model_comes_back(tmp_path):
    one, two = pg.nn.Linear(3, 2), pg.nn.Linear(3, 2)
    pg.io.save_safetensors(one.state_dict(), tmp_path / "m.safetensors")
    two.load_state_dict(pg.nn.load_safetensors(tmp_path / "m.safetensors"))
    assert two.weight.tolist() == one.weight.tolist()


def test_views_and_pending_arrays_are_saved_by_value(device, tmp_path):
    x = pg.asarray([[1.0, 2.0], [3.0, 4.0]], dtype=pg.float32)
    pg.io.save_safetensors({"t": x.T, "f": x[::-1, 1], "p": x + 1.0}, tmp_path / "v.safetensors")
    back = pg.io.load_safetensors(tmp_path / "v.safetensors")
    assert back["t"].tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert back["f"].tolist() == [4.0, 2.0]
    assert back["p"].tolist() == [[2.0, 3.0], [4.0, 5.0]]


def test_bfloat16_is_exact_at_an_odd_address(device, tmp_path):
    bits = np.array([0x3F80, 0xC040, 0x7F80, 0x0001], dtype="<u2")
    path = written(tmp_path / "b.safetensors", {"c": ("BOOL", [1], b"\x01"), "b": ("BF16", [4], bits.tobytes())})
    value = pg.io.load_safetensors(path)["b"]
    assert value.dtype == pg.bfloat16
    want = (bits.astype("<u4") << 16).view("<f4")
    assert value.numpy().astype("float32").tolist() == want.tolist()


@pytest.mark.parametrize("harm", [{"cut": 5}, {"claim": 1000}, {"cut": 60}])
def test_a_damaged_file_is_refused_in_one_sentence(tmp_path, harm):
    path = written(tmp_path / "d.safetensors", {"f": ("F32", [2], bytes(8))}, **harm)
    with pytest.raises(pg.StateError) as refused:
        pg.io.load_safetensors(path)
    assert str(refused.value).startswith(f"cannot load {path}: it is damaged or no safetensors file (")
    path.write_bytes(struct.pack("<Q", 10**15) + b"{}")
    with pytest.raises(pg.StateError, match="its header is longer than the file"):
        pg.io.read_metadata(path)


def test_an_unknown_dtype_is_named(tmp_path):
    path = written(tmp_path / "u.safetensors", {"f": ("F8_E4M3", [2], bytes(2))})
    with pytest.raises(pg.StateError) as refused:
        pg.io.load_safetensors(path)
    assert str(refused.value) == f"cannot load {path}: f has dtype F8_E4M3, which polygrad has not"


def test_saving_replaces_a_file_whole_or_leaves_it(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    pg.io.save_safetensors({"x": pg.ones(2)}, path)
    before = path.read_bytes()

    def full(_descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        pg.io.save_safetensors({"x": pg.zeros(2)}, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    monkeypatch.undo()
    pg.io.save_safetensors({"x": pg.zeros(2)}, path)
    assert pg.io.load_safetensors(path)["x"].tolist() == [0.0, 0.0]


def test_names_and_metadata_are_text(tmp_path):
    with pytest.raises(pg.StateError, match="names and metadata of a safetensors file are text"):
        pg.io.save_safetensors({"x": pg.ones(1)}, tmp_path / "x", {"a": 1})
    with pytest.raises(FileNotFoundError):
        pg.io.load_safetensors(tmp_path / "nothing")


def test_without_the_package_the_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with pytest.raises(pg.StateError) as refused:
        pg.io.load_safetensors(tmp_path / "x")
    assert str(refused.value) == "safetensors files need the package safetensors: pip install 'polygrad-array[io]'"
