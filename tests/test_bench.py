"""Tests of the benchmark: that it measures the same work everywhere, and outlives contenders that fail.

Here: `python -m polygrad bench` on tiny work, its judgements, its refusals.
Not here: how fast anything is, which no test asserts.
"""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import polygrad as pg
from polygrad.bench import judging, picture, records, rounds, selection, tables, work
from polygrad.bench.inputs import agree, digest
from polygrad.bench.peers import OWN, PEERS, Peer, numpy_arrays, polygrad_arrays
from polygrad.bench.process import Contender, Process
from polygrad.bench.rounds import Pace, Row
from polygrad.cli import main

TINY = work.table("tiny")
ANSWERS = """
    import os
    import time

    class Adapter:
        version = "1"

        def __init__(self, mode, device, threads):
            self.mode = mode

        def build(self, work):
            if self.mode == "absent":
                return None
            if self.mode == "raises":
                raise RuntimeError("no such kernel")
            if self.mode == "crashes" and work.name == "exp":
                os._exit(3)
            if self.mode == "hangs" and work.name == "exp":
                time.sleep(60)
            from polygrad.bench.peers.numpy_arrays import Adapter
            step = Adapter("plain", "cpu", 1).build(work)
            return (lambda: [2 * r for r in step()]) if self.mode == "wrong" else step

        def wait(self, results):
            print("a library may print")

        def numbers(self, result):
            return result

        def let_go(self):
            pass

        def peak(self, *, reset=False):
            return 12345
"""


