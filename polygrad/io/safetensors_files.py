"""safetensors files: names, dtypes, shapes and bytes, without code that runs on loading.

Here: saving in one atomic step, loading with the checks.
Not here: which arrays a model has (`Module.state_dict`).

The format is the `safetensors` package's (extra ``io``); it is imported when a file is read or written.
"""

import ctypes
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polygrad import dtypes
from polygrad.array import interchange
from polygrad.array.config import resolve
from polygrad.array.evaluation import realize
from polygrad.array.files import replacing
from polygrad.array.object import Array
from polygrad.errors import DTypeError, StateError

_NAMES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    **{f"int{n}": f"I{n}" for n in (8, 16, 32, 64)},
    **{f"uint{n}": f"U{n}" for n in (8, 16, 32, 64)},
    **{f"float{n}": f"F{n}" for n in (16, 32, 64)},
    "complex64": "C64",
}
_DTYPES = {code: dtypes.BY_NAME[name] for name, code in _NAMES.items()}
_LENGTH_BYTES = 8  # the header's length, little-endian, before the header


def _package() -> Any:
    try:
        import safetensors  # noqa: PLC0415  an optional package
    except ImportError:
        raise StateError("safetensors files need the package safetensors: pip install 'polygrad-array[io]'") from None
    return safetensors


def save_safetensors(
    arrays: Mapping[str, Array], path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays to a file, which appears whole or not at all.

    Parameters
    ----------
    arrays : mapping of names to arrays
        On any devices; gradients are not written.
    path : path
        The file; one that is there is replaced, but only once the new one is complete and on the disk.
    metadata : mapping of str to str, optional
        Kept in the header.

    Raises
    ------
    StateError
        If the package is missing, or a name or metadata value is not text.
    DTypeError
        If an array has a dtype that such files cannot hold: complex128.
    OSError
        If the file cannot be written; one that was there before is unharmed.

    Examples
    --------
    >>> import os, tempfile
    >>> import polygrad as pg
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pg.io.save_safetensors({"w": pg.asarray([1.0, 2.0])}, os.path.join(folder, "w.safetensors"))
    ...     pg.io.load_safetensors(os.path.join(folder, "w.safetensors"))
    {'w': Array([1., 2.], dtype=float64, device='cpu:0')}
    """
    package = _package()
    if not isinstance(arrays, Mapping):
        raise StateError(f"cannot save {type(arrays).__name__}: give names and arrays as a dict, and then the path")
    if not all(isinstance(text, str) for pair in (metadata or {}).items() for text in pair) or not all(
        isinstance(n, str) for n in arrays
    ):
        raise StateError("cannot save: names and metadata of a safetensors file are text")
    realize(list(arrays.values()))
    held, entries = [], {}
    for name, array in arrays.items():
        if array.dtype.name not in _NAMES:
            raise DTypeError(
                f"cannot save {name}: safetensors files hold no {array.dtype.name}; convert with .astype(...)"
            )
        data = bytearray(max(1, array.nbytes))
        data[: array.nbytes] = interchange.as_bytes(interchange.to_numpy(array._node))
        held.append(data)  # the package is given addresses: the memory must outlive the call
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        entries[name] = package.TensorSpec(
            dtype=array.dtype.name, shape=list(array.shape), data_ptr=address, data_len=array.nbytes
        )
    content = bytes(package.serialize(entries, dict(metadata) if metadata else None))
    held.clear()
    with replacing(path) as file:
        file.write(content)


def load_safetensors(path: str | os.PathLike[str], device: Any = None) -> dict[str, Array]:
    """Return the arrays of a file by name.

    Parameters
    ----------
    path : path
        The file.
    device : str, optional
        Where the arrays go; the default device unless given.

    Raises
    ------
    StateError
        If the file is not whole, its header lies, or it holds a dtype that polygrad has not.
    FileNotFoundError
        If there is no such file.
    """
    package = _package()
    content = Path(path).read_bytes()
    try:
        entries = package.deserialize(content)
    except package.SafetensorError as error:
        raise StateError(f"cannot load {os.fspath(path)}: it is damaged or no safetensors file ({error})") from None
    name_of_device = resolve(device)
    out = {}
    for name, entry in sorted(entries):
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise StateError(
                f"cannot load {os.fspath(path)}: {name} has dtype {entry['dtype']}, which polygrad has not"
            )
        data = memoryview(bytes(entry["data"]))
        try:
            out[name] = Array(interchange.from_bytes(data, tuple(entry["shape"]), dtype, name_of_device))
        except DTypeError as error:
            raise DTypeError(f"cannot load {name} of {os.fspath(path)}: {error}") from None
    return out


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a file, without its arrays."""
    with Path(path).open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > os.fstat(file.fileno()).st_size - _LENGTH_BYTES:
            raise StateError(
                f"cannot read {os.fspath(path)}: it is damaged or no safetensors file (its header is longer than the "
                "file)"
            )
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise StateError(f"cannot read {os.fspath(path)}: it is damaged or no safetensors file ({error})") from None
    return dict(header.get("__metadata__", {}))
