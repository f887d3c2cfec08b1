"""Which checks apply to a device: what it declares, and what its driver says in its `Requirements`.

Here: capabilities as words, and the verdict for one check.
Not here: outcomes (`outcome.py`).
"""

import datetime as dt
import fnmatch
from collections.abc import Iterable
from typing import Any, NamedTuple

from polygrad.driver import DeviceInfo, ExpectedFailure, Requirements
from polygrad.driver.binding import Device
from polygrad.driver.calls import bound_hook
from polygrad.driver.loader import Registry
from polygrad_conformance.checks import TIERS, Check


class Gate(NamedTuple):
    """What is to be made of one check: at most one of the fields is set; none means that it must pass."""

    lacks: str = ""  # the capability that is not declared
    unsupported: str = ""  # the driver's reason
    expected: ExpectedFailure | None = None


def capabilities(info: DeviceInfo) -> frozenset[str]:
    """Return what *info* declares, as words that checks can need.

    >>> info = DeviceInfo("toy", 0, "a toy", dtypes=frozenset({"float32"}))
    >>> sorted(c for c in capabilities(info) if c.startswith(("dtype", "reduction", "limit", "thread")))
    ['dtype.float32', 'reduction.max', 'reduction.sum', 'thread_safety.serialised']
    """
    features = info.features
    return frozenset({
        *(f"dtype.{d}" for d in info.dtypes),
        *(f"scalar.{s}" for s in info.scalar_ops),
        *(f"reduction.{r}" for r in info.reductions),
        *(f"op.{o}" for o in info.ops or ()),
        *(f"feature.{name}" for name, value in vars(features).items() if value is True),
        f"thread_safety.{features.thread_safety}",
        *(["limit.max_alloc"] if info.limits.max_alloc < 1 << 62 else []),
    })  # fmt: skip


def requirements_of(registry: Registry, device: Device) -> Requirements:
    """Return what the driver of *device* ships, or an empty Requirements.

    Raises
    ------
    TypeError
        If the driver answers with something else.
    """
    plugin = registry.loaded[device.info.driver].plugin
    found = bound_hook(registry, plugin, "polygrad_requirements")(device.info)
    if found is None:
        return Requirements()
    if not isinstance(found, Requirements):
        raise TypeError(f"polygrad_requirements() of {device.name} gave {found!r}; give a Requirements or None")
    return found


def gate(check: Check, have: frozenset[str], wanted: Requirements) -> Gate:
    """Return the verdict on *check* for a device with the capabilities *have*."""
    lacks = [need for need in check.needs if need not in have]
    if lacks:
        return Gate(lacks=lacks[0])
    for pattern, reason in wanted.unsupported.items():
        if fnmatch.fnmatchcase(check.id, pattern):
            return Gate(unsupported=reason)
    for pattern, expected in wanted.expected_failure.items():
        if fnmatch.fnmatchcase(check.id, pattern):
            return Gate(expected=expected)
    return Gate()


def stale(wanted: Requirements, checks: Iterable[Check], today: dt.date | None = None) -> list[str]:
    """Return a sentence for each expectation that is not allowed, matches nothing, or has expired."""
    today = today or dt.datetime.now(tz=dt.UTC).date()
    known, found = list(checks), []
    patterns: dict[str, Any] = {**wanted.unsupported, **wanted.expected_failure}
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(c.id, pattern) for c in known):
            found.append(f"{pattern} matches no test of this suite; correct or remove it")
    for pattern, expected in wanted.expected_failure.items():
        matched = [c for c in known if fnmatch.fnmatchcase(c.id, pattern)]
        if dt.date.fromisoformat(expected.until) < today:
            found.append(f"{pattern} was expected to fail until {expected.until}; mend it or set a new date")
        core = [c.id for c in matched if c.level <= TIERS["core"]]
        if core:
            found.append(
                f"{pattern} expects {core[0]} to fail, which is below level {TIERS['core'] + 1}; none there may"
            )
        drawn = [c.id for c in matched if c.random]
        if drawn:
            found.append(f"{pattern} expects {drawn[0]} to fail, which draws random kernels; no such test may")
    return found
