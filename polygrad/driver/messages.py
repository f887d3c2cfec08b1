"""What finding, loading and opening a driver can fail with: the sentences.

Here: one function for each failure, from facts to the error that says them.
Not here: the checks that find the failures (`loader.py`, `binding.py`), and the classes (`polygrad.errors`).
"""

import difflib
from collections.abc import Iterable, Sequence

from polygrad.errors import (
    DeviceError,
    DeviceLost,
    DriverBlocked,
    DriverBroken,
    DriverError,
    DriverIncompatible,
    DriverNotFound,
    DriverUnavailable,
    OutOfMemory,
    UnsupportedOp,
)

DISTRIBUTION = "polygrad-array"  # what pip calls us: the short name belongs to another project
ONLY = "POLYGRAD_DRIVERS_ONLY"
BLOCK = "POLYGRAD_DRIVERS_BLOCK"
IN_PROCESS = "registered in this process"  # the source of a driver that came without a distribution
SHOW_TRACEBACK = "`python -m polygrad drivers -v` shows the traceback"

Version = tuple[int, int]


def sentence_of(error: BaseException) -> str:
    """Return ``Type: text`` of *error* on one line, the text alone for an error that polygrad or an import raised.

    >>> sentence_of(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    try:
        text = " ".join(str(error).split())
    except Exception:  # the class is the driver's or its vendor's
        text = "its message cannot be shown"
    if isinstance(error, (DriverError, ModuleNotFoundError)) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def origin(driver: str, source: str) -> str:
    """Return how a sentence calls a driver: its name, and the distribution that it came with."""
    return f"driver {driver!r} ({source})" if source else f"driver {driver!r}"


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the name in *known* that *word* was most likely meant to be, or an empty string."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), "")


def not_found(driver: str, known: Sequence[str]) -> DriverNotFound:
    """Say that no distribution advertises *driver*."""
    close = suggestion(driver, known)
    way_out = f"did you mean {close!r}?" if close else "install the distribution that provides it"
    return DriverNotFound(f"no installed driver is named {driver!r} (known: {', '.join(known) or 'none'}); {way_out}")


def blocked(driver: str, variable: str, value: str) -> DriverBlocked:
    """Say that the environment blocks *driver*."""
    if variable == ONLY:
        return DriverBlocked(
            f"driver {driver!r} is blocked: {ONLY}={value!r} does not name it; add it to that variable"
        )
    return DriverBlocked(f"driver {driver!r} is blocked by {BLOCK}={value!r}; take it out of that variable")


def duplicate(driver: str, sources: Sequence[str]) -> DriverError:
    """Say that several distributions advertise *driver*."""
    return DriverError(
        f"driver {driver!r} is advertised by {' and '.join(sources)}, so none is loaded; uninstall all but one"
    )


def taken(driver: str, source: str) -> DriverError:
    """Say that a driver of this name is loaded already."""
    return DriverError(f"{origin(driver, source)} is loaded already; pass replace=True to put another in its place")


def unavailable(driver: str, source: str, reason: str, requires: str, pip: str) -> DriverUnavailable:
    """Say that hardware or a library of *driver* is absent; *requires* and *pip* may be empty."""
    hints = [f"it requires {requires}" if requires else "", f"pip install {pip!r}" if pip else ""]
    way_out = ": ".join(h for h in hints if h) or "install what it needs"
    return DriverUnavailable(f"{origin(driver, source)} is unavailable: {reason}; {way_out}")


def broken(driver: str, source: str, doing: str, error: BaseException) -> DriverBroken:
    """Say that *driver* raised *error* when it was to be *doing*, a participle such as "imported"."""
    return faulty(driver, source, f"it could not be {doing}: {sentence_of(error)}", SHOW_TRACEBACK)


def taking_long(driver: str, source: str, doing: str, seconds: float) -> str:
    """Say that *driver* has been *doing* something, a participle such as "opened", for so long that it may hang."""
    return (
        f"{origin(driver, source)} is still being {doing} after {seconds:g} seconds; if it hangs, end this process and "
        f"set {BLOCK}={driver} to keep it out; `python -m polygrad doctor` tells where it hangs"
    )


def hanging(driver: str, source: str, seconds: float, where: str) -> str:
    """Say that *driver* gave no answer in time when it was tried; *where* is its place in the source, or empty."""
    place = f" (it was in {where})" if where else ""
    return (
        f"{origin(driver, source)} is broken: it gave no answer within {seconds:g} seconds{place}; "
        f"a larger --timeout tells a slow driver from one that hangs, {BLOCK}={driver} keeps it out"
    )


def crashed(driver: str, source: str, how: str, last_words: str) -> str:
    """Say that *driver* took the process down in which it was tried; *how* is such as "was ended by SIGSEGV"."""
    said = f"; its last words: {last_words}" if last_words else ""
    return (
        f"{origin(driver, source)} is broken: the process in which it was tried {how}{said}; "
        f"set {BLOCK}={driver} to keep it out, and tell its authors"
    )


def faulty(driver: str, source: str, fault: str, way_out: str) -> DriverBroken:
    """Say that *driver* breaks a rule of the interface."""
    return DriverBroken(f"{origin(driver, source)} is broken: {fault}; {way_out}")


def unknown_hook(driver: str, source: str, hook: str, known: Sequence[str]) -> DriverBroken:
    """Say that *driver* implements a hook that does not exist."""
    prefix = "polygrad_"  # alike in all of them, so it is no likeness
    close = suggestion(hook.removeprefix(prefix), [k.removeprefix(prefix) for k in known])
    close = close and prefix + close
    return faulty(driver, source, f"there is no hook {hook!r}", f"did you mean {close!r}?" if close else "rename it")


def refused(driver: str, source: str, complaint: str) -> DriverBroken:
    """Say that pluggy refused *driver*, with a *complaint* whose first line holds names known here."""
    lines = complaint.splitlines()
    return faulty(driver, source, "; ".join(lines[1:] or lines), "take only arguments that the hook has")


def incompatible(driver: str, source: str, what: str, theirs: Version, ours: Version, core: str) -> DriverIncompatible:
    """Say that *driver* speaks version *theirs* of *what* (interface or IR), and polygrad *ours*."""
    theirs_text, ours_text = (".".join(map(str, v)) for v in (theirs, ours))
    way_out = f"pip install --upgrade {DISTRIBUTION if theirs > ours else source.partition(' ')[0]}"
    if source == IN_PROCESS and theirs < ours:
        way_out = "bring it up to date"
    return DriverIncompatible(
        f"{origin(driver, source)} speaks {what} {theirs_text} and polygrad {core} speaks {ours_text}; {way_out}"
    )


def malformed(name: object) -> DeviceError:
    """Say that *name* is no device name."""
    return DeviceError(
        f"{name!r} is not a device name; write the name of a driver, and after a colon the number of a device, "
        "such as 'acme' or 'acme:1'"
    )


def no_such_ordinal(driver: str, ordinal: int, count: int) -> DeviceError:
    """Say that *driver* has fewer devices."""
    last = f"{driver}:0" if count == 1 else f"{driver}:0 to {driver}:{count - 1}"
    return DeviceError(
        f"{driver} has {count} device(s), so {driver}:{ordinal} does not exist; use {last} "
        "(`python -m polygrad devices` lists all)"
    )


def no_device_at_all(drivers: Sequence[str]) -> DriverUnavailable:
    """Say that none of *drivers* has a device."""
    asked = ", ".join(drivers) or "none is installed"
    return DriverUnavailable(f"no driver has a usable device (drivers: {asked}); `python -m polygrad doctor` says why")


def closed(device: str) -> DeviceError:
    """Say that *device* was closed."""
    return DeviceError(f"device {device} is closed; open it again with pg.set_device({device!r})")


def forked(device: str) -> DeviceLost:
    """Say that *device* was opened before a fork that its driver does not survive."""
    return DeviceLost(
        f"device {device} was opened before this process was forked, and its driver cannot be used in a child; "
        'start processes with multiprocessing.get_context("spawn")'
    )


def options_differ(device: str, have: object, want: object) -> DeviceError:
    """Say that *device* is open with other options."""
    return DeviceError(f"device {device} is open with options {have}, not {want}; close it first")


def out_of_memory(doing: str, error: BaseException) -> OutOfMemory:
    """Say that there was no memory for *doing* (such as "allocating 8 bytes on acme:0")."""
    return OutOfMemory(f"no room left while {doing}: {sentence_of(error)}; free arrays or take smaller ones")


def not_implemented(doing: str, error: BaseException) -> UnsupportedOp:
    """Say that the driver cannot do what it was asked for."""
    return UnsupportedOp(f"the driver does not implement {doing}: {sentence_of(error)}")


def failed(doing: str, error: BaseException, kind: type[DriverError]) -> DriverError:
    """Say that the driver failed while *doing* something."""
    return kind(f"the driver failed while {doing}: {sentence_of(error)}")


def no_handle(device: str, nbytes: int) -> DriverError:
    """Say that an allocation gave nothing."""
    return DriverError(
        f"the driver gave None for {nbytes} bytes on {device}; a handle is any other object, and no room is OutOfMemory"
    )
