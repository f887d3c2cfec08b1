"""``python -m polygrad.gpt``: from source text to tokens, from tokens to a model, from the model to text.

Here: the three commands with tiny models, what they write, how they go on after an interruption, what they refuse.
Not here: the model and its cache (`test_nn_layers.py`), the loop (`test_training.py`), token files (`test_data.py`).
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

import polygrad as pg

pytest.importorskip("tokenizers", reason="not run: needs tokenizers")

from polygrad.gpt import main
from polygrad.gpt.corpus import Corpus, Texts, find_texts, held_out, split
from polygrad.gpt.run_folder import find_checkpoint
from polygrad.gpt.vocabulary import END, Spelling, Vocabulary
from polygrad.runtime.devices import state
from polygrad.training import read_csv

ROOT = Path(__file__).resolve().parent.parent
STDLIB = Path(sysconfig.get_path("stdlib"))
SOURCE = [str(STDLIB / name) for name in ("json", "logging", "email")]
SHAPE = ["--layers", "1", "--dim", "16", "--heads", "2", "--kv-heads", "1", "--context", "16", "--batch", "4"]
QUICK = [*SHAPE, "--lr", "1e-2", "--eval-batches", "2", "--eval-every", "0"]


def command(*words):
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "made"
    assert command("tokenize", "--out", folder, "--source", *SOURCE, "--vocab-size", 260, "--held-out", 0.2) == 0
    return folder


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """A run of three steps on the CPU."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    words = ["--data", corpus, "--out", folder, "--steps", 3, "--device", "cpu:0"]
    assert command("train", *words, *QUICK) == 0
    return folder


def refused(capsys, *words, code=1):
    """Return the one sentence that a command refuses with."""
    capsys.readouterr()
    assert command(*words) == code
    error = capsys.readouterr().err
    assert "Traceback" not in error
    sentence = error.strip().splitlines()[-1]
    start = f"polygrad.gpt {words[0]}: "
    assert code != 1 or [line for line in error.splitlines() if line.startswith(start)] == [sentence]
    return sentence


