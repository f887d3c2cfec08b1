"""Train a GPT on a corpus: root-mean-square norms, SwiGLU, rotary positions, causal attention, AdamW, cosine with
warm-up.

Ctrl-C ends the run after the step under way, with a checkpoint; `--resume` goes on from the newest one, bit for bit on
one device. A step sees batch * accumulate windows from anywhere in the text; an epoch is as many of them as would cover
the text once.

Here: the command, from arguments to `polygrad.training.fit`, and what it says.
Not here: settings (`settings.py`), model and data (`parts.py`), the loop.
"""

import argparse
import contextlib
import itertools
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from polygrad.array import random
from polygrad.array.config import get_device
from polygrad.array.creation import asarray
from polygrad.commands import INTERRUPTED
from polygrad.distributed import Communicator, DataParallel, ShardedOptimizer
from polygrad.errors import StateError, TrainingError
from polygrad.gpt import run_folder
from polygrad.gpt.corpus import TOKENIZER, Corpus, fingerprint
from polygrad.gpt.parts import HeldOut, Parts, loss_of, make_parts
from polygrad.gpt.settings import add_settings, settle
from polygrad.gpt.several import joined, share_of
from polygrad.gpt.vocabulary import Spelling, Vocabulary
from polygrad.io import Checkpoints
from polygrad.nn.gpt import GPT
from polygrad.training import fit, plot_losses
from polygrad.training.fitting import Fitted

_SAMPLE = 64  # tokens of a sample on the way


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--out", default="run", metavar="DIR", help="the run's folder (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in it, if there is one")
    parser.add_argument("--device", metavar="NAME", help="such as cpu:0 or opencl:0 (default: POLYGRAD_DEVICE, or cpu)")
    parser.add_argument("--tensorboard", action="store_true", help="log for TensorBoard too, in the run's folder")
    parser.add_argument("--shard", action="store_true", help="divide the optimiser's state among processes")
    parser.add_argument(
        "--compile", action="store_true", help="replay the steps without Python's share; not with --accumulate, float16"
    )
    add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    with joined(arguments.device) as job:
        return _run(arguments, job)


def _run(arguments: argparse.Namespace, job: Communicator) -> int:
    folder = Path(arguments.out)
    said = _before(folder) if arguments.resume else None
    settings = settle(arguments, None if said is None else said["settings"])
    corpus = Corpus(settings["data"])
    digest = corpus.description["tokenizer_sha256"]
    if said is not None and said["tokenizer_sha256"] != digest:
        raise StateError(
            f"cannot go on with {corpus.folder}: {folder} was trained with another vocabulary; give its corpus with "
            "--data, or begin another run with --out"
        )
    parts = make_parts({**settings, "batch": share_of(settings["batch"], job)}, corpus, job.rank, job.size)
    held = HeldOut(
        parts.model,
        corpus.valid,
        settings["batch"],
        settings["eval_batches"],
        corpus.bytes_per_token,
        settings["precision"],
    )
    checkpoints = _checkpoints(folder, settings["keep"], resume=arguments.resume)
    if said is not None and _done(checkpoints) >= settings["steps"]:
        _say(f"{folder} has done its {settings['steps']} steps; give more with --steps to go on")
        return 0
    if not job.rank:
        run_folder.copy_vocabulary(corpus.tokenizer, folder)
    job.barrier()
    _introduce(parts, settings, corpus, held)
    with _warnings_in_a_line():
        fitted = _trained(arguments, settings, parts, held, checkpoints, folder, job)
    if not job.rank:
        _draw(folder)
    return _conclude(fitted, folder, settings, held)


def _trained(
    arguments: argparse.Namespace,
    settings: Mapping[str, Any],
    parts: Parts,
    held: HeldOut,
    checkpoints: Checkpoints,
    folder: Path,
    job: Communicator,
) -> Fitted:
    """Run the loop."""
    several = job.size > 1
    optimiser = ShardedOptimizer(parts.optimiser, job) if several and arguments.shard else parts.optimiser
    digest = fingerprint(folder / TOKENIZER)
    logs = [folder / run_folder.LOG, *([folder / run_folder.TENSORBOARD] if arguments.tensorboard else [])]

    def measured(_: GPT) -> dict[str, float]:
        loss = held()
        return {"valid_loss": loss, "bits_per_byte": held.bits_per_byte(loss)}

    return fit(
        parts.model,
        loss_of,
        parts.loader,
        optimiser,
        steps=settings["steps"],
        schedule=parts.schedule,
        scaler=parts.scaler,
        max_norm=settings["clip"] or None,
        accumulate=settings["accumulate"],
        precision=settings["precision"],
        log=logs,
        log_every=settings["log_every"],
        read_every=settings["log_every"],
        items_per_step=parts.tokens_per_step * settings["accumulate"],
        unit="tok",
        checkpoints=checkpoints,
        save_every=settings["save_every"] or None,
        resume=arguments.resume,
        metadata=run_folder.about(parts.model.config, digest, settings),
        evaluate=measured,
        evaluate_every=settings["eval_every"] or None,
        after_step=None if job.rank else _sampling(parts.model, folder, settings),
        reducer=DataParallel(parts.model, job) if several else None,
        compiled=arguments.compile,
    )


