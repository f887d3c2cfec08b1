"""The safetensors container, read and written array by array, with a checksum over all of it.

Here: header, offsets, bytes.
Not here: what the arrays mean (`checkpoints.py`); files of models for others (`safetensors_files.py`).

The layout is that of the safetensors format: eight bytes with the header's length, a JSON header, the arrays. Ours adds
to ``__metadata__`` a checksum, SHA-256 over the metadata, the entries and the bytes of the arrays. It is filled in when
all has been written, so that no more than one array need be on the host at a time.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Mapping
from typing import Any

from polygrad.array import interchange
from polygrad.array.config import resolve
from polygrad.array.evaluation import realize
from polygrad.array.files import replacing
from polygrad.array.object import Array
from polygrad.errors import DTypeError, StateError
from polygrad.io.safetensors_files import _DTYPES, _LENGTH_BYTES, _NAMES

CHECKSUM = "sha256"
_EMPTY = "0" * 64
_ALIGN = 8
_CHUNK = 1 << 24


def write_container(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Array],
    metadata: Mapping[str, str],
    previous: str | os.PathLike[str] | None = None,
) -> None:
    """Write arrays and text to a file, which takes the place of *path* whole or not at all.

    Raises
    ------
    DTypeError
        If an array has a dtype that such files cannot hold; nothing was written.
    OSError
        If the disk is full, say; what was there before is unharmed.
    """
    for name, array in arrays.items():
        if array.dtype.name not in _NAMES:
            raise DTypeError(f"cannot save {name}: safetensors files hold no {array.dtype.name}")
    realize(list(arrays.values()))
    ordered = sorted(arrays, key=lambda n: (-arrays[n].dtype.itemsize, n))  # so each lies at a multiple of its size
    entries, end = {}, 0
    for name in ordered:
        a = arrays[name]
        entries[name] = {"dtype": _NAMES[a.dtype.name], "shape": list(a.shape), "data_offsets": [end, end + a.nbytes]}
        end += a.nbytes
    digest = _begun(metadata, entries)
    head = _header({**metadata, CHECKSUM: _EMPTY}, entries)
    with replacing(path, previous) as file:
        file.write(len(head).to_bytes(_LENGTH_BYTES, "little") + head)
        for name in ordered:
            data = interchange.as_bytes(interchange.to_numpy(arrays[name].detach()._node))
            digest.update(data)
            file.write(data)
        file.seek(_LENGTH_BYTES)
        file.write(_header({**metadata, CHECKSUM: digest.hexdigest()}, entries))


def _header(metadata: Mapping[str, str], entries: Mapping[str, Any]) -> bytes:
    text = json.dumps({"__metadata__": dict(metadata), **entries}, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % _ALIGN)


def _begun(metadata: Mapping[str, str], entries: Mapping[str, Any]) -> Any:
    """Return a checksum of all but the arrays' bytes."""
    text = json.dumps([dict(metadata), dict(entries)], separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode())


class Container:
    """A file open for reading: its header is checked, its arrays are read when asked for.

    Raises
    ------
    StateError
        If the file is no such container, or its header lies about its size.
    FileNotFoundError
        If there is no such file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
                raise StateError(f"cannot read {self.path}: it is damaged or no safetensors file")
            try:
                header = json.loads(file.read(length))
                self.metadata: dict[str, str] = dict(header.pop("__metadata__", None) or {})
            except (ValueError, AttributeError, TypeError):
                raise StateError(f"cannot read {self.path}: it is damaged or no safetensors file") from None
            self._map: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._start = _LENGTH_BYTES + length
        self.entries: dict[str, dict[str, Any]] = header
        self._check(size - self._start)

    def _check(self, room: int) -> None:
        end = 0
        for name, entry in sorted(self.entries.items(), key=lambda pair: _offsets(pair[1])):
            first, last = _offsets(entry)
            shape, dtype = entry.get("shape"), _DTYPES.get(str(entry.get("dtype")))
            count = 1
            for n in shape if isinstance(shape, list) and all(isinstance(n, int) for n in shape) else [-1]:
                count *= n
            if first != end or count < 0 or (dtype is not None and last - first != count * dtype.itemsize):
                raise StateError(f"cannot read {self.path}: the entry of {name} is damaged")
            end = last
        if end != room:
            raise StateError(
                f"cannot read {self.path}: its arrays need {end} bytes, and it has {room}: it was cut short or added to"
            )

    def verify(self) -> None:
        """Raise StateError unless the checksum fits everything."""
        wanted = self.metadata.get(CHECKSUM)
        digest = _begun({k: v for k, v in self.metadata.items() if k != CHECKSUM}, self.entries)
        for start in range(self._start, len(self._map), _CHUNK):
            digest.update(self._map[start : start + _CHUNK])
        if digest.hexdigest() != wanted:
            raise StateError(f"cannot load {self.path}: its checksum does not fit, so it is torn or damaged")

    def array(self, name: str, device: Any = None) -> Array:
        """Return an array on a device."""
        entry = self.entries[name]
        dtype = _DTYPES.get(str(entry["dtype"]))
        if dtype is None:
            raise StateError(f"cannot load {self.path}: {name} has dtype {entry['dtype']}, which polygrad has not")
        first, last = _offsets(entry)
        data = self._map[self._start + first : self._start + last]
        try:
            return Array(interchange.from_bytes(memoryview(data), tuple(entry["shape"]), dtype, resolve(device)))
        except DTypeError as error:
            raise DTypeError(f"cannot load {name} of {self.path}: {error}") from None

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()


def _offsets(entry: Any) -> tuple[int, int]:
    found = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(found, list) or [type(n) for n in found] != [int, int]:
        return -1, -1
    return found[0], found[1]
