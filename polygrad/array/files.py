"""Files that appear whole or not at all.

Here: writing beside a file, and taking its place in one step.
Not here: what is in it.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], previous: str | os.PathLike[str] | None = None) -> Iterator[IO[bytes]]:
    """Yield a binary file that takes the place of *path* when the block ends well, once it is complete and on the disk.

    If the block raises, or the disk is full, what was there before is unharmed. If the process is killed a file called
    ``.NAME.*.part`` may be left, which `parts_of` finds.

    Parameters
    ----------
    path : path
        The file.
    previous : path, optional
        What the file that was there is called afterwards; at no moment is there neither.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(os.path.join(folder, "a")) as file:
    ...         _ = file.write(b"all of it")
    ...     os.listdir(folder)
    ['a']
    """
    target = Path(path)
    handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, 0o666 & ~_umask())
        if previous is not None:
            _keep(target, Path(previous))
        os.replace(beside, target)
        _settle(target.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        raise


def _keep(target: Path, previous: Path) -> None:
    """Give a file a second name, which another file may have had."""
    if not target.exists():
        return
    link = previous.with_name(f".{previous.name}.{os.getpid()}.part")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(link)
    try:
        os.link(target, link)
    except OSError:  # a file system without hard links: for a moment only the previous name exists
        os.replace(target, previous)
        return
    os.replace(link, previous)


def _settle(folder: Path) -> None:
    """Bring a folder's names to the disk, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def parts_of(path: str | os.PathLike[str]) -> list[Path]:
    """Return the unfinished files that a killed process has left beside *path*."""
    target = Path(path)
    return [p for p in target.parent.glob(".*.part") if p.name.startswith(f".{target.name}.")]


def _umask() -> int:
    mask = os.umask(0)  # the only way to read it is to set it
    os.umask(mask)
    return mask
