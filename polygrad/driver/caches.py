"""Compiled programs on disk, so that a second process does not pay for the compiler again.

Here: a folder for each driver, files by key, atomic writes, a bound on their size.
Not here: what is in them, and what compiles it.

Processes may share a folder and write one entry at once: each writes a file of its own and renames it. The bound
works without locks: when a folder has outgrown it, the files that were unused for longest go, and a process that loses
one meanwhile compiles again. A file's time of change is when it was last used: file systems seldom keep times of
access.
"""

import contextlib
import hashlib
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

from polygrad.errors import DriverUnavailable

LIMIT = 256  # MiB, of each driver
KEPT = 0.75  # of the limit, after files had to go: so that the next look at the folder is far
TYPICAL = 64 << 10  # bytes of a compiled kernel, where its owner writes it
ABANDONED = 3600.0  # seconds after which an unfinished file belongs to no living process
_MIB = 1 << 20
_DIGEST = hashlib.sha256().digest_size
_PART = ".part"


def cache_root() -> pathlib.Path:
    """Return POLYGRAD_CACHE_DIR if it is set, else ``polygrad`` in the user's cache folder on this system."""
    chosen = os.environ.get("POLYGRAD_CACHE_DIR")
    if chosen:
        return pathlib.Path(chosen)
    if os.name == "nt":
        root = os.environ.get("LOCALAPPDATA") or pathlib.Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        root = pathlib.Path.home() / "Library" / "Caches"
    else:
        root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(root) / "polygrad"


def cache_folder(driver: str) -> pathlib.Path:
    """Return the folder of *driver*; it need not exist.

    Examples
    --------
    >>> cache_folder("acme").name
    'acme'
    """
    return cache_root() / driver


def cache_limit() -> int:
    """Return how many bytes a driver's folder may hold: POLYGRAD_CACHE_LIMIT in MiB, 256 if it is not set.

    Raises
    ------
    DriverUnavailable
        If the variable is no number.
    """
    chosen = os.environ.get("POLYGRAD_CACHE_LIMIT", "").strip()
    try:
        limit = float(chosen) if chosen else float(LIMIT)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < 2**40:
        raise DriverUnavailable(
            f"POLYGRAD_CACHE_LIMIT is {chosen!r}; give a number of MiB of compiled kernels, such as {LIMIT}, or 0"
        )
    return int(limit * _MIB)


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


class ProgramCache:
    """Compiled programs by key, in one folder of a bounded size; those unused for longest make room.

    Parameters
    ----------
    folder : Path
        It need not exist. One that cannot be written to is no error: the cache is then empty.
    limit : int, optional
        In bytes; `cache_limit()` if it is not given. With 0 nothing is kept.

    Examples
    --------
    >>> folder = tempfile.TemporaryDirectory()
    >>> cache = ProgramCache(pathlib.Path(folder.name))
    >>> cache.store("k", b"code")
    >>> cache.load("k"), cache.load("absent")
    (b'code', None)
    >>> folder.cleanup()
    """

    def __init__(self, folder: pathlib.Path, limit: int | None = None) -> None:
        self.folder = folder
        self.limit = cache_limit() if limit is None else limit
        self._unseen: int | None = None  # bytes that may be added before the folder must be looked at
        self._lock = threading.Lock()

    def path(self, key: str, suffix: str = ".bin") -> pathlib.Path:
        """Return where the entry of *key* lives."""
        return self.folder / f"{key}{suffix}"

    # ---- entries of bytes, which open with their digest: a torn or damaged one is a miss ------------------

    def load(self, key: str) -> bytes | None:
        """Return what was stored under *key*, or None if it is absent or damaged."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        body = data[_DIGEST:]
        if hashlib.sha256(body).digest() != data[:_DIGEST]:
            return None
        touched(path)
        return body

    def store(self, key: str, binary: bytes) -> None:
        """Store *binary* under *key*, in place of what was there."""
        if self.limit < len(binary):
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=_PART)
            made = pathlib.Path(name)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(binary).digest() + binary)
                made.replace(self.path(key))
            except OSError:
                made.unlink(missing_ok=True)
                raise
            self.added(len(binary))

    def drop(self, key: str) -> None:
        """Forget an entry that the runtime did not accept."""
        with contextlib.suppress(OSError):
            self.path(key).unlink(missing_ok=True)

    # ---- entries that their owner writes and reads, such as shared libraries ---------------------------------

    def claim(self, path: pathlib.Path) -> bool:
        """Return whether the file at *path* is there, which counts as a use; if not, make room for its owner's one.

        The owner writes it beside its place and moves it there. It does not lose it before the next claim.
        """
        if touched(path):
            return True
        self.added(TYPICAL)
        return False

    # ---- the bound ----------------------------------------------------------------------------------------

    def added(self, nbytes: int) -> None:
        """Say that *nbytes* were written to the folder; looks at it, and trims it, once enough has been.

        A look costs a millisecond for a few hundred files: one is made at the first write of a process, and when what
        it wrote since might have filled the folder, or an eighth of the limit (other processes write too).
        """
        with self._lock:
            if self._unseen is not None and self._unseen >= nbytes:
                self._unseen -= nbytes
                return
            total = self.trim()
            self._unseen = max(0, min(self.limit - total, self.limit // 8))

    def trim(self) -> int:
        """Remove files until the folder holds no more than the limit; return how many bytes are left."""
        files = sorted(self._files(), reverse=True)  # those used last come first
        total = sum(size for _, size, _ in files)
        if total <= self.limit:
            return total
        while files and total > self.limit * KEPT:
            _, size, path = files.pop()
            with contextlib.suppress(OSError):  # another process was faster, or holds it open on Windows
                path.unlink()
                total -= size
        return total

    def _files(self) -> Iterator[tuple[float, int, pathlib.Path]]:
        """Yield (last use, bytes, path) of each file; unfinished ones of processes that died go at once."""
        now = time.time()
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # it may be gone by now
                    if not entry.is_file(follow_symlinks=False):
                        continue
                    found = entry.stat(follow_symlinks=False)
                    if not entry.name.endswith(_PART):
                        yield found.st_mtime, found.st_size, pathlib.Path(entry.path)
                    elif now - found.st_mtime > ABANDONED:
                        pathlib.Path(entry.path).unlink()


def touched(path: pathlib.Path) -> bool:
    """Note that a file was used just now, and return whether it is there; a folder for reading only keeps its times."""
    try:
        os.utime(path)
    except OSError:
        return path.exists()
    return True
