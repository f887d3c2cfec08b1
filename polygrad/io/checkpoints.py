"""Checkpoints: everything that a training run needs to go on, in one file.

Here: what is in it, saving and loading all of it or nothing, the newest one, how many are kept.
Not here: the container (`container.py`); what each part's state means (its `state_dict`).

A checkpoint is a safetensors file: the arrays of all parts, and as text in its header the trees that they are leaves
of (JSON), a version, a checksum. Nothing in it is code.
"""

import contextlib
import json
import math
import os
import random as python_random
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polygrad.array import random
from polygrad.array.config import FALLBACK
from polygrad.array.evaluation import realize
from polygrad.array.files import parts_of
from polygrad.array.object import Array
from polygrad.errors import StateError
from polygrad.io.container import CHECKSUM, Container, write_container

FORMAT = "polygrad checkpoint"
VERSION = 1
_ARRAY = "$array"  # the key that stands for an array in a tree
_NUMBER = "$number"  # the same for the floats that JSON has not
_SUFFIX = ".ckpt"


def save_checkpoint(
    path: str | os.PathLike[str],
    /,
    *,
    metadata: Mapping[str, Any] | None = None,
    previous: str | os.PathLike[str] | None = None,
    **parts: Any,
) -> None:
    """Write the state of a training run to a file, which takes the place of *path* whole or not at all.

    The states of `pg.random` and of Python's `random` are saved with it.

    Parameters
    ----------
    path : path
        The file.
    metadata : mapping, optional
        The user's own, anything that JSON can hold: the step, the configuration.
    previous : path, optional
        What the file that was there is called afterwards; without it, it is gone once the new one is complete.
    **parts
        Under names of the user's choice, what has a `state_dict` (model, optimiser, schedule, loader, scaler, average),
        or a tree of arrays, numbers and text.

    Raises
    ------
    StateError
        If something in a state is neither array, number, text, None nor a list or dict of these.
    OSError
        If the file cannot be written, because the disk is full, say; what was there before is unharmed.

    Examples
    --------
    >>> import os, tempfile
    >>> import polygrad as pg
    >>> model = pg.nn.Linear(2, 1)
    >>> optimiser = pg.optim.SGD(model, lr=0.1, momentum=0.9)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "run.ckpt")
    ...     pg.io.save_checkpoint(path, model=model, optimiser=optimiser, metadata={"step": 7})
    ...     pg.io.load_checkpoint(path, model=model, optimiser=optimiser)
    {'step': 7}
    """
    arrays: dict[str, Array] = {}
    states = {name: _state(part) for name, part in parts.items()}
    realize(states)
    content = {
        "parts": {name: _packed(state, name, arrays) for name, state in states.items()},
        "random": {"polygrad": random.get_state(), "python": _python_state()},
        "metadata": _checked(metadata),
    }
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    write_container(path, arrays, {"format": FORMAT, "version": str(VERSION), "content": text}, previous)
    for left in parts_of(path):  # of a process that was killed while it saved
        with contextlib.suppress(FileNotFoundError):
            left.unlink()


