"""The vocabulary: byte-level BPE, from text to tokens and back.

Here: learning it, encoding many texts, decoding as tokens come; the package `tokenizers` does the work.
Not here: which text (`corpus.py`).
"""

import codecs
import os
from collections.abc import Iterator, Sequence
from typing import Any

from polygrad.errors import DataError, StateError

END = "<|endoftext|>"  # between texts, and before the first
_BYTES = 256
_AT_ONCE = 32  # texts encoded together


def _package() -> Any:
    try:
        import tokenizers  # noqa: PLC0415  an optional package
    except ImportError:
        raise StateError("the vocabulary needs the package tokenizers: pip install 'polygrad-array[gpt]'") from None
    return tokenizers


def package_version() -> str:
    """Return the version of the package `tokenizers`, on which the vocabulary may depend."""
    return str(_package().__version__)


def _byte_of() -> dict[str, int]:
    """Return which byte each letter stands for in the names of byte-level tokens.

    Printable letters of Latin-1 stand for themselves, the others for letters from U+0100 on, in order. Source: Radford
    et al., Language models are unsupervised multitask learners (2019), `encoder.py` of its code.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(_BYTES) if b not in plain]
    return {chr(b): b for b in plain} | {chr(_BYTES + k): b for k, b in enumerate(others)}


class Vocabulary:
    """Tokens of text and text of tokens.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        Byte-level, with the token that ends a text.

    Raises
    ------
    StateError
        If it has no such token.
    """

    def __init__(self, tokenizer: Any, source: str = "the vocabulary") -> None:
        self._tokenizer = tokenizer
        tokenizer.encode_special_tokens = True  # "<|endoftext|>" within a text is text, and ends nothing
        self.size = int(tokenizer.get_vocab_size())
        end = tokenizer.token_to_id(END)
        if end is None:
            raise StateError(f"cannot use {source}: it has no token {END}")
        self.end = int(end)
        self._bytes = _byte_of()
        self._special = set(tokenizer.get_added_tokens_decoder())

    @classmethod
    def learn(cls, texts: Sequence[str], size: int, special: Sequence[str] = ()) -> "Vocabulary":
        """Return a vocabulary of at most *size* tokens, learnt from texts; the same texts give the same one.

        Raises
        ------
        DataError
            If there is no room for all bytes and the special tokens.
        """
        names = list(dict.fromkeys([END, *special]))
        least = _BYTES + len(names)
        if size < least:
            raise DataError(
                f"cannot make a vocabulary of {size} tokens: {_BYTES} bytes and {len(names)} special ones need {least}"
            )
        t = _package()
        tokenizer = t.Tokenizer(t.models.BPE())
        tokenizer.pre_tokenizer = t.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = t.decoders.ByteLevel()
        trainer = t.trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=names,
            initial_alphabet=sorted(t.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer, length=len(texts))
        return cls(tokenizer)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Vocabulary":
        """Return the vocabulary of a file ``tokenizer.json``.

        Raises
        ------
        StateError
            If the file is not there, is damaged, or has not the token that ends a text.
        """
        if not os.path.isfile(path):
            raise StateError(f"cannot read a vocabulary from {os.fspath(path)}: there is no such file")
        package = _package()
        try:
            tokenizer = package.Tokenizer.from_file(os.fspath(path))
        except Exception as error:  # the package raises nothing narrower
            raise StateError(
                f"cannot read a vocabulary from {os.fspath(path)}: it is damaged or of another program ({error})"
            ) from None
        return cls(tokenizer, os.fspath(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file."""
        with open(path, "wb") as file:
            file.write(self._tokenizer.to_str(pretty=True).encode())

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; special tokens spelled in it are text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def stream(self, texts: Sequence[str]) -> Iterator[int]:
        """Yield the tokens of texts, each after a token that ends what was before."""
        for first in range(0, len(texts), _AT_ONCE):
            for found in self._tokenizer.encode_batch_fast(
                list(texts[first : first + _AT_ONCE]), add_special_tokens=False
            ):
                yield self.end
                yield from found.ids

    def bytes_of(self, token: int) -> bytes:
        """Return what a token stands for: nothing if it is a special one or none at all."""
        name = self._tokenizer.id_to_token(token)
        if name is None or token in self._special or not all(letter in self._bytes for letter in name):
            return b""
        return bytes(self._bytes[letter] for letter in name)


class Spelling:
    """Text of tokens as they come: letters whose bytes are spread over several tokens appear when they are complete."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """Return the text that is complete with this token."""
        return self._decoder.decode(self._vocabulary.bytes_of(token))

    def end(self) -> str:
        """Return what is left: a sign for letters that were not completed."""
        return self._decoder.decode(b"", final=True)
