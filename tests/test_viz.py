"""Pictures of graphs: what is in them, and files.

Here: DOT is read back, by a small reader of the statements that the drawing writes; images are made where the program
dot is. Not here: which launches a graph takes (`test_fusion.py`), how a picture looks.
"""

import os
import re
import shutil

import numpy as np
import pytest

import polygrad as pg
from polygrad.array import drawing
from polygrad.runtime.outlining import launches

graphviz = pytest.importorskip("graphviz", reason="not run: needs graphviz")
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="not run: needs Graphviz's program dot")


class Read:
    """The boxes, fields and arrows of a drawing."""

    def __init__(self, source):
        self.boxes, self.fields, self.arrows = {}, {}, []
        field = None
        for line in source.splitlines()[4:-1]:
            text = line.strip()
            if text.startswith("subgraph"):
                field = text.split()[1]
            elif text == "}":
                field = None
            elif text.startswith("graph"):
                self.fields[field] = _facts(text)
            elif "->" in text:
                self.arrows.append(tuple(text.split(" -> ")))
            else:
                self.boxes[text.split()[0]] = {**_facts(text), "field": field}
        for ends in self.arrows:
            assert set(ends) <= set(self.boxes), ends  # no arrow makes a box of its own

    def labels(self, field=...):
        return [b["label"].split("\\n")[0] for b in self.boxes.values() if field is ... or b["field"] == field]


def _facts(text):
    return dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', text))


def mlp():
    pg.random.seed(0)
    model = pg.nn.Sequential(pg.nn.Linear(4, 8), pg.nn.GELU(), pg.nn.Linear(8, 3))
    pg.realize(list(model.parameters()))
    x = pg.zeros((16, 4), dtype=pg.float32).realize()
    return model, pg.nn.functional.cross_entropy(model(x), pg.zeros(16, dtype=pg.int64).realize())


@pytest.fixture(autouse=True)
def _on_the_host():
    with pg.device("cpu:0"):
        yield


def test_a_loss_shows_its_parameters_its_kernels_and_its_library_calls():
    model, loss = mlp()
    with pg.launch_counter() as c:
        picture = pg.viz(loss, names=model)
        count = len(launches([loss._node]))
    assert c.total == 0
    read = Read(picture.source)
    assert {"0.weight", "0.bias", "2.weight", "2.bias"} <= set(read.labels(None))
    titles = [f["label"] for f in read.fields.values()]
    assert [t.split(".")[0] for t in titles] == [str(k) for k in range(1, count + 1)]
    assert sum("matmul" in t for t in titles) == 2
    assert read.labels().count("matmul") == 2  # what is read from memory is not drawn again
    matmuls = [f for f in read.fields.values() if "matmul" in f["label"]]
    kernels = [f for f in read.fields.values() if "kernel over" in f["label"]]
    assert {f["fillcolor"] for f in matmuls} == {"white"}
    assert len({f["fillcolor"] for f in kernels}) == len(kernels) == count - 2
    assert "multiply(·, 0.5)" in read.labels()
    assert any("float32[16, 8]" in b["label"] for b in read.boxes.values())
    with pg.launch_counter() as c:
        loss.realize()
    assert c.total == count


def test_each_launch_writes_what_later_ones_read():
    model, loss = mlp()
    loss.backward()
    gradients = [p.grad for p in model.parameters()]
    read = Read(pg.viz(gradients).source)
    of = {name: box["field"] for name, box in read.boxes.items()}
    crossing = [(a, b) for a, b in read.arrows if of[a] != of[b] and of[a] is not None]
    assert crossing
    for a, b in crossing:
        assert read.boxes[a]["penwidth"] == "2.5", "a value that another launch reads is written to memory"
        if of[b] is not None:
            assert int(of[a].split("_")[1]) < int(of[b].split("_")[1])
    asked = [b for b in read.boxes.values() if b.get("peripheries") == "2"]
    assert len(asked) == len(gradients)


def test_what_two_kernels_compute_stands_in_both():
    x = pg.asarray(np.ones((64, 64))).realize()
    shared = x + 1.0
    y = pg.sum(shared * 2.0, axis=1), shared.mT @ shared
    read = Read(pg.viz(y).source)
    assert len([n for n in read.labels() if n == "add(·, 1)"]) == len(
        [f for f in launches([a._node for a in y]) if shared._node in f.members]
    )


def test_sums_in_parts_are_added_up_by_a_launch_of_their_own():
    layer = pg.nn.LayerNorm(256)
    pg.realize(list(layer.parameters()))
    x = pg.asarray(np.ones((4096, 256), np.float32)).realize().requires_grad_()
    pg.sum(layer(x) * pg.asarray(np.ones((4096, 256), np.float32)).realize()).backward()
    asked = [x.grad, layer.weight.grad, layer.bias.grad]
    read = Read(pg.viz(asked).source)
    with pg.launch_counter() as c:
        pg.realize(asked)
    assert len(read.fields) == c.total
    (adding,) = [name for name, b in read.boxes.items() if b["label"] == "add up the parts"]
    assert len([1 for a, b in read.arrows if b == adding]) == 2


def test_without_kernels_the_graph_alone_is_drawn():
    model, loss = mlp()
    read = Read(pg.viz(loss, names=model, kernels=False).source)
    assert read.fields == {}
    assert read.labels().count("matmul") == 2


