"""The folder of a training run: its checkpoints, its vocabulary, its logs; and the model of a checkpoint.

Here: what lies where, what a checkpoint says of its model, loading it.
Not here: the format of checkpoints (`polygrad.io`), training.

    RUN/checkpoints/step-*.ckpt    the newest few states of the run
    RUN/tokenizer.json             the vocabulary, copied from the corpus
    RUN/log.csv, RUN/loss.png      figures of each step, and their curves
    RUN/tensorboard/               the same for TensorBoard, if asked for
"""

import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polygrad.array.files import replacing
from polygrad.errors import DataError, StateError
from polygrad.gpt.corpus import TOKENIZER, fingerprint
from polygrad.gpt.vocabulary import Vocabulary
from polygrad.io import Checkpoints, load_checkpoint, read_checkpoint
from polygrad.nn.gpt import GPT, GPTConfig

CHECKPOINTS, LOG, PICTURE, TENSORBOARD = "checkpoints", "log.csv", "loss.png", "tensorboard"
_ABOUT = "gpt"  # the key of our own part of a checkpoint's metadata


def about(config: GPTConfig, digest: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint says of its model: its shape, its vocabulary, the settings of the run."""
    return {_ABOUT: {"model": dataclasses.asdict(config), "tokenizer_sha256": digest, "settings": dict(settings)}}


def read_about(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a checkpoint says of its model.

    Raises
    ------
    StateError
        If the file is no checkpoint, or one of something else.
    """
    try:
        found = read_checkpoint(path)[_ABOUT]
        config = GPTConfig(**found["model"])
        return {
            "model": config,
            "tokenizer_sha256": str(found["tokenizer_sha256"]),
            "settings": dict(found["settings"]),
        }
    except (KeyError, TypeError, AttributeError):
        raise StateError(f"cannot use {os.fspath(path)}: it is no checkpoint of polygrad.gpt train") from None


def copy_vocabulary(source: Path, folder: Path) -> None:
    """Put a vocabulary's file into a run's folder, whole or not at all."""
    with open(source, "rb") as there, replacing(folder / TOKENIZER) as here:
        shutil.copyfileobj(there, here)


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Return the newest whole checkpoint of a run's folder or of a folder of checkpoints; or the file itself.

    Raises
    ------
    DataError
        If there is no such file or folder.
    StateError
        If there is no checkpoint in it.
    """
    given = Path(path)
    if given.is_file():
        return given
    if not given.is_dir():
        raise DataError(f"cannot take a model from {given}: there is no such file or folder")
    folder = given / CHECKPOINTS if (given / CHECKPOINTS).is_dir() else given
    newest = Checkpoints(folder).latest()
    if newest is None:
        raise StateError(f"cannot take a model from {given}: there is no checkpoint in it")
    return newest


def load_model(
    checkpoint: Path, tokenizer: str | os.PathLike[str] | None = None, device: str | None = None
) -> tuple[GPT, Vocabulary]:
    """Return the model of a checkpoint, and its vocabulary.

    Parameters
    ----------
    checkpoint : path
        The file.
    tokenizer : path, optional
        The vocabulary's file; unless given the one beside the checkpoint, or in the folder above it.
    device : str, optional
        Where the model goes; the default device unless given.

    Raises
    ------
    StateError
        If the vocabulary is missing or not the one that the model was trained with, or the checkpoint does not fit.
    """
    said = read_about(checkpoint)
    if tokenizer is None:
        nearby = [folder / TOKENIZER for folder in (checkpoint.parent, checkpoint.resolve().parent.parent)]
        tokenizer = next((path for path in nearby if path.is_file()), nearby[-1])
    vocabulary = Vocabulary.load(tokenizer)
    config: GPTConfig = said["model"]
    if fingerprint(tokenizer) != said["tokenizer_sha256"] or vocabulary.size != config.vocab_size:
        raise StateError(
            f"cannot use {os.fspath(tokenizer)} with {checkpoint}: the model was trained with another vocabulary"
        )
    model = GPT(config, device=device)
    load_checkpoint(checkpoint, restore_random=False, model=model)
    return model.eval(), vocabulary
