"""Make a corpus: a vocabulary learnt from text, and files of tokens to learn from and to measure with.

The text is the source of the standard library of the Python that runs, unless other files or folders are given. Which
texts are held out follows from their names alone, so the same text gives the same files, byte for byte.

Here: the command.
Not here: finding and splitting text (`corpus.py`), the vocabulary (`vocabulary.py`).
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from polygrad.data import write_tokens
from polygrad.errors import DataError
from polygrad.gpt import corpus
from polygrad.gpt.arguments import share, whole
from polygrad.gpt.vocabulary import END, Vocabulary, package_version

_LEAST = 1000  # bytes on each side: less is no text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--out", default="corpus", metavar="DIR", help="the corpus's folder (default: %(default)s)")
    parser.add_argument(
        "--source",
        nargs="+",
        default=[corpus.STDLIB],
        metavar="TEXT",
        help="files or folders, or stdlib for the standard library's source (default: stdlib)",
    )
    parser.add_argument("--pattern", default="*.py", help="which files of a folder are taken (default: %(default)s)")
    parser.add_argument("--vocab-size", type=whole(1), default=4096, metavar="N", help="tokens (default: %(default)s)")
    parser.add_argument(
        "--special", nargs="*", default=[], metavar="TOKEN", help=f"further special tokens beside {END}"
    )
    parser.add_argument(
        "--held-out", type=share, default=0.05, metavar="SHARE", help="share of the texts held out (default: 0.05)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    texts = corpus.find_texts(arguments.source, arguments.pattern)
    learnt, held = corpus.split(texts.named, arguments.held_out)
    sizes = {part: sum(len(t.encode()) for t in side) for part, side in (("train", learnt), ("valid", held))}
    if min(sizes.values()) < _LEAST:
        raise DataError(
            f"cannot make a corpus of {sizes['train']} bytes to learn from and {sizes['valid']} held out: it takes at "
            f"least {_LEAST} each; give more text with --source, or another share with --held-out"
        )
    left = texts.left_out()
    _say(
        f"{len(texts.named)} texts, {sum(sizes.values()) / 1e6:.2f} MB; {len(held)} held out, by name"
        + (f"; left out: {left}" if left else "")
    )
    vocabulary = Vocabulary.learn(learnt, arguments.vocab_size, arguments.special)
    if vocabulary.size < arguments.vocab_size:
        _say(f"the text gives no more than {vocabulary.size} tokens of the {arguments.vocab_size} asked for")
    with corpus.staged(arguments.out) as stage:
        vocabulary.save(stage / corpus.TOKENIZER)
        counts = {}
        for part, name, side in (("train", corpus.TRAIN, learnt), ("valid", corpus.VALID, held)):
            tokens = write_tokens(stage / name, _shown(vocabulary.stream(side), part), vocab_size=vocabulary.size)
            counts[part] = {"texts": len(side), "bytes": sizes[part], "tokens": tokens}
        description = corpus.describe(
            vocabulary.size,
            corpus.fingerprint(stage / corpus.TOKENIZER),
            counts,
            special_tokens=[END, *arguments.special],
            held_out=arguments.held_out,
            tokenizers=package_version(),
            left_out={"undecodable": texts.undecodable, "unreadable": texts.unreadable, "repeated": texts.repeated},
        )
        corpus.write_json(stage / corpus.DESCRIPTION, description)
    train, valid = counts["train"], counts["valid"]
    _say(
        f"{Path(arguments.out)}: {vocabulary.size} tokens in the vocabulary, {train['tokens']} to learn from, "
        f"{valid['tokens']} held out, {description['bytes_per_token']['valid']:.3f} bytes a token"
    )
    return 0


def _shown(tokens: Iterator[int], part: str) -> Iterator[int]:
    """Yield tokens, and tell a terminal how far it is: the standard library takes most of a minute."""
    if not sys.stderr.isatty():
        yield from tokens
        return
    for count, token in enumerate(tokens):
        if count % 100_000 == 0:
            sys.stderr.write(f"\r{part}: {count / 1e6:.1f} million tokens")
            sys.stderr.flush()
        yield token
    sys.stderr.write("\r\x1b[K")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
