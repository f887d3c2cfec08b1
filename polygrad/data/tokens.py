"""Files of tokens: one long row of integers, which is mapped into memory and read in windows.

Here: the format, writing, checking, windows.
Not here: how text becomes tokens.

The file is a header of 64 bytes, little-endian, and the tokens. Header: 8 bytes ``PGTOKENS``, uint32 version (1),
uint32 bytes a token (1, 2 or 4, unsigned), uint64 number of tokens, uint64 size of the vocabulary (0: not known),
uint32 CRC-32 of the tokens, uint32 CRC-32 of the header up to here, zeros.
"""

import array
import mmap
import os
import struct
import sys
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from polygrad import dtypes
from polygrad.array import interchange
from polygrad.array.config import default_int, resolve
from polygrad.array.files import replacing
from polygrad.array.object import Array
from polygrad.data.datasets import Dataset
from polygrad.data.order import mixed
from polygrad.errors import DataError, StateError

MAGIC = b"PGTOKENS"
VERSION = 1
HEADER = struct.Struct("<8sIIQQI")
LENGTH = 64  # bytes of the header
_CODES = {1: ("B", "uint8"), 2: ("H", "uint16"), 4: ("I", "uint32")}
_CHUNK = 1 << 20  # tokens encoded at once


def write_tokens(
    path: str | os.PathLike[str], tokens: Iterable[int], *, vocab_size: int | None = None, dtype: Any = None
) -> int:
    """Write tokens to a file, which appears whole or not at all; return how many there were.

    Parameters
    ----------
    path : path
        The file; one that is there is replaced.
    tokens : iterable of int
        As many as there are; they need not fit into memory.
    vocab_size : int, optional
        Tokens are below it; kept in the header, so that a model of another vocabulary is refused.
    dtype : dtype, optional
        uint8, uint16 or uint32; the least that holds the vocabulary, uint32 if that is not known.

    Raises
    ------
    DataError
        If a token is negative, not below *vocab_size*, or too big for the dtype; nothing was written.

    Examples
    --------
    >>> import os, tempfile
    >>> import polygrad as pg
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pg.data.write_tokens(os.path.join(folder, "a.tokens"), range(100), vocab_size=100)
    ...     file = pg.data.TokenFile(os.path.join(folder, "a.tokens"))
    ...     x, y = file.windows(4).batch([1, 2])
    ...     x.tolist(), y.tolist()
    100
    ([[4, 5, 6, 7], [8, 9, 10, 11]], [[5, 6, 7, 8], [9, 10, 11, 12]])
    """
    size = _bytes_a_token(vocab_size, dtype)
    limit = min(256**size, vocab_size or 256**size)
    count = checksum = 0
    with replacing(path) as file:
        file.write(bytes(LENGTH))
        pending: list[int] = []

        def flush() -> None:
            nonlocal count, checksum
            data = _encoded(pending, size, limit, count)
            checksum = zlib.crc32(data, checksum)
            file.write(data)
            count += len(pending)
            pending.clear()

        for token in tokens:
            pending.append(token)
            if len(pending) == _CHUNK:
                flush()
        flush()
        head = HEADER.pack(MAGIC, VERSION, size, count, vocab_size or 0, checksum)
        file.seek(0)
        file.write(head + struct.pack("<I", zlib.crc32(head)))
    return count


def _bytes_a_token(vocab_size: int | None, dtype: Any) -> int:
    if dtype is not None:
        found = [size for size, (_, name) in _CODES.items() if name == dtypes.as_dtype(dtype).name]
        if not found:
            raise DataError(f"cannot write tokens as {dtype}: they are uint8, uint16 or uint32")
        return found[0]
    return 4 if vocab_size is None else next(size for size in _CODES if vocab_size <= 256**size)


def _encoded(tokens: list[int], size: int, limit: int, before: int) -> bytes:
    if tokens and not (min(tokens) >= 0 and max(tokens) < limit):
        k, bad = next((k, t) for k, t in enumerate(tokens) if not 0 <= t < limit)
        raise DataError(f"cannot write token {bad} at place {before + k}: tokens are in [0, {limit})")
    words = array.array(_CODES[size][0], tokens)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


