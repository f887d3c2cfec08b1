"""Compiled programs on disk, so that a second process does not pay for the compiler again.

Here: files, keys, atomic writes. Not here: OpenCL.

A file holds a digest of its contents before them: a torn or corrupted file is a miss, and is replaced by the next
build. Processes may write one entry at once; each writes a file of its own and renames it.
"""

import contextlib
import hashlib
import os
import pathlib
import sys
import tempfile

_DIGEST = hashlib.sha256().digest_size


def default_folder() -> pathlib.Path:
    """Return the folder of cached programs: POLYGRAD_CACHE_DIR, else the user's cache folder as the system has it."""
    chosen = os.environ.get("POLYGRAD_CACHE_DIR")
    if chosen:
        return pathlib.Path(chosen) / "opencl"
    if os.name == "nt":
        root = os.environ.get("LOCALAPPDATA") or str(pathlib.Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        root = str(pathlib.Path.home() / "Library" / "Caches")
    else:
        root = os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path.home() / ".cache")
    return pathlib.Path(root) / "polygrad" / "opencl"


def key_of(*parts: str) -> str:
    """Return the key of a program: a digest of everything that decides what the compiler would give.

    >>> key_of("ab", "c") == key_of("a", "bc")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


class BinaryCache:
    """Binaries by key, in one folder.

    Examples
    --------
    >>> folder = tempfile.TemporaryDirectory()
    >>> cache = BinaryCache(pathlib.Path(folder.name))
    >>> cache.store("k", b"code")
    >>> cache.load("k"), cache.load("absent")
    (b'code', None)
    >>> folder.cleanup()
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def path(self, key: str) -> pathlib.Path:
        """Return where the entry of *key* lives."""
        return self.folder / f"{key}.bin"

    def load(self, key: str) -> bytes | None:
        """Return what was stored under *key*, or None if it is absent or damaged."""
        try:
            data = self.path(key).read_bytes()
        except OSError:
            return None
        body = data[_DIGEST:]
        return body if hashlib.sha256(body).digest() == data[:_DIGEST] else None

    def store(self, key: str, binary: bytes) -> None:
        """Store *binary* under *key*; a folder that cannot be written to is no error, the cache is then empty."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(binary).digest() + binary)
                pathlib.Path(name).replace(self.path(key))
            except OSError:
                pathlib.Path(name).unlink(missing_ok=True)
                raise

    def drop(self, key: str) -> None:
        """Forget an entry that the runtime did not accept."""
        with contextlib.suppress(OSError):
            self.path(key).unlink(missing_ok=True)
