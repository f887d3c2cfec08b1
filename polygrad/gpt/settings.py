"""What a training run is set up with: the arguments, their defaults, and how those of a run that goes on are found.

Here: one table of settings.
Not here: what is done with them (`train.py`).

On a fresh run a setting that is not given has its default; with ``--resume`` it is what the run had. The shape of the
model, its data and its order cannot change on the way; the rest can.
"""

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from polygrad.errors import StateError
from polygrad.gpt.arguments import real, whole
from polygrad.nn.gpt import GPTConfig

_MOST_WARMUP = 100  # steps, unless asked for
PRECISIONS = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting: its default, what reads it, what it is, and whether it is fixed for the length of a run."""

    default: Any
    read: Any
    text: str
    fixed: bool = False


_MODEL = {
    "layers": Setting(4, whole(1), "blocks", fixed=True),
    "dim": Setting(256, whole(1), "features", fixed=True),
    "heads": Setting(4, whole(1), "heads of attention", fixed=True),
    "kv_heads": Setting(None, whole(1), "heads of keys and values (default: as many as heads)", fixed=True),
    "context": Setting(256, whole(1), "tokens that the model sees at once", fixed=True),
    "dropout": Setting(0.0, real(0.0, 1.0, open_above=True), "share of features dropped in training", fixed=True),
}
_STEPS = {
    "batch": Setting(16, whole(1), "sequences in a batch, of all processes together", fixed=True),
    "accumulate": Setting(1, whole(1), "batches whose gradients make a step", fixed=True),
    "steps": Setting(2000, whole(1), "steps in all"),
    "lr": Setting(1e-3, real(0.0, open_below=True), "highest learning rate"),
    "min_lr": Setting(1e-4, real(0.0), "learning rate at the end"),
    "warmup": Setting(None, whole(0), "steps in which it rises (default: a tenth of them, at most 100)"),
    "weight_decay": Setting(0.1, real(0.0), "of matrices; norms have none"),
    "beta1": Setting(0.9, real(0.0, 1.0, open_above=True), "how much of the mean gradient is kept"),
    "beta2": Setting(0.95, real(0.0, 1.0, open_above=True), "the same of its square"),
    "clip": Setting(1.0, real(0.0), "most that the norm of all gradients may be; 0: any"),
    "seed": Setting(0, whole(0), "of weights, order and dropout", fixed=True),
}
_WATCH = {
    "eval_every": Setting(250, whole(0), "steps between measurements of held-out loss; 0: at the end alone"),
    "eval_batches": Setting(20, whole(1), "batches of each measurement"),
    "save_every": Setting(250, whole(0), "steps between checkpoints; 0: at the end alone"),
    "keep": Setting(3, whole(1), "checkpoints that stay"),
    "log_every": Setting(10, whole(1), "steps between rows of the log"),
    "sample_every": Setting(0, whole(0), "steps between samples of text; 0: none"),
}
SETTINGS = {
    **_MODEL,
    **_STEPS,
    "precision": Setting("float32", str, "what products are computed in", fixed=True),
    **_WATCH,
    "data": Setting("corpus", str, "the corpus's folder", fixed=False),
}
_GROUPS = {"the model": _MODEL, "the steps": _STEPS, "what is watched and kept": _WATCH}


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Declare an argument for each setting; only those that are given appear in the result."""
    absent = argparse.SUPPRESS
    parser.add_argument("--data", default=absent, metavar="DIR", help="the corpus's folder (default: corpus)")
    for title, members in _GROUPS.items():
        group = parser.add_argument_group(title)
        for name, s in members.items():
            said = s.text if s.default is None else f"{s.text} (default: {s.default})"
            flag = "--" + name.replace("_", "-")
            group.add_argument(flag, dest=name, type=s.read, default=absent, metavar="N", help=said.replace("%", "%%"))
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=absent,
        help="what products are computed in (default: float32); weights are float32",
    )


def settle(given: argparse.Namespace, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the value of each setting.

    Parameters
    ----------
    given : Namespace
        The command line.
    before : mapping, optional
        The settings of the run that goes on.

    Raises
    ------
    StateError
        If a setting is given that cannot change on the way.
    """
    chosen = {name: value for name, value in vars(given).items() if name in SETTINGS}
    if before is not None:
        lacking = [name for name in SETTINGS if name not in before]
        if lacking:
            raise StateError(f"cannot resume: the checkpoint does not say {', '.join(lacking)}")
        changed = [n for n, value in chosen.items() if SETTINGS[n].fixed and value != before[n]]
        if changed:
            said = ", ".join(f"--{n.replace('_', '-')} {before[n]}, not {chosen[n]}" for n in changed)
            raise StateError(f"cannot resume with other settings: the run has {said}; leave them out, or begin another")
    start = {name: s.default for name, s in SETTINGS.items()} if before is None else dict(before)
    settled = {name: chosen.get(name, start[name]) for name in SETTINGS}
    if settled["warmup"] is None:
        settled["warmup"] = min(_MOST_WARMUP, settled["steps"] // 10)
    return settled


def model_config(settings: Mapping[str, Any], vocab_size: int) -> GPTConfig:
    """Return the shape of the model: root-mean-square norms, SwiGLU, rotary positions, tied weights, no biases."""
    return GPTConfig(
        vocab_size=vocab_size,
        context=settings["context"],
        dim=settings["dim"],
        layers=settings["layers"],
        heads=settings["heads"],
        kv_heads=settings["kv_heads"],
        norm="rms",
        activation="swiglu",
        positions="rotary",
        tied=True,
        bias=False,
        dropout=settings["dropout"],
    )