class TokenFile:
    """A file of tokens, mapped into memory: opening it reads nothing but the header.

    Parameters
    ----------
    path : path
        What `write_tokens` wrote.
    vocab_size : int, optional
        The reader's vocabulary, which must be the file's if that says one.

    Raises
    ------
    StateError
        If the file is none of tokens, is damaged or cut short, of a later version, or of another vocabulary.
    """

    def __init__(self, path: str | os.PathLike[str], vocab_size: int | None = None) -> None:
        self.path = os.fspath(path)
        with open(self.path, "rb") as file:
            head = file.read(LENGTH)
            size, self.count, vocab, self._checksum = self._header(head, os.fstat(file.fileno()).st_size)
            if vocab_size is not None and vocab and vocab != vocab_size:
                raise StateError(
                    f"cannot use {self.path}: its tokens are of a vocabulary of {vocab}, not of {vocab_size}"
                )
            self.vocab_size = vocab or vocab_size
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.itemsize = size
        self.dtype = dtypes.BY_NAME[_CODES[size][1]]

    def _header(self, head: bytes, length: int) -> tuple[int, int, int, int]:
        if len(head) < LENGTH or head[: len(MAGIC)] != MAGIC:
            raise StateError(f"cannot read {self.path}: it is no file of tokens; write one with write_tokens")
        _, version, size, count, vocab, checksum = HEADER.unpack_from(head)
        if version > VERSION:
            raise StateError(f"cannot read {self.path}: it has version {version}, and this polygrad reads {VERSION}")
        (own,) = struct.unpack_from("<I", head, HEADER.size)
        if own != zlib.crc32(head[: HEADER.size]) or size not in _CODES:
            raise StateError(f"cannot read {self.path}: its header is damaged")
        if length != LENGTH + count * size:
            raise StateError(
                f"cannot read {self.path}: it has {length} bytes, and {count} tokens of {size} bytes need "
                f"{LENGTH + count * size}: it was cut short or added to"
            )
        return size, count, vocab, checksum

    def __len__(self) -> int:
        return self.count

    def verify(self) -> None:
        """Read the whole file and raise StateError unless its checksum fits."""
        found = 0
        for start in range(LENGTH, len(self._map), _CHUNK):
            found = zlib.crc32(self._map[start : start + _CHUNK], found)
        if found != self._checksum:
            raise StateError(f"cannot trust {self.path}: its tokens do not fit their checksum")

    def raw(self, start: int, count: int) -> bytes:
        """Return the bytes of *count* tokens from *start* on.

        Raises
        ------
        DataError
            If they are not all there.
        """
        if start < 0 or count < 0 or start + count > self.count:
            raise DataError(f"cannot take tokens {start} to {start + count} of {self.path}: it has {self.count}")
        first = LENGTH + start * self.itemsize
        return self._map[first : first + count * self.itemsize]

    def __getitem__(self, key: slice) -> Any:
        """Return tokens as a NumPy array."""
        start, stop, step = key.indices(self.count)
        if step != 1:
            raise DataError(f"cannot take every {step}th token of {self.path}: take a whole stretch")
        return self._numbers(self.raw(start, max(0, stop - start)))

    def _numbers(self, data: bytes) -> Any:
        if sys.byteorder == "big":
            words = array.array(_CODES[self.itemsize][0], data)
            words.byteswap()
            return interchange.as_numpy(words)
        return interchange.as_numpy(memoryview(data).cast(_CODES[self.itemsize][0]))  # type: ignore[call-overload]

    def rows(self, starts: Sequence[int], length: int, device: str | None = None) -> Array:
        """Return a row of *length* tokens for each start, on a device, in the file's dtype."""
        data = b"".join([self.raw(start, length) for start in starts])
        if sys.byteorder == "big":
            data = self._numbers(data).tobytes()
        return Array(interchange.from_bytes(memoryview(data), (len(starts), length), self.dtype, resolve(device)))

    def windows(self, length: int, stride: int | None = None) -> "TokenWindows":
        """Return a data set of windows of *length* tokens, *stride* apart (or *length*), and their successors."""
        return TokenWindows(self, length, stride)

    def random_windows(self, length: int, samples: int, seed: int = 0) -> "RandomWindows":
        """Return a data set of *samples* windows from anywhere, others in each epoch."""
        return RandomWindows(self, length, samples, seed)

    def __reduce__(self) -> Any:
        return TokenFile, (os.path.abspath(self.path), self.vocab_size)


class TokenWindows(Dataset):
    """Windows of tokens one after another: a sample is (tokens, the token after each).

    Raises
    ------
    DataError
        If the file has not one window.
    """

    def __init__(self, file: TokenFile, length: int, stride: int | None = None) -> None:
        self.file, self.length, self.stride = file, length, stride or length
        if length < 1 or self.stride < 1 or file.count < length + 1:
            raise DataError(
                f"cannot make windows of {length} tokens, {self.stride} apart, from {file.path}: it has {file.count} "
                "tokens, and a window and its successor need one more than its length"
            )

    def start(self, index: int) -> int:
        """Return where a window starts."""
        return index * self.stride

    def __len__(self) -> int:
        return (self.file.count - 1 - self.length) // self.stride + 1

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self._check([index])
        start = self.start(index)
        row = self.file[start : start + self.length + 1]
        return row[:-1].astype("int64"), row[1:].astype("int64")

    def batch(self, indices: Sequence[int]) -> tuple[Array, Array]:
        """Return windows together: uploaded once, in the file's dtype."""
        self._check(indices)
        rows = self.file.rows([self.start(k) for k in indices], self.length + 1)
        wide: Any = rows.astype(default_int(rows.device))
        return wide[:, :-1], wide[:, 1:]

    def _check(self, indices: Sequence[int]) -> None:
        for index in indices:
            if not 0 <= index < len(self):
                raise IndexError(f"cannot take window {index} of {len(self)}")


class RandomWindows(TokenWindows):
    """Windows from anywhere in a file: where number k of an epoch starts depends on the seed, the epoch and k alone."""

    def __init__(self, file: TokenFile, length: int, samples: int, seed: int = 0) -> None:
        super().__init__(file, length)
        if samples < 1:
            raise DataError(f"cannot make {samples} random windows: it must be at least 1")
        self.samples, self.seed, self.epoch = samples, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch: other windows."""
        self.epoch = epoch

    def start(self, index: int) -> int:
        """Return where a window starts."""
        return mixed(self.seed, self.epoch, index) % (self.file.count - self.length)

    def __len__(self) -> int:
        return self.samples