def arrays_of(tree, name=""):
    """Yield the arrays and numbers of a tree."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from arrays_of(value, f"{name}.{key}")
    elif isinstance(tree, (list, tuple)):
        for key, value in enumerate(tree):
            yield from arrays_of(value, f"{name}.{key}")
    else:
        yield name, tree.numpy().tobytes() if isinstance(tree, pg.Array) else tree


# -- tokenize ---------------------------------------------------------------------------------------------------------


def test_the_same_text_gives_the_same_files(corpus, tmp_path):
    again = subprocess.run(
        [sys.executable, "-m", "polygrad.gpt", "tokenize", "--out", tmp_path, "--vocab-size", "260",
         "--held-out", "0.2", "--source", *SOURCE],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "7"}, check=True,
    )  # fmt: skip
    assert "held out, by name" in again.stdout
    names = sorted(p.name for p in corpus.iterdir())
    assert names == ["corpus.json", "tokenizer.json", "train.tokens", "valid.tokens"]
    for name in names:
        assert (corpus / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_tokens_are_the_text_and_the_description_counts_it(corpus):
    made = Corpus(corpus)
    learnt, held = split(find_texts(SOURCE).named, 0.2)
    vocabulary = Vocabulary.load(made.tokenizer)
    for file, texts, counts in ((made.train, learnt, "train"), (made.valid, held, "valid")):
        file.verify()
        tokens = file[:].tolist()
        assert tokens.count(vocabulary.end) == len(texts)
        spelling = Spelling(vocabulary)
        assert "".join(map(spelling.add, tokens)) + spelling.end() == "".join(texts)
        size = len("".join(texts).encode())
        assert made.description[counts] == {"texts": len(texts), "bytes": size, "tokens": len(tokens)}
    assert made.bytes_per_token == made.description["bytes_per_token"]["valid"]
    assert made.vocab_size == vocabulary.size == 260


def test_a_text_is_held_out_by_its_name_alone():
    names = [f"package/module_{k}.py" for k in range(400)]
    chosen = {name for name in names if held_out(name, 0.1)}
    assert 20 < len(chosen) < 60
    learnt, held = split([(name, name) for name in names], 0.1)
    assert set(held) == chosen
    assert not set(held) & set(learnt)
    fewer = [(name, name) for name in names[::2]]
    assert set(split(fewer, 0.1)[1]) == chosen & set(names[::2])


def test_of_few_texts_one_is_held_out_and_of_a_single_one_its_end():
    learnt, held = split([("a", "1"), ("b", "2")], 1e-9)
    assert (len(learnt), len(held)) == (1, 1)
    lines = [f"line {k}\n" for k in range(10)]
    assert split([("a", "".join(lines))], 0.2) == (["".join(lines[:8])], ["".join(lines[8:])])


def test_what_is_no_text_is_left_out_and_counted_in_one_line(tmp_path, capsys):
    source = tmp_path / "source"
    source.mkdir()
    for k in range(6):
        (source / f"{k}.py").write_text(f"# number {k}\n" + "value = 1\n" * 300)
    (source / "again.py").write_text((source / "0.py").read_text())
    (source / "latin.py").write_bytes("# caf\u00e9".encode("latin-1"))
    (source / "nothing.py").write_text("\n")
    (source / "folder.py").mkdir()
    (source / "gone.py").symlink_to(source / "missing")
    assert command("tokenize", "--out", tmp_path / "c", "--source", source, "--vocab-size", 300) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("left out: 1 not UTF-8, 1 the same as another, 1 empty")
    assert "6 texts" in said[0]
    assert "no more than" in said[1]  # so little text has no 300 tokens
    assert json.loads((tmp_path / "c" / "corpus.json").read_text())["left_out"]["undecodable"] == 1
    missing = Texts()
    assert missing.left_out() == ""


def test_a_special_token_spelled_in_the_text_is_text():
    vocabulary = Vocabulary.learn([f"say {END} once\n" * 20], 300)
    tokens = vocabulary.encode(f"a{END}b")
    assert vocabulary.end not in tokens
    spelling = Spelling(vocabulary)
    assert "".join(map(spelling.add, [*tokens, vocabulary.end])) == f"a{END}b"


def test_letters_appear_when_their_last_byte_has_come():
    vocabulary = Vocabulary.learn(["a"], 257)
    tokens = vocabulary.encode("\u00e9\U0001f600!")
    assert len(tokens) == 2 + 4 + 1
    spelling = Spelling(vocabulary)
    assert [spelling.add(t) for t in tokens] == ["", "\u00e9", "", "", "", "\U0001f600", "!"]
    assert spelling.add(tokens[0]) + spelling.end() == "\ufffd"


def test_tokenize_refuses_in_one_sentence(tmp_path, capsys):
    small = tmp_path / "small.py"
    small.write_text("a = 1\n")
    out = ["--out", tmp_path / "c"]
    assert "6 bytes" not in refused(capsys, "tokenize", *out, "--source", small)
    assert refused(capsys, "tokenize", *out, "--source", small) == (
        "polygrad.gpt tokenize: cannot make a corpus of 0 bytes to learn from and 6 held out: it takes at least 1000 "
        "each; give more text with --source, or another share with --held-out"
    )
    assert refused(capsys, "tokenize", *out, "--source", tmp_path / "none") == (
        f"polygrad.gpt tokenize: cannot take text from {tmp_path / 'none'}: there is no such file or folder"
    )
    assert "it has no files *.md" in refused(capsys, "tokenize", *out, "--source", STDLIB / "json", "--pattern", "*.md")
    assert "256 bytes and 1 special ones need 257" in refused(
        capsys, "tokenize", *out, "--source", *SOURCE, "--vocab-size", 256
    )
    assert "'1' is no number of more than 0 and less than 1" in refused(capsys, "tokenize", "--held-out", "1", code=2)
    assert not (tmp_path / "c" / "corpus.json").exists()


def test_a_full_disk_leaves_the_corpus_that_was_there(corpus, tmp_path, capsys, monkeypatch):
    from polygrad.gpt import tokenize

    folder = tmp_path / "c"
    shutil.copytree(corpus, folder)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def full(path, *_, **__):
        Path(path).write_bytes(b"begun")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(tokenize, "write_tokens", full)
    said = refused(capsys, "tokenize", "--out", folder, "--source", *SOURCE, "--vocab-size", 300)
    assert said.endswith("train.tokens: No space left on device")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


# -- train ------------------------------------------------------------------------------------------------------------


def test_thirty_steps_on_every_device_bring_the_loss_down_by_a_third(corpus, tmp_path, device, capsys):
    run = tmp_path / "run"
    shape = ["--layers", 1, "--dim", 32, "--heads", 2, "--context", 32, "--batch", 16]
    how = ["--steps", 30, "--lr", "1e-2", "--warmup", 3, "--log-every", 1, "--eval-every", 0, "--eval-batches", 2]
    assert command("train", "--data", corpus, "--out", run, "--device", device, *shape, *how) == 0
    losses = read_csv(run / "log.csv")["loss"]
    assert len(losses) == 30
    assert sum(losses[-5:]) / 5 < losses[0] * 2 / 3
    said = capsys.readouterr().out
    assert f"on {device} in float32" in said
    held, bits, count = re.search(r"held-out loss ([\d.]+) or ([\d.]+) bits a byte, over (\d+)", said).groups()
    assert float(held) < losses[0] * 2 / 3
    assert int(count) == 2 * 16 * 32
    assert float(bits) == pytest.approx(float(held) / 0.693147 / Corpus(corpus).bytes_per_token, rel=1e-3)
    assert (run / "loss.png").read_bytes()[:4] == b"\x89PNG"
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-00000030.ckpt"]
    texts = []
    for cache in ([], ["--no-cache"]):  # the prompt and its continuation do not fit into the context of 32
        words = ["--out", run, "--device", device, "--prompt", "def f(", "--seed", 3, "--past-end", *cache]
        assert command("generate", *words, "--tokens", 30) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[0].startswith("def f(")
    assert len(texts[0]) > len("def f(") + 8


def test_an_interrupted_run_goes_on_bit_for_bit(corpus, tmp_path, capsys):
    steps = 100
    words = ["--data", corpus, "--steps", steps, "--device", "cpu:0", "--dropout", 0.1, "--accumulate", 2, *SHAPE,
             "--log-every", 1, "--eval-every", 40, "--eval-batches", 2]  # fmt: skip
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert command("train", "--out", whole, *words) == 0
    called = [sys.executable, "-m", "polygrad.gpt", "train", "--out", broken, *words, "--sample-every", 20]
    process = subprocess.Popen(
        list(map(str, called)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    log, until = broken / "log.csv", time.monotonic() + 240
    while process.poll() is None and time.monotonic() < until:
        if log.exists() and log.read_text().count("\n") > 30:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=240)
    assert process.returncode == 130, error
    assert f"python -m polygrad.gpt train --out {broken} --resume" in out
    at = int(re.search(r"interrupted after step (\d+) of", out).group(1))
    assert 30 <= at < steps
    assert [p.name for p in (broken / "checkpoints").iterdir()] == [f"step-{at:08}.ckpt"]

    capsys.readouterr()
    assert command("train", "--out", broken, "--resume", "--device", "cpu:0") == 0
    capsys.readouterr()
    parts = dict.fromkeys(("model", "optimiser", "schedule", "loader"))
    one, other = (
        dict(arrays_of(pg.io.load_checkpoint(find_checkpoint(run), restore_random=False, **parts)))
        for run in (whole, broken)
    )
    assert one.pop(".gpt.settings.sample_every") != other.pop(".gpt.settings.sample_every")  # which moves nothing
    assert len(one) > 30
    assert one == other
    columns = [read_csv(run / "log.csv") for run in (whole, broken)]
    for name in ("step", "loss", "norm", "lr", "valid_loss"):
        assert columns[0][name] == columns[1][name], name
    assert columns[0]["step"] == list(range(1, steps + 1))


def test_a_run_that_was_killed_without_a_checkpoint_begins_anew(corpus, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["--data", corpus, "--out", run, "--resume", "--steps", 2, "--device", "cpu:0", "--tensorboard", *QUICK]
    assert command("train", *words) == 0
    assert "has no checkpoint yet: a new run begins" in capsys.readouterr().out
    assert command("train", *words) == 0
    assert "has done its 2 steps; give more with --steps" in capsys.readouterr().out
    assert command("train", *words, "--steps", 3) == 0
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-00000002.ckpt", "step-00000003.ckpt"]
    assert list((run / "tensorboard").iterdir())


def test_compiled_steps_are_the_same_steps(corpus, tmp_path, capsys):
    words = ["--data", corpus, "--steps", 8, "--device", "cpu:0", "--log-every", 1, "--dropout", 0.1, *QUICK]
    for name, how in (("plain", []), ("compiled", ["--compile"])):
        assert command("train", "--out", tmp_path / name, *words, *how) == 0
    plain, compiled = (read_csv(tmp_path / name / "log.csv") for name in ("plain", "compiled"))
    assert plain["loss"] == compiled["loss"]
    assert plain["valid_loss"] == compiled["valid_loss"]
    said = refused(capsys, "train", "--out", tmp_path / "no", *words, "--compile", "--accumulate", 2)
    assert "cannot train compiled with accumulate" in said


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_training_in_16_bits(corpus, tmp_path, precision):
    run = tmp_path / "run"
    words = ["--data", corpus, "--out", run, "--steps", 12, "--warmup", 0, "--device", "cpu:0", "--log-every", 1]
    assert command("train", *words, *QUICK, "--precision", precision) == 0
    losses = read_csv(run / "log.csv")["loss"]
    assert losses[-1] < losses[0] - 0.5
    state_of = pg.io.load_checkpoint(find_checkpoint(run), restore_random=False, model=None)
    assert {a.dtype.name for _, a in state_of["model"].items()} == {"float32"}


def test_train_refuses_in_one_sentence_and_loses_nothing(corpus, trained, tmp_path, capsys):
    before = {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}
    new = ["--data", corpus, "--out", tmp_path / "new", *QUICK]
    on = ["--data", corpus, "--out", trained]
    said = [
        (
            ["--data", tmp_path, "--out", tmp_path / "new"],
            "it has no corpus.json; make it with `python -m polygrad.gpt",
        ),
        ([*new, "--context", 10**6], "a window and its successor need one more than its length"),
        ([*new, "--steps", 5, "--warmup", 5], "cannot warm up for 5 steps (--warmup) of 5 (--steps)"),
        ([*new, "--min-lr", 1], "which is more than the highest, 0.01 (--lr)"),
        ([*new, "--dim", 15], "cannot give 15 features (--dim) to 2 heads (--heads): take a multiple of 4"),
        ([*new, "--kv-heads", 3], "cannot share 3 heads of keys and values (--kv-heads) among 2 (--heads)"),
        ([*new, "--device", "cpu:9"], "cpu:9 does not exist"),
        ([*new, "--device", "nodevice"], "no installed driver is named 'nodevice'"),
        ([*on], "go on from it with --resume, or choose another folder with --out"),
        ([*on, "--resume", "--dim", 32], "the run has --dim 16, not 32"),
        ([*new, "--steps", 3, "--lr", 1e30, "--clip", 0, "--warmup", 0], "cannot go on: the loss is"),
        ([*new, "--out", "/proc/self/none"], "cannot use /proc/self/none"),
    ]
    for words, part in said:
        sentence = refused(capsys, "train", *words)
        assert part in sentence, sentence
    for words, part in [
        (["--lr", "nan"], "'nan' is no number of more than 0"),
        (["--dropout", "1"], "'1' is no number of at least 0 and less than 1"),
        (["--batch", "0"], "'0' is no whole number of at least 1"),
        (["--precision", "int8"], "invalid choice"),
    ]:
        assert part in refused(capsys, "train", *new, *words, code=2)
    assert {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()} == before
    assert not list((tmp_path / "new").rglob("*.ckpt"))


def test_another_vocabulary_is_refused(corpus, trained, tmp_path, capsys):
    other = tmp_path / "other"
    assert command("tokenize", "--out", other, "--source", *SOURCE, "--vocab-size", 270) == 0
    said = refused(capsys, "train", "--data", other, "--out", trained, "--resume", "--steps", 9)
    assert f"{trained} was trained with another vocabulary; give its corpus with --data" in said
    said = refused(capsys, "generate", "--out", trained, "--tokenizer", other / "tokenizer.json")
    assert "the model was trained with another vocabulary" in said
    (tmp_path / "text").write_text("qz zq qqzz\n" * 3000)
    similar = ["--vocab-size", 260, "--source", tmp_path / "text"]
    assert command("tokenize", "--out", tmp_path / "similar", *similar) == 0
    said = refused(capsys, "generate", "--out", trained, "--tokenizer", tmp_path / "similar" / "tokenizer.json")
    assert "the model was trained with another vocabulary" in said
    said = refused(capsys, "train", "--data", tmp_path / "similar", "--out", trained, "--resume", "--steps", 9)
    assert "was trained with another vocabulary" in said
    shutil.copy(corpus / "tokenizer.json", other / "tokenizer.json")
    said = refused(capsys, "train", "--data", other, "--out", tmp_path / "new")
    assert "its tokenizer.json is not the one that its tokens were made with" in said
    shutil.copy(corpus / "train.tokens", other / "train.tokens")
    said = refused(capsys, "train", "--data", other, "--out", tmp_path / "new")
    assert "its tokens are of a vocabulary of 260, not of 270" in said
    (other / "corpus.json").write_text("{}")
    assert "is damaged or of another program" in refused(capsys, "train", "--data", other)


@pytest.mark.parametrize("content", [b"", b"no checkpoint at all", b"torn"])
def test_a_damaged_checkpoint_is_passed_over_or_refused(trained, tmp_path, capsys, content):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    good = run / "checkpoints" / "step-00000003.ckpt"
    bad = run / "checkpoints" / "step-00000007.ckpt"
    bad.write_bytes(good.read_bytes()[:-9] if content == b"torn" else content)
    with pytest.warns(UserWarning, match="taking the one before it"):
        assert find_checkpoint(run) == good
    capsys.readouterr()
    assert command("train", "--out", run, "--resume", "--steps", 4, "--device", "cpu:0") == 0
    assert "taking the one before it" in capsys.readouterr().err
    bad.write_bytes(good.read_bytes()[:-9] if content == b"torn" else content)
    assert "cannot " in refused(capsys, "generate", "--checkpoint", bad)


# -- generate ---------------------------------------------------------------------------------------------------------


def generated(capsys, *words):
    capsys.readouterr()
    assert command("generate", *words, "--device", "cpu:0") == 0
    return capsys.readouterr()


def test_generate_says_the_same_with_the_same_seed(trained, capsys):
    words = ["--out", trained, "--tokens", 20, "--prompt", "import "]
    one, again, other = (generated(capsys, *words, "--seed", seed).out for seed in (1, 1, 2))
    assert one == again != other
    drawn = generated(capsys, *words)
    seed = re.search(r"seed (\d+)", drawn.err).group(1)
    assert generated(capsys, *words, "--seed", seed).out == drawn.out
    greedy = generated(capsys, *words, "--temperature", 0).out
    assert greedy == generated(capsys, *words, "--top-k", 1).out == generated(capsys, *words, "--top-p", 1e-9).out


def test_prompts_of_any_length(trained, tmp_path, capsys):
    words = ["--out", trained, "--seed", 1, "--temperature", 0]
    assert generated(capsys, *words, "--tokens", 0).out == "\n"
    assert "9 tokens" in generated(capsys, *words, "--tokens", 9, "--past-end").err
    long = "for name in names:\n    print(name)\n" * 4
    (tmp_path / "prompt").write_text(long)
    said = generated(capsys, *words, "--tokens", 5, "--prompt-file", tmp_path / "prompt")
    assert said.out.startswith(long)
    assert re.search(r"the prompt has \d+ tokens; the model sees the last 16", said.err)
    tokens = Vocabulary.load(trained / "tokenizer.json").encode(long)
    assert len(tokens) > 16
    several = generated(capsys, "--out", trained, "--seed", 1, "--tokens", 8, "--samples", 2).out
    assert several.startswith("--- 1 of 2\n")
    assert "\n--- 2 of 2\n" in several


def test_generate_refuses_in_one_sentence(trained, tmp_path, capsys):
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    arrays = tmp_path / "foreign.safetensors"
    pytest.importorskip("safetensors", reason="not run: needs safetensors")
    pg.io.save_safetensors({"w": pg.ones(2)}, arrays)
    pg.io.save_checkpoint(tmp_path / "mine.ckpt", model=pg.nn.Linear(2, 1))
    (tmp_path / "empty").mkdir()
    for words, part in [
        (["--out", tmp_path / "none"], "there is no such file or folder"),
        (["--out", tmp_path / "empty"], "there is no checkpoint in it"),
        (["--checkpoint", arrays], "it is a safetensors file but no checkpoint of a training run"),
        (["--checkpoint", tmp_path / "mine.ckpt"], "it is no checkpoint of polygrad.gpt train"),
        (["--out", trained, "--prompt-file", tmp_path / "latin"], "it is not UTF-8"),
        (["--out", trained, "--prompt-file", tmp_path / "none"], "No such file or directory"),
        (["--out", trained, "--prompt", "\udce9"], "it is not UTF-8"),
        (["--out", trained, "--tokenizer", tmp_path / "latin"], "it is damaged or of another program"),
    ]:
        sentence = refused(capsys, "generate", *words)
        assert part in sentence, sentence
    assert "'0' is no number of more than 0 and at most 1" in refused(capsys, "generate", "--top-p", 0, code=2)
    assert "not allowed with" in refused(capsys, "generate", "--prompt", "a", "--prompt-file", "b", code=2)


def test_generation_holds_no_more_memory_and_plans_no_more_with_every_token():
    with pg.device("cpu:0"):
        model = pg.nn.GPT(vocab_size=300, context=16, dim=16, layers=2, heads=2)
        stream = model.stream(pg.asarray([[0]]), 10**6)
        held, plans = [], []
        for number in range(1, 60):
            next(stream)
            if number in (4, 15, 20, 59):  # the context of 16 is full after 15
                held.append(pg.memory_stats()["used"])
                plans.append(len(state("cpu:0").plans))
        stream.close()
    assert held[1] - held[0] <= 11 * 512  # a block of the pool for each of the 11 tokens between
    assert held[3] <= held[2] <= held[1]
    assert plans[1] == plans[0]
    assert plans[3] == plans[2]


def test_blocks_of_a_generating_model_share_their_plans():
    with pg.device("cpu:0"):
        plans, made = state("cpu:0").plans, []
        for layers in (2, 5):
            model = pg.nn.GPT(vocab_size=300, context=48, dim=24, layers=layers, heads=2)
            before = set(plans)
            model.generate(pg.asarray([[1, 2, 3]]), 6)
            made.append(len(set(plans) - before))
    assert made[0] > 0
    assert made[1] == 0, "what a block is computed with depends on how many there are"


def test_help_names_every_command_and_setting(capsys):
    assert command("--help") == 0
    said = capsys.readouterr().out
    for name in ("tokenize", "train", "generate"):
        assert name in said
        assert command(name, "--help") == 0
    said = capsys.readouterr().out
    for flag in ("--min-lr", "--weight-decay", "--accumulate", "--precision", "--resume", "--top-p", "--no-cache"):
        assert flag in said