def _before(folder: Path) -> dict[str, Any] | None:
    """Return what the newest checkpoint of a run says, or None if it has none yet."""
    there = folder / run_folder.CHECKPOINTS
    if not there.is_dir() or not Checkpoints(there).paths():
        _say(f"{folder} has no checkpoint yet: a new run begins")
        return None
    with _warnings_in_a_line():
        return run_folder.read_about(run_folder.find_checkpoint(folder))


def _checkpoints(folder: Path, keep: int, *, resume: bool) -> Checkpoints:
    """Return a run's folder of checkpoints, made if it is not there."""
    checkpoints = Checkpoints(folder / run_folder.CHECKPOINTS, keep)
    there = checkpoints.paths()
    if there and not resume:
        raise TrainingError(
            f"cannot begin a run in {folder}: it has checkpoints, the newest called {there[-1].name}; go on from it "
            "with --resume, or choose another folder with --out"
        )
    return checkpoints


def _done(checkpoints: Checkpoints) -> int:
    return int(checkpoints.paths()[-1].stem.partition("-")[2])


def _introduce(parts: Parts, settings: Mapping[str, Any], corpus: Corpus, held: HeldOut) -> None:
    model = parts.model
    weights = sum(p.size for p in model.parameters())
    tokens = parts.tokens_per_step * settings["accumulate"]
    _say(
        f"{weights / 1e6:.2f} M parameters, {settings['layers']} layers of {settings['dim']}, context "
        f"{settings['context']}, on {get_device()} in {settings['precision']}"
    )
    _say(
        f"{corpus.train.count} tokens, {corpus.vocab_size} in the vocabulary; {tokens} a step, "
        f"{settings['steps'] * tokens / corpus.train.count:.2f} epochs in {settings['steps']} steps; {held.tokens} "
        "held-out tokens measured"
    )


def _sampling(model: GPT, folder: Path, settings: Mapping[str, Any]) -> Callable[[int], None] | None:
    """Return what writes a sample now and then, without moving the training's random numbers."""
    if not settings["sample_every"]:
        return None
    vocabulary = Vocabulary.load(folder / TOKENIZER)

    def after_step(step: int) -> None:
        if step % settings["sample_every"]:
            return
        with random.replayed({"key": settings["seed"], "counter": 0}):
            start = asarray([[vocabulary.end]])
            tokens = itertools.takewhile(
                lambda token: token != vocabulary.end,
                (int(new.tolist()[0][0]) for new in model.stream(start, _SAMPLE, temperature=0.8)),
            )
            spelling = Spelling(vocabulary)
            text = "".join(map(spelling.add, tokens)) + spelling.end()
        _say(f"--- sample after step {step}\n{text}\n---")

    return after_step


def _draw(folder: Path) -> None:
    """Draw the curves, if that can be done; the run is no worse without."""
    try:
        plot_losses(folder / run_folder.LOG, folder / run_folder.PICTURE)
    except (TrainingError, OSError) as error:
        _say(f"no picture of the losses: {error}")


def _conclude(fitted: Fitted, folder: Path, settings: Mapping[str, Any], held: HeldOut) -> int:
    """Say how the run ended; return the exit code."""
    if fitted.stopped == "interrupted":
        again = f"python -m polygrad.gpt train --out {shlex.quote(str(folder))} --resume"
        _say(f"interrupted after step {fitted.step} of {settings['steps']}, and saved; go on with\n    {again}")
        return INTERRUPTED
    figures = fitted.evaluations[-1][1]
    lately = fitted.losses[-settings["log_every"] :]
    _say(
        f"step {fitted.step}: loss {sum(lately) / len(lately):.4f}, held-out loss {figures['valid_loss']:.4f} or "
        f"{figures['bits_per_byte']:.4f} bits a byte, over {held.tokens} tokens; {fitted.checkpoint}"
    )
    return 0


@contextlib.contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Show warnings as sentences, without the place in the code that Python puts before them."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_: _tell(f"polygrad.gpt train: {message}")
        yield


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _tell(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads on: no reason to end a run
        sys.stderr.write(line + os.linesep)
        sys.stderr.flush()
