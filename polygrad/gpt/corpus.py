"""A corpus: text found on this machine, split into what is learnt and what is held out, and the folder of its tokens.

Here: finding and reading text, the split, the folder's description and its checks.
Not here: the vocabulary (`vocabulary.py`), the files of tokens (`polygrad.data`).

The folder has ``tokenizer.json``, ``train.tokens``, ``valid.tokens`` and ``corpus.json``, which is written last and
counts what is in the others: a folder without it, or whose files are not those that it counts, is refused.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from polygrad.array.files import replacing
from polygrad.data import TokenFile
from polygrad.errors import DataError, StateError

FORMAT = "polygrad corpus"
VERSION = 1
STDLIB = "stdlib"
TOKENIZER, TRAIN, VALID, DESCRIPTION = "tokenizer.json", "train.tokens", "valid.tokens", "corpus.json"
_FOREIGN = {"site-packages", "dist-packages", "__pycache__"}  # beside the standard library, and not of it
_HASHED = 1 << 64  # the first eight bytes of a name's hash, as a number, are below it


@dataclasses.dataclass
class Texts:
    """Texts that were found, by a name that does not depend on where they lie, and what was left out."""

    named: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    undecodable: int = 0
    unreadable: int = 0
    repeated: int = 0
    empty: int = 0

    def left_out(self) -> str:
        """Return in words what was left out, or an empty string."""
        counts = [
            (self.undecodable, "not UTF-8"),
            (self.unreadable, "not readable"),
            (self.repeated, "the same as another"),
            (self.empty, "empty"),
        ]
        return ", ".join(f"{count} {why}" for count, why in counts if count)


def find_texts(sources: Sequence[str], pattern: str = "*.py") -> Texts:
    """Return the texts of files and folders, in the order of their names.

    Parameters
    ----------
    sources : sequence of str
        Files, folders, or ``"stdlib"``: the source of the standard library of the Python that runs (a folder of that
        name is ``"./stdlib"``).
    pattern : str
        Which files of a folder are taken.

    Raises
    ------
    DataError
        If a source is not there, or has no such file.
    """
    found, seen = Texts(), set()
    for source in sources:
        files = list(_files(source, pattern))
        if not files:
            raise DataError(f"cannot take text from {source}: it has no files {pattern}; choose others with --pattern")
        for name, path in files:
            try:
                text = path.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                found.undecodable += 1
                continue
            except OSError:
                found.unreadable += 1
                continue
            digest = hashlib.sha256(text.encode()).digest()
            if not text.strip():
                found.empty += 1
            elif digest in seen:  # else what is held out might have been learnt
                found.repeated += 1
            else:
                seen.add(digest)
                found.named.append((name, text))
    return found


def _files(source: str, pattern: str) -> Iterator[tuple[str, Path]]:
    root = Path(sysconfig.get_path("stdlib")) if source == STDLIB else Path(source)
    if root.is_file():
        yield root.name, root
    elif root.is_dir():
        named = sorted((p.relative_to(root).as_posix(), p) for p in root.rglob(pattern) if p.is_file())
        for name, path in named:
            if source != STDLIB or not _FOREIGN & set(path.relative_to(root).parts):
                yield name, path
    else:
        raise DataError(f"cannot take text from {source}: there is no such file or folder")


def held_out(name: str, share: float) -> bool:
    """Return whether the text of this name is held out: that follows from the name alone, on every machine.

    >>> [held_out(name, 0.5) for name in ("ast.py", "json/decoder.py", "os.py")]
    [False, True, False]
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") < share * _HASHED


