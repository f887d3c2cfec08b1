"""Calls of hooks: which function a hook comes to, and what its exceptions become.

Here: binding one hook of one driver, and the wrapping of what it raises.
Not here: open devices (`device.py`).

pluggy is the contract and the point of interception, not the hot path: as long as the driver alone implements a hook,
its function is called directly; while another plugin implements it too (a tracer, a fault injector), every call goes
through pluggy.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from polygrad.driver import messages
from polygrad.driver.loader import Registry
from polygrad.errors import DriverError, PolygradError

Hook = Callable[..., Any]


def bound_hook(registry: Registry, plugin: Any, hook: str) -> Hook:
    """Return *hook* of the driver *plugin* as a function of the hook's arguments, in the order of the specification.

    It is the driver's own function if nobody else implements the hook, one that gives None if nobody does at all, else
    pluggy's caller with the other drivers left out.
    """
    others = [d for d in registry.loaded.values() if d.plugin is not plugin]
    manager = registry.plugins
    caller = manager.subset_hook_caller(hook, [p for d in others for p in (d.plugin, d.shortcut)])
    shortcuts = {d.shortcut for d in registry.loaded.values()}
    impls = [i for i in caller.get_hookimpls() if i.plugin not in shortcuts]
    assert caller.spec is not None  # noqa: S101  the registry added it
    names = caller.spec.argnames
    if not impls:
        return lambda *_arguments: None
    if len(impls) == 1 and impls[0].plugin is plugin and not (impls[0].wrapper or impls[0].hookwrapper):
        return _adapted(impls[0].function, impls[0].argnames, names)
    return lambda *arguments: caller(**dict(zip(names, arguments, strict=True)))


def _adapted(function: Hook, takes: Sequence[str], given: Sequence[str]) -> Hook:
    """Return *function* as one of the arguments *given*; it *takes* some of them, in any order."""
    if tuple(takes) == tuple(given):
        return function
    places = [given.index(name) for name in takes]
    if len(places) <= 1:  # an itemgetter of one place gives no tuple
        return lambda *arguments: function(*(arguments[p] for p in places))
    pick = operator.itemgetter(*places)
    return lambda *arguments: function(*pick(arguments))


def fail(error: Exception, doing: str, kind: type[DriverError]) -> NoReturn:
    """Raise *error*, met while *doing* something: as it is if it is ours, else as the cause of a DriverError."""
    if isinstance(error, PolygradError):
        error.add_note(f"while {doing}")
        raise error
    if isinstance(error, MemoryError):
        raise messages.out_of_memory(doing, error) from error
    if isinstance(error, NotImplementedError):
        raise messages.not_implemented(doing, error) from error
    raise messages.failed(doing, error, kind) from error