def load_checkpoint(path: str | os.PathLike[str], /, *, restore_random: bool = True, **parts: Any) -> dict[str, Any]:
    """Bring a training run to the state of a file: all parts, or none if anything is wrong.

    Parameters
    ----------
    path : path
        What `save_checkpoint` wrote.
    restore_random : bool
        Whether random numbers go on from there too.
    **parts
        What to load, under the names it was saved by; what is not given stays unread.

    Returns
    -------
    dict
        The metadata. Of a part given as None the tree of its state is returned, under its name, with the metadata.

    Raises
    ------
    StateError
        If the file is no checkpoint, is torn or damaged or of a later version, lacks a part, or a part does not fit;
        nothing was changed.
    FileNotFoundError
        If there is no such file.
    """
    file = Container(path)
    try:
        content = _content(file)
        lacking = [name for name in parts if name not in content["parts"]]
        if lacking:
            held = ", ".join(content["parts"]) or "no parts"
            raise StateError(f"cannot load {', '.join(lacking)} from {file.path}: it holds {held}")
        file.verify()
        states = {name: _unpacked(content["parts"][name], file) for name in parts}
    finally:
        file.close()
    _load_all({n: p for n, p in parts.items() if p is not None}, states, file.path)
    if restore_random:
        random.set_state(content["random"]["polygrad"])
        kind, words, gauss = content["random"]["python"]
        python_random.setstate((kind, tuple(words), gauss))
    return {**content["metadata"], **{n: states[n] for n, p in parts.items() if p is None}}


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the metadata of a checkpoint, and under ``"parts"`` the names of what it holds; nothing is loaded."""
    file = Container(path)
    try:
        content = _content(file)
        return {**content["metadata"], "parts": list(content["parts"])}
    finally:
        file.close()


def _state(part: Any) -> Any:
    return part.state_dict() if hasattr(part, "state_dict") else part


def _python_state() -> list[Any]:
    kind, words, gauss = python_random.getstate()
    return [kind, list(words), gauss]


def _packed(tree: Any, at: str, arrays: dict[str, Array]) -> Any:
    """Return a tree as JSON has it, its arrays replaced by their names in *arrays*."""
    if isinstance(tree, Array):
        arrays[at] = tree.detach()
        return {_ARRAY: at}
    if isinstance(tree, Mapping):
        bad = [k for k in tree if not isinstance(k, str) or k in (_ARRAY, _NUMBER)]
        if bad:
            raise StateError(f"cannot save {at}: its key {bad[0]!r} is no text of its own")
        return {k: _packed(v, f"{at}.{k}", arrays) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_packed(v, f"{at}.{k}", arrays) for k, v in enumerate(tree)]
    if isinstance(tree, float) and not math.isfinite(tree):
        return {_NUMBER: repr(tree)}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise StateError(
        f"cannot save {at}, which is {type(tree).__name__}: a state is arrays, numbers, text, None, lists and dicts"
    )


def _unpacked(tree: Any, file: Container) -> Any:
    if isinstance(tree, dict):
        if set(tree) == {_ARRAY}:
            return file.array(tree[_ARRAY], FALLBACK)
        if set(tree) == {_NUMBER}:
            return float(tree[_NUMBER])
        return {k: _unpacked(v, file) for k, v in tree.items()}
    return [_unpacked(v, file) for v in tree] if isinstance(tree, list) else tree


def _checked(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        return dict(json.loads(json.dumps(dict(metadata or {}), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise StateError(f"cannot save this metadata: it must be what JSON can hold ({error})") from None


def _content(file: Container) -> dict[str, Any]:
    if file.metadata.get("format") != FORMAT:
        raise StateError(
            f"cannot load {file.path}: it is a safetensors file but no checkpoint of a training run; load_safetensors "
            "reads its arrays"
        )
    version = file.metadata.get("version", "")
    if not version.isdigit() or int(version) > VERSION:
        raise StateError(
            f"cannot load {file.path}: it has version {version or '?'}, and this polygrad reads up to {VERSION}"
        )
    try:
        content = json.loads(file.metadata["content"])
        found = {key: dict(content[key]) for key in ("parts", "random", "metadata")}
    except (KeyError, TypeError, ValueError):
        raise StateError(f"cannot load {file.path}: its header is damaged") from None
    if CHECKSUM not in file.metadata:
        raise StateError(f"cannot load {file.path}: it has no checksum")
    return found


def _load_all(parts: Mapping[str, Any], states: Mapping[str, Any], path: str) -> None:
    """Load each part; if one refuses, give those before it what they had."""
    before: list[tuple[Any, Any]] = []
    for name, part in parts.items():
        kept = part.state_dict()
        try:
            part.load_state_dict(states[name])
        except Exception as error:
            for other, state in reversed(before):
                other.load_state_dict(state)
            raise StateError(f"cannot load {name} from {path}: {error}") from error
        before.append((part, kept))


class Checkpoints:
    """A folder of checkpoints, named by step, of which the newest few are kept.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    keep : int, optional
        How many stay; all if None. At least 2 protect from losing a run to a damaged disk.

    Examples
    --------
    >>> import os, tempfile
    >>> import polygrad as pg
    >>> model = pg.nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = pg.io.Checkpoints(folder, keep=2)
    ...     for step in (10, 20, 30):
    ...         _ = run.save(step, model=model)
    ...     sorted(os.listdir(folder)), run.load(model=model)
    (['step-00000020.ckpt', 'step-00000030.ckpt'], {'step': 30})
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int | None = 3) -> None:
        if keep is not None and keep < 1:
            raise StateError(f"cannot keep {keep} checkpoints: it must be at least 1, or None for all")
        self.folder = Path(folder)
        self.keep = keep
        self.folder.mkdir(parents=True, exist_ok=True)

    def paths(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        named = [(int(m[1]), p) for p in self.folder.iterdir() if (m := re.fullmatch(r"step-(\d+)\.ckpt", p.name))]
        return [path for _, path in sorted(named)]

    def save(self, step: int, /, *, metadata: Mapping[str, Any] | None = None, **parts: Any) -> Path:
        """Save as `save_checkpoint` does, with the step in the metadata; then remove what is too old. Return the path.

        Checkpoints of later steps, of a run that was begun again from an earlier one, are removed too.
        """
        path = self.folder / f"step-{step:08d}{_SUFFIX}"
        save_checkpoint(path, metadata={**(metadata or {}), "step": step}, **parts)
        there = self.paths()
        later = there[there.index(path) + 1 :]
        older = there[: there.index(path)]
        surplus = older[: max(0, len(older) + 1 - self.keep)] if self.keep is not None else []
        for old in [*later, *surplus]:
            with contextlib.suppress(FileNotFoundError):
                old.unlink()
        for left in self.folder.glob(".step-*.part"):  # of a process that was killed while it saved
            with contextlib.suppress(FileNotFoundError):
                left.unlink()
        return path

    def latest(self) -> Path | None:
        """Return the newest checkpoint that is whole, or None; of damaged ones it warns."""
        for path in reversed(self.paths()):
            try:
                file = Container(path)
                try:
                    _content(file)
                    file.verify()
                finally:
                    file.close()
            except StateError as error:
                warnings.warn(f"{error}; taking the one before it", stacklevel=2)
                continue
            return path
        return None

    def load(self, *, restore_random: bool = True, **parts: Any) -> dict[str, Any]:
        """Load the newest checkpoint that is whole, as `load_checkpoint` does.

        Raises
        ------
        StateError
            If there is none, or it does not fit; nothing was changed.
        """
        path = self.latest()
        if path is None:
            raise StateError(f"cannot load from {self.folder}: there is no checkpoint in it")
        return load_checkpoint(path, restore_random=restore_random, **parts)