def split(named: Sequence[tuple[str, str]], share: float) -> tuple[list[str], list[str]]:
    """Return the texts to learn from and those held out, each whole on one side.

    Of two or more texts at least one is on each side. Of a single one the last lines are held out.

    Raises
    ------
    DataError
        If there is no text.
    """
    if not named:
        raise DataError("cannot make a corpus: no text was found")
    if len(named) == 1:
        lines = named[0][1].splitlines(keepends=True)
        kept = len(lines) - max(1, round(len(lines) * share))
        return ["".join(lines[:kept])], ["".join(lines[kept:])]
    ranked = sorted(named, key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
    count = sum(held_out(name, share) for name, _ in ranked)
    chosen = {name for name, _ in ranked[: min(max(count, 1), len(ranked) - 1)]}
    learnt = [text for name, text in named if name not in chosen]
    return learnt, [text for name, text in named if name in chosen]


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def describe(vocab_size: int, digest: str, counts: dict[str, dict[str, int]], **more: Any) -> dict[str, Any]:
    """Return the description of a corpus.

    Parameters
    ----------
    vocab_size : int
        Tokens are below it.
    digest : str
        The fingerprint of the vocabulary's file.
    counts : dict
        For ``"train"`` and ``"valid"`` the numbers of ``"texts"``, ``"bytes"`` and ``"tokens"``.
    **more
        What else is worth keeping.
    """
    bytes_a_token = {part: n["bytes"] / n["tokens"] for part, n in counts.items()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "vocab_size": vocab_size,
        "tokenizer_sha256": digest,
        **counts,
        "bytes_per_token": bytes_a_token,
        "python": ".".join(map(str, sys.version_info[:3])),
        **more,
    }


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write JSON to a file, which appears whole or not at all."""
    with replacing(path) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")


@contextlib.contextmanager
def staged(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a folder for the files of a corpus; if the block ends well they move to *folder*, the description last."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    stage = target / f".tokenize.{os.getpid()}.part"
    _clear(*target.glob(".tokenize.*.part"))
    stage.mkdir()
    try:
        yield stage
        with contextlib.suppress(FileNotFoundError):
            (target / DESCRIPTION).unlink()  # from here on until the new one is there the folder is refused
        for name in (TOKENIZER, TRAIN, VALID, DESCRIPTION):
            os.replace(stage / name, target / name)
    finally:
        _clear(stage)


def _clear(*stages: Path) -> None:
    for stage in stages:
        for left in stage.iterdir():
            left.unlink()
        stage.rmdir()


class Corpus:
    """The folder of a corpus, open for reading.

    Raises
    ------
    StateError
        If the folder is none of a corpus, or its files are not those of its description.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.description = self._described()
        self.vocab_size = int(self.description["vocab_size"])
        self.tokenizer = self.folder / TOKENIZER
        self.train, self.valid = self._tokens(TRAIN), self._tokens(VALID)
        if fingerprint(self.tokenizer) != self.description["tokenizer_sha256"]:
            raise StateError(f"cannot use {self.folder}: its {TOKENIZER} is not the one that its tokens were made with")
        counted = (self.description["train"]["tokens"], self.description["valid"]["tokens"])
        if counted != (self.train.count, self.valid.count):
            raise StateError(f"cannot use {self.folder}: its files of tokens are not those of its {DESCRIPTION}")

    def _described(self) -> dict[str, Any]:
        path = self.folder / DESCRIPTION
        if not path.is_file():
            raise StateError(
                f"cannot use {self.folder}: it has no {DESCRIPTION}; make it with `python -m polygrad.gpt tokenize "
                f"--out {self.folder}`"
            )
        try:
            content: dict[str, Any] = json.loads(path.read_bytes())
            whole = (
                content["format"] == FORMAT
                and content["vocab_size"] > 0
                and min(content[part][count] for part in ("train", "valid") for count in ("bytes", "tokens")) > 0
                and isinstance(content["tokenizer_sha256"], str)
            )
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise StateError(f"cannot use {self.folder}: its {DESCRIPTION} is damaged or of another program")
        if content.get("version") != VERSION:
            raise StateError(
                f"cannot use {self.folder}: it has version {content.get('version')}, and this polygrad reads {VERSION}"
            )
        return content

    def _tokens(self, name: str) -> TokenFile:
        path = self.folder / name
        if not path.is_file() or not self.tokenizer.is_file():
            lacking = name if self.tokenizer.is_file() else TOKENIZER
            raise StateError(f"cannot use {self.folder}: it has no {lacking}; run tokenize again")
        return TokenFile(path, self.vocab_size)

    @property
    def bytes_per_token(self) -> float:
        """How many bytes of UTF-8 a token of the held-out text stands for, on average."""
        held: dict[str, int] = self.description["valid"]
        return held["bytes"] / held["tokens"]
