"""Which drivers are installed, read from the metadata of distributions, and which of them the environment blocks.

Here: entry points and variables.
Not here: anything that imports a driver (`loader.py`).
"""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from polygrad.driver import messages

if TYPE_CHECKING:  # a quarter of the time that importing polygrad takes: loaded when somebody asks for drivers
    import importlib.metadata
    from collections.abc import Iterator

GROUP = "polygrad.drivers"
_log = logging.getLogger("polygrad.driver")


@dataclass
class Advertised:
    """The entry points of one name, with the (distribution, version) of each; more than one is a duplicate."""

    entries: list[tuple[importlib.metadata.EntryPoint, str, str]] = field(default_factory=list)

    @property
    def entry(self) -> importlib.metadata.EntryPoint:
        """The first entry point: the only one, unless this is a duplicate."""
        return self.entries[0][0]

    @property
    def package(self) -> str:
        """The top-level package that the entry point names."""
        return self.entry.value.partition(":")[0].partition(".")[0].strip()

    @property
    def is_duplicate(self) -> bool:
        """Whether several distributions advertise the name."""
        return len(self.entries) > 1

    def distributions(self) -> list[str]:
        """Return the names of the distributions."""
        return [d for _, d, _ in self.entries]

    def versions(self) -> list[str]:
        """Return the versions of the distributions."""
        return [v for _, _, v in self.entries]

    def sources(self) -> list[str]:
        """Return names and versions of the distributions, as text."""
        return [f"{d} {v}".strip() for _, d, v in self.entries]

    def source(self) -> str:
        """Return name and version of the first distribution, as text."""
        return self.sources()[0]

    def pip_extra(self, name: str) -> str:
        """Return what pip takes for the libraries of driver *name*, such as ``dist[name]``; empty if there is none."""
        distribution = self.entry.dist
        if distribution is None or name not in (distribution.metadata.get_all("Provides-Extra") or []):
            return ""
        return f"{self.entries[0][1]}[{name}]"


@functools.cache
def core_version() -> str:
    """Return the version of the installed polygrad, or ``(not installed)`` in a checkout."""
    import importlib.metadata  # noqa: PLC0415  see above

    try:
        return importlib.metadata.version(messages.DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _entry_points() -> Iterator[importlib.metadata.EntryPoint]:
    import importlib.metadata  # noqa: PLC0415  see above

    try:
        yield from list(importlib.metadata.entry_points(group=GROUP))
    except Exception:
        # One distribution with mangled metadata must not hide the drivers of the others: look at each by itself.
        for distribution in list(importlib.metadata.distributions()):
            yield from _entry_points_of(distribution)


def _entry_points_of(distribution: importlib.metadata.Distribution) -> list[importlib.metadata.EntryPoint]:
    try:
        return list(distribution.entry_points.select(group=GROUP))
    except Exception as error:
        _log.info("the entry points of a distribution cannot be read: %s", error)
        return []


def _identity(entry: importlib.metadata.EntryPoint) -> tuple[str, str]:
    try:
        metadata = None if entry.dist is None else entry.dist.metadata
    except (OSError, ValueError, ImportError):  # no file, no text, no metadata
        metadata = None
    named = metadata is not None and "Name" in metadata and "Version" in metadata
    return (
        (metadata["Name"], metadata["Version"]) if metadata is not None and named else ("a nameless distribution", "")
    )


def discover() -> dict[str, Advertised]:
    """Read the entry points of all distributions: driver name to who advertises it, in order of names."""
    found: dict[str, Advertised] = {}
    for entry in sorted(_entry_points(), key=lambda e: e.name):
        advertised = found.setdefault(entry.name, Advertised())
        described = (entry, *_identity(entry))
        if all((e.value, d, v) != (entry.value, *described[1:]) for e, d, v in advertised.entries):
            advertised.entries.append(described)
    for advertised in found.values():
        advertised.entries.sort(key=lambda e: e[1:])
    return found


def _listed(variable: str) -> list[str]:
    return [n.strip().lower() for n in os.environ.get(variable, "").split(",") if n.strip()]


def check_allowed(driver: str) -> None:
    """Raise DriverBlocked if the environment, as it is now, keeps *driver* from being imported."""
    only = _listed(messages.ONLY)
    if only and driver not in only:
        raise messages.blocked(driver, messages.ONLY, os.environ[messages.ONLY])
    if driver in _listed(messages.BLOCK):
        raise messages.blocked(driver, messages.BLOCK, os.environ[messages.BLOCK])
