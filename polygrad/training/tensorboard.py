"""TensorBoardLog: figures of a run as event files, which TensorBoard and its relatives show.

Here: the event messages, the framing of records and their checksums, written without any other package.
Not here: what is common to all logs (`log.py`).

A file is a sequence of records: length (8 bytes, little-endian), masked CRC-32C of it, the message, its masked CRC-32C.
Messages are protocol buffers; the few fields that are used here have these numbers (tensorflow/core/util/event.proto
and framework/summary.proto): Event has 1 wall_time (double), 2 step (int64), 3 file_version (string), 5 summary,
7 session_log; Summary has 1 value, repeated; its Value has 1 tag (string), 2 simple_value (float); SessionLog has
1 status, of which 1 is START.

The usual writer's package is not used: it writes in a thread whose death by a full disk nobody hears of, after which
the loop waits for ever; and what it holds is minutes old, and lost when the process is killed.
"""

import math
import os
import struct
import time
from pathlib import Path

from polygrad.training.log import Log

_POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), reversed
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_LARGEST = 3.4028234663852886e38  # float32
_START = 1


class TensorBoardLog(Log):
    """An event file with one event for each call of `write`, which is in the file when it returns.

    Parameters
    ----------
    folder : path
        The run's folder, made if it is not there. Each log makes a file of its own in it.
    resume_at : int, optional
        What the files that are there hold of later steps is void, says the new one: viewers leave it out.
    on_error : {"warn", "raise"}
        What to do if an event cannot be written, because the disk is full, say: warn once and try again with the next,
        or raise OSError.

    Raises
    ------
    OSError
        If the file cannot be made.

    Examples
    --------
    >>> import os, tempfile
    >>> from polygrad.training import TensorBoardLog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with TensorBoardLog(folder) as log:
    ...         log.write(1, loss=2.5)
    ...     len(os.listdir(folder))
    1
    """

    def __init__(self, folder: str | os.PathLike[str], resume_at: int | None = None, *, on_error: str = "warn") -> None:
        now = time.time_ns()
        name = f"events.out.tfevents.{now // 10**9:010d}.{now % 10**9:09d}.{os.getpid()}.polygrad"  # sorted by time
        super().__init__(Path(folder) / name, on_error)
        self._open("x")
        self._waiting.append(_framed(_event(_field(3, b"brain.Event:2"))))
        if resume_at is not None:
            restarted = _field(7, _number(1, _START))
            self._waiting.append(_framed(_event(_number(2, int(resume_at) + 1) + restarted)))
        self._drain()

    def _record(self, step: int, figures: dict[str, int | float]) -> bytes:
        values = b"".join(
            _field(1, _field(1, name.encode()) + _tag(2, _FIXED32) + struct.pack("<f", _narrow(value)))
            for name, value in figures.items()
        )
        return _framed(_event(_number(2, step) + _field(5, values)))

    def _drain(self) -> None:
        while self._waiting:
            self._append(self._waiting[0])
            del self._waiting[0]


def _narrow(value: float) -> float:
    """Return a number that float32 can hold: infinity for what is too large."""
    return math.copysign(math.inf, value) if abs(value) > _LARGEST else float(value)


def _varint(value: int) -> bytes:
    """Return an integer in groups of seven bits, the lowest first; a negative one as 64 bits of two's complement.

    >>> _varint(300).hex(), len(_varint(-1))
    ('ac02', 10)
    """
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004  seven bits
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _number(field: int, value: int) -> bytes:
    return _tag(field, _VARINT) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _tag(field, _BYTES) + _varint(len(content)) + content


def _event(rest: bytes) -> bytes:
    return _tag(1, _FIXED64) + struct.pack("<d", time.time()) + rest


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes.

    >>> hex(crc32c(b"123456789"))  # the check value of RFC 3720 and others
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _framed(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + _masked(length) + message + _masked(message)