@pytest.fixture(autouse=True)
def _same_device():
    yield
    pg.set_device(os.environ.get("POLYGRAD_DEVICE", "cpu:0"))


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Return a function that adds a library of some behaviour to the peers."""
    (tmp_path / "bench_library.py").write_text(textwrap.dedent(ANSWERS))
    monkeypatch.syspath_prepend(tmp_path)

    def add(mode, usual=False):
        monkeypatch.setitem(PEERS, mode, Peer(mode, "bench_library", mode, "numpy", usual=usual))
        return mode

    return add


def bench(*words):
    return main(["bench", "--size", "tiny", "--cpus", "1", *words])


# ---- the work ---------------------------------------------------------------------------------------


def test_every_size_has_the_same_work():
    names = [[n for n, w in work.table(size).items() if w.group != "graph"] for size in work.SIZES]
    assert names[0] == names[1] == names[2]
    assert {w.maths for w in TINY.values()} <= set(work.MATHS)


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [
        ("kernel_rmsnorm", 0.156), ("kernel_swiglu", 0.250), ("kernel_causal_softmax", 1.249),
        ("kernel_cross_entropy", 0.732), ("kernel_adamw", 0.109),
    ],
)  # fmt: skip
def test_least_traffic_is_that_of_the_floors_counted_by_hand(name, milliseconds):
    ceiling = judging.Ceiling(copy=4.3e12, matmul=50e12)
    assert judging.floor(work.table("paper")[name], ceiling) * 1e3 == pytest.approx(milliseconds, rel=5e-3)


def test_arithmetic_is_that_of_the_products():
    paper = work.table("paper")
    assert paper["matmul_fwd"].flops == 2 * 1024**3
    assert paper["bmm_bwd"].flops == 3 * 2 * 64 * 128**3
    assert paper["mlp_small_batch"].flops == 6 * 128 * (784 * 512 + 512 * 256 + 256 * 10)


def test_a_digest_tells_results_apart():
    x = np.random.default_rng(0).standard_normal((50, 200)).astype(np.float32)
    same = digest([x])
    assert agree(same, digest([x * np.float32(1 + 1e-5)]))
    swapped = x.copy()
    swapped[:25], swapped[25:] = x[25:], x[:25]
    for other in (-x, x.T.copy(), x[::-1], swapped, x * 1.01, np.where(x > 2.5, 0, x), x * np.nan):
        assert not agree(same, digest([other]))
    assert not agree(same, digest([x, x]))


@pytest.mark.parametrize("mode", ["plain", "compile"])
@pytest.mark.parametrize(
    "group", ["overhead", "elementwise", "reductions", "norms", "matmul", "optimiser", "indexing", "kernels"]
)
def test_polygrad_computes_what_numpy_does_by_hand(group, mode):
    own, other = (polygrad_arrays.Adapter(mode, "cpu:0", 1), numpy_arrays.Adapter("block", "cpu", 2))
    compared = 0
    for piece in TINY.values():
        theirs = other.build(piece) if piece.group == group else None
        if theirs is None:
            continue
        step = own.build(piece)
        for _ in range(3):  # the third call of what is compiled is a replay
            found, wanted = step(), theirs()
            assert agree(digest([own.numbers(r) for r in found]), digest(wanted)), piece.name
        compared += 1
    assert compared


@pytest.mark.parametrize(
    "group", ["reductions", "attention", "training", "convolution", "indexing", "kernels", "language"]
)
def test_polygrad_computes_what_torch_does(group):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("not run: needs torch")
    from polygrad.bench.foreign import torch_tensors

    own, other = polygrad_arrays.Adapter("plain", "cpu:0", 1), torch_tensors.Adapter("eager", "cpu", 1)
    for piece in TINY.values():
        if piece.group == group:
            step, theirs = own.build(piece), other.build(piece)
            for _ in range(2):  # after a step of an optimiser the loss is another
                found, wanted = step(), theirs()
                mine = digest([own.numbers(r) for r in found])
                assert agree(mine, digest([other.numbers(r) for r in wanted])), piece.name


def test_graphs_have_as_many_nodes_as_they_say():
    x = pg.ones((16, 16), dtype=pg.float32)
    for nodes in (100, 3000):
        graph = polygrad_arrays.graph_cost.__globals__["network"](x, x, nodes)
        seen, stack = set(), [graph._node]
        while stack:
            node = stack.pop()
            if id(node) not in seen and node.storage is None:
                seen.add(id(node))
                stack += node.parents
        assert nodes <= len(seen) <= 1.2 * nodes
    for maths in ("record", "schedule", "differentiate"):
        assert polygrad_arrays.graph_cost(TINY[f"{maths}_100"])() > 0


# ---- a run ------------------------------------------------------------------------------------------


def test_a_run_measures_prints_and_writes(tmp_path, capsys):
    target, drawn = tmp_path / "run.json", tmp_path / "run.svg"
    where = ["--json", str(target), "--picture", str(drawn), "--history", str(tmp_path / "history.jsonl")]
    chosen = ["--work", "ew12_bwd", "matmul_fwd", "--group", "graph", "--peer", "numpy.block,cupy"]
    absent = "cupy" if importlib.util.find_spec("cupy") is None else None
    assert bench(*chosen, *where) == 0
    said = capsys.readouterr().out
    assert "polygrad.compile cpu:0" in said
    assert "us/node" in said
    assert "Ceiling of cpu: copy" in said
    assert absent is None or "Not installed, so not measured: cupy." in said
    run = json.loads(target.read_text())
    assert (run["format"], run["version"], run["references"]) == ("polygrad-bench", 1, {"cpu": "numpy.block"})
    rows = {(r["work"], r["contender"]): r for r in run["rows"]}
    assert len(rows) == 2 * 3 + 3
    for row in rows.values():
        assert row["median"] > 0
        assert row["agrees"] in (True, None)
    assert all(rows[name, "numpy.block"]["ratio"] == 1.0 for name in ("ew12_bwd", "matmul_fwd"))
    assert rows["record_100", "polygrad cpu:0"]["ratio"] is None
    assert {mean["group"] for mean in run["means"]} == {"elementwise", "matmul", judging.OVERALL}
    assert drawn.read_text().lstrip().startswith("<?xml")
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 1


def test_contenders_that_fail_leave_the_rest_alone(library, tmp_path, capsys):
    names = [library(mode) for mode in ("crashes", "hangs", "raises", "absent", "wrong")]
    target = tmp_path / "run.json"
    asked = ["--peer", f"numpy,{','.join(names)}", "--work", "exp,tanh", "--no-compile", "--limit", "3"]
    assert bench(*asked, "--json", str(target)) == 1
    rows = {(r["work"], r["contender"]): r for r in json.loads(target.read_text())["rows"]}
    assert rows["exp", "crashes"]["error"].startswith("its process ended with code 3")
    assert rows["exp", "hangs"]["error"] == "no answer in 3 s"
    assert rows["exp", "raises"]["error"] == "RuntimeError: no such kernel"
    for name in ("crashes", "hangs"):
        assert rows["tanh", name]["error"] is None  # in a new process
        assert rows["tanh", name]["memory"] == 12345
    assert ("exp", "absent") not in rows
    for name in ("exp", "tanh"):
        assert not rows[name, "wrong"]["agrees"]
        assert not rows[name, "wrong"]["fastest"]
        assert rows[name, "polygrad cpu:0"]["agrees"]
    said = capsys.readouterr().out
    assert "RESULTS DIFFER" in said
    assert "Results differ from what most libraries computed: exp of wrong, tanh of wrong." in said
    assert "failed: no answer in 3 s" in said


def test_ctrl_c_prints_what_is_there(monkeypatch, tmp_path, capsys):
    measure, pieces = rounds.measure, []

    def interrupted(piece, *rest):
        pieces.append(piece.name)
        if len(pieces) == 2:
            raise KeyboardInterrupt
        return measure(piece, *rest)

    monkeypatch.setattr(rounds, "measure", interrupted)
    target = tmp_path / "run.json"
    assert bench("--peer", "none", "--no-compile", "--work", "exp", "tanh", "log", "--json", str(target)) == 130
    said = capsys.readouterr().out
    assert "Interrupted after 1 of 3 pieces of work." in said
    run = json.loads(target.read_text())
    assert run["interrupted"]
    assert [row["work"] for row in run["rows"]] == ["exp"]


def test_the_list_names_work_and_peers(capsys):
    assert bench("--list", "--group", "norms") == 0
    said = capsys.readouterr().out
    assert "rmsnorm_bwd" in said
    assert "softmax" not in said
    assert all(name in said for name in PEERS)


def test_json_may_go_to_the_standard_output():
    words = ["bench", "--size", "tiny", "--work", "exp", "--peer", "none", "--no-compile", "--json", "-"]
    run = subprocess.run([sys.executable, "-m", "polygrad", *words], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)["rows"][0]["work"] == "exp"
    assert "Results" in run.stderr


# ---- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--peer", "toch"], "there is no peer 'toch'; did you mean 'torch'?"),
        (["--work", "sofmax_fwd"], "there is no work 'sofmax_fwd'; did you mean 'softmax_fwd' or"),
        (["--work", "nothing*"], "there is no work 'nothing*'; there are add1_fwd, "),
        (["--group", "norm"], "there is no group 'norm'; did you mean 'norms'?"),
        (["--device", "cpu:7"], "there is no device 'cpu:7'; did you mean 'cpu:0'?"),
        (["--device", "no such"], "'no such' is not a device name; write the name of a driver"),
        (["--peer", "none", "--reference", "torch.pol"], "there is no contender 'torch.pol'; there are polygrad cpu:0"),
        (["--picture", "ratios.jpg"], "cannot draw ratios.jpg: pictures end in .svg, .png, .pdf"),
        (["--json", "no/such/a.json"], "cannot write no/such/a.json: there is no folder no/such"),
    ],
)  # fmt: skip
def test_a_name_that_stands_for_nothing_is_refused_before_anything_is_measured(words, sentence, capsys):
    assert bench(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("polygrad bench: ")
    assert sentence in said
    assert "Measuring" not in said


def test_more_cores_than_there_are_are_refused(capsys):
    assert main(["bench", "--size", "tiny", "--cpus", "100000"]) == 2
    assert "cannot use 100000 cores: this process may use " in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--time", "-1"], ["--time", "nan"], ["--size", "huge"]])
def test_numbers_that_make_no_sense_are_refused(words):
    with pytest.raises(SystemExit) as refused:
        bench(*words)
    assert refused.value.code == 2


def test_a_file_that_is_no_history_is_refused(tmp_path, capsys):
    (tmp_path / "other").write_text("hello\n")
    assert bench("--history", str(tmp_path / "other")) == 2
    assert "is no history of `polygrad bench`: line 1 is not a run" in capsys.readouterr().err


# ---- judgements -------------------------------------------------------------------------------------


def row(name, seconds, results=(1.0,), piece="exp", **more):
    peer = {**OWN, **PEERS}[name.split()[0]]
    device = name.partition(" ")[2] or "cpu"
    found = Row(work.table("paper")[piece], Contender(peer, device, "cpu"), rounds=[seconds], foreign=[0.0], **more)
    found.digest = digest([np.asarray(results)]) * 2
    return found


def judged(rows, reference="torch.pool"):
    judging.judge_work(rows, {"cpu": reference}, {"cpu": judging.Ceiling(copy=1e10)})
    return rows


def test_the_fastest_of_those_that_agree_wins():
    a, b, c = judged([row("polygrad cpu:0", 0.02), row("torch.pool", 0.04), row("jax.jit", 0.01, (2.0,))])
    assert [r.agrees for r in (a, b, c)] == [True, True, False]
    assert [r.winner for r in (a, b, c)] == [True, False, False]
    assert (a.ratio, c.ratio) == (0.5, 0.25)
    assert a.share == pytest.approx(2 * 4 * 2**24 / 1e10 / 0.02)


def test_a_library_has_one_vote_however_often_it_takes_part():
    own = [row(f"polygrad {d}", 0.02, (2.0,)) for d in ("cpu:0", "opencl:0")]
    rows = judged([*own, row("torch.pool", 0.04), row("jax.jit", 0.01)])
    assert [r.agrees for r in rows] == [False, False, True, True]
    rows = judged([*[row(f"polygrad {d}", 0.02, (2.0,)) for d in ("cpu:0", "opencl:0")], row("torch.pool", 0.04)])
    assert [r.agrees for r in rows] == [False, False, True]  # one against one: the reference is believed


def test_a_call_that_computes_something_else_than_the_first_did_is_marked():
    found = row("polygrad.compile cpu:0", 0.02)
    found.digest[1] = digest([np.asarray([3.0])])[0]
    rows = judged([found, row("torch.pool", 0.04)])
    assert [r.agrees for r in rows] == [False, True]


def test_means_are_geometric_and_leave_out_what_stands_apart():
    rows = judged([row("polygrad cpu:0", 0.02), row("polygrad opencl:0", 0.01), row("torch.pool", 0.04)])
    rows += judged([row("polygrad cpu:0", 0.02, piece="tanh"), row("torch.pool", 0.01, piece="tanh")])
    rows += judged([row("polygrad cpu:0", 9.0, piece="add1_fwd"), row("torch.pool", 0.01, piece="add1_fwd")])
    verdict = judging.conclude(rows, {"cpu": "torch.pool"}, {})
    found = {(m.group, m.contender): (m.ratio, m.count) for m in verdict.means}
    assert found[judging.OVERALL, "polygrad cpu:0"] == (pytest.approx(1.0), 2)
    assert found[judging.OVERALL, judging.BEST] == (pytest.approx(0.5**0.5), 2)
    assert found["overhead", "polygrad cpu:0"] == (pytest.approx(900.0), 1)
    assert verdict.wins == {"polygrad opencl:0": 1, "torch.pool": 2}


def test_a_failed_reference_leaves_ratios_out():
    rows = judged([row("polygrad cpu:0", 0.02), row("torch.pool", 0.04, error="no answer in 4 s")])
    assert rows[0].ratio is None
    assert not rows[0].winner  # of one


def test_undisturbed_rounds_count_if_there_are_enough():
    found = row("torch.pool", 1.0)
    found.rounds, found.foreign = [1.0, 1.2, 1.1, 9.0, 8.0], [0.0, 0.1, 0.2, 1.5, 1.4]
    assert found.median == 1.1
    found.foreign = [0.0, 0.1, 1.2, 1.5, 1.4]
    assert found.median == 1.2


def test_heavy_work_is_left_to_accelerators_unless_it_is_named():
    heavy, gpu = work.table("paper")["kernel_rmsnorm"], Contender(OWN["polygrad"], "cuda:0", "nvidia")
    cpu = Contender(OWN["polygrad"], "cpu:0", "cpu")
    assert [rounds.takes_part(c, heavy, named=False) for c in (cpu, gpu)] == [False, True]
    assert rounds.takes_part(cpu, heavy, named=True)


def test_libraries_run_where_the_devices_are():
    found = selection.contenders(
        {"cpu:0": "cpu", "opencl:0": "cpu", "cuda:0": "nvidia"}, ["torch", "cupy"], ["polygrad"]
    )
    names = [c.name for c in found]
    assert names == ["polygrad cpu:0", "polygrad opencl:0", "polygrad cuda:0", "torch", "torch nvidia", "cupy nvidia"]
    assert judging.references_of(found) == {"cpu": "torch", "nvidia": "torch nvidia"}
    assert judging.references_of(found, "cupy") == {"cpu": "torch", "nvidia": "cupy nvidia"}
    verdict = judging.conclude([], judging.references_of(found), {})
    assert verdict.reference == "torch on cpu, torch nvidia on nvidia"


def test_a_history_tells_what_changed(tmp_path):
    def run(seconds):
        rows = judged([row("polygrad cpu:0", seconds), row("torch.pool", 0.04)])
        verdict = judging.conclude(rows, {"cpu": "torch.pool"}, {})
        return records.record(verdict, Pace(1, 0.1, "paper"), [], 2, interrupted=False)

    path = str(tmp_path / "history")
    assert records.append(run(0.02), path) == []
    assert records.append(run(0.021), path) == []
    (line,) = records.append(run(0.042), path)
    assert line.startswith("exp of polygrad cpu:0: 2.00 times slower against torch.pool than ")
    other = run(0.5)
    other["machine"]["cpus"] = 64
    assert records.append(other, path) == []


def test_tables_are_aligned_and_say_what_failed(capsys):
    rows = judged([row("polygrad cpu:0", 0.02), row("jax.jit", 0.4), row("torch.pool", 0.04, error="no answer in 4 s")])
    verdict = judging.conclude(rows, {"cpu": "torch.pool"}, {"cpu": judging.Ceiling(copy=1e10)})
    tables.show([tables.results(verdict), tables.means(verdict)], tables.summary(verdict))
    said = capsys.readouterr().out
    assert "exp   polygrad cpu:0  20.0 ms   6.71 GB/s" in said
    assert "      jax.jit          400 ms  0.336 GB/s" in said
    assert "torch.pool failed at 1 pieces of work, the first of them exp: no answer in 4 s" in said


def test_a_narrow_terminal_loses_the_least_important_columns():
    table = tables.Table("Results", tables.COLUMNS, [["w" * 20, "c" * 20, *(["1" * 8] * 6), "failed: " + "x" * 90]])
    assert list(tables.fitting(table, 130).columns) == list(tables.COLUMNS)
    narrow = tables.fitting(table, 100)
    assert list(narrow.columns) == ["work", "contender", "median", "ceiling", "ratio", ""]
    assert narrow.heading == "Results; no room for: rate, memory, first"


def test_a_picture_has_a_bar_for_each_ratio(tmp_path):
    pytest.importorskip("matplotlib", reason="not run: needs matplotlib")
    rows = judged([row("polygrad cpu:0", 0.02), row("jax.jit", 0.4), row("torch.pool", 0.04)])
    verdict = judging.conclude(rows, {"cpu": "torch.pool"}, {})
    (axes,) = picture._drawn(verdict).axes
    assert [round(float(bar.get_width()), 3) for bar in axes.patches[:2]] == [round(float(np.log10(0.5)), 3), 1.0]
    picture.draw(verdict, str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"


def test_a_process_that_dies_again_and_again_takes_no_more_part(library):
    PEERS[library("raises")]
    process = Process(Contender(Peer("gone", "no_such_module", "", "numpy"), "cpu", "cpu"), [0], 20.0)
    for _ in range(rounds.GIVE_UP):
        (found,) = rounds.measure(TINY["exp"], [process], Pace(1, 0.001, "tiny"))
        assert "ModuleNotFoundError" in found.error
    assert rounds.measure(TINY["exp"], [process], Pace(1, 0.001, "tiny")) == []