def test_what_a_recording_keeps_is_drawn_after_it_was_computed():
    w = pg.asarray([1.0, 2.0]).requires_grad_()
    loss = pg.sum(pg.exp(w * 2.0))
    loss.realize()
    read = Read(pg.viz(loss, names={"w": w}).source)
    assert read.fields == {}
    assert {"w", "multiply(·, 2)", "exp"} <= set(read.labels())
    assert Read(pg.viz(pg.asarray([1.0]).realize()).source).labels() == ["array"]


def test_large_graphs_are_drawn_by_their_launches_alone_and_the_picture_says_so():
    model, loss = mlp()
    picture = pg.viz(loss, names=model, limit=10)
    assert "launches alone: their ops would be more than 10 boxes" in picture.source
    read = Read(picture.source)
    assert list(read.boxes) == [f"l{k}" for k in range(1, len(launches([loss._node])) + 1)]
    assert "of 0.weight" in read.boxes["l1"]["label"]
    assert ("l1", "l2") in read.arrows


def test_a_copy_between_devices_is_a_launch(device, other_device):
    def moved():
        return (pg.asarray([1.0, 2.0], device=device) * 2.0).to_device(other_device) + 1.0

    picture = pg.viz(moved())
    titles = [f["label"] for f in Read(picture.source).fields.values()]
    assert [t.split("\\l")[0] for t in titles] == [
        f"1. kernel over [2] on {device}",
        f"2. copy from {device} on {other_device}",
        f"3. kernel over [2] on {other_device}",
    ]
    assert f"{other_device}: 1 launch\n1. copy of float64[2] from {device}" in pg.explain(moved())


def test_complex_values_are_drawn_as_their_two_parts():
    z = pg.asarray([1.0 + 2.0j]).realize() * 2.0
    read = Read(pg.viz(z).source)
    assert len([b for b in read.boxes.values() if b.get("peripheries") == "2"]) == 2


def test_numbers_alone_and_views_are_drawn_where_they_are_asked_for():
    for x in (pg.full((3,), 2.0), pg.asarray(2.0), pg.zeros((0, 2)), pg.asarray([1.0, 2.0]).realize()[::-1]):
        assert Read(pg.viz(x).source).boxes


@needs_dot
def test_strange_names_are_only_text(tmp_path):
    w = pg.asarray([1.0]).realize()
    for name in ('quo"te', "back\\slash\\", "<b>bold</b>", "two\nlines", "ünïcode → ✓", "]; evil [", "a & b", ""):
        picture = pg.viz(w + 1.0, names={name: w})
        assert "<svg" in picture.svg()
    assert "ünïcode" in pg.viz(w + 1.0, names={"ünïcode": w}).svg()


@needs_dot
def test_files_of_every_kind_are_written(tmp_path):
    y = pg.asarray([1.0, 2.0]) * 2.0
    starts = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF", ".dot": b"digraph", ".gv": b"digraph"}
    for ending, start in starts.items():
        path = tmp_path / f"graph{ending}"
        picture = pg.viz(y, path)
        assert path.read_bytes().startswith(start)
    assert sorted(os.listdir(tmp_path)) == sorted(f"graph{ending}" for ending in starts)
    assert picture._repr_svg_().count("<svg") == 1
    assert repr(picture) == "Picture('1 op in 1 launch on cpu:0')"


def test_bad_arguments_are_refused_in_one_sentence(tmp_path):
    y = pg.asarray([1.0, 2.0]) * 2.0
    with pytest.raises(pg.StateError, match=r"^cannot draw into '.*graph.jpg': its ending says what is drawn: .svg,"):
        pg.viz(y, tmp_path / "graph.jpg")
    with pytest.raises(pg.StateError, match="^cannot draw dict: it holds no arrays$"):
        pg.viz({"a": 1})
    with pytest.raises(pg.StateError, match="^cannot take names from int: give a module, or a mapping to arrays$"):
        pg.viz(y, names=3)
    with pytest.raises(pg.StateError, match="^cannot name 'a': what it stands for is no array$"):
        pg.viz(y, names={"a": 3})
    with pytest.raises(FileNotFoundError):
        pg.viz(y, tmp_path / "nowhere" / "graph.dot")


def test_without_the_program_the_text_is_still_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    picture = pg.viz(pg.asarray([1.0, 2.0]) * 2.0)
    assert picture.source.startswith("digraph polygrad {")
    with pytest.raises(pg.StateError, match="^drawing a graph needs Graphviz's program dot, which is not on the PATH"):
        picture.svg()
    assert picture._repr_svg_() is None
    picture.save(tmp_path / "graph.dot")
    with pytest.raises(pg.StateError, match="program dot"):
        picture.save(tmp_path / "graph.svg")
    assert os.listdir(tmp_path) == ["graph.dot"]


def test_without_the_package_the_text_is_still_there(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "graphviz", None)
    picture = pg.viz(pg.asarray([1.0, 2.0]) * 2.0)
    with pytest.raises(pg.StateError, match=r"^drawing a graph needs the package graphviz: pip install 'polygrad-arr"):
        picture.svg()


def luminance(colour):
    """Return the relative luminance of a colour (Web Content Accessibility Guidelines 2.2)."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_black_text_can_be_read_on_every_fill():
    for colour in (*drawing.FILLS, drawing.MEMORY):
        assert (luminance(colour) + 0.05) / 0.05 >= 7.0, colour  # the guidelines' level AAA
