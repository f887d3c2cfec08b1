"""What a compiled function depends on beside its arguments: names that it closes over, globals, attributes.

Here: `Environment`, which looks at a function once and tells later whether anything has changed since.
Not here: arrays, whose values are read anew at each call; hidden inputs (`capturing.py`).

Followed are closures, globals and defaults of the function and of the functions that these hold, and attributes of
objects, lists, tuples and dicts in them; of the classes of objects, and of classes, what these functions name: methods,
properties, values. Numbers, text and their like are compared, everything else counts by identity.
What looks after itself while it is captured (optimisers, schedules) has an attribute ``captures_itself``.
"""

import functools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from polygrad.array.object import Array

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_MISSING = object()
_OTHERS = ("polygrad", "numpy", "builtins")
LIMIT = 20_000  # things that are looked at


class Environment:
    """What a function finds, as it is now.

    >>> factor = 2.0
    >>> def double(x):
    ...     return x * factor
    >>> double.__module__ = "mine"  # polygrad's own functions are not followed
    >>> found = Environment(double)
    >>> found.changed()
    >>> double.__globals__["factor"] = 3.0
    >>> found.changed()
    'factor was 2.0 and is 3.0'
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._cells: list[tuple[types.CellType, Any, str]] = []
        self._entries: list[tuple[Mapping[Any, Any], Any, Any, str]] = []
        self._slots: list[tuple[Callable[[], Any], str, Any, str]] = []
        self._sizes: list[tuple[dict[Any, Any], int, str]] = []
        self._lists: list[tuple[list[Any], tuple[Any, ...], str]] = []
        self._seen: dict[int, Any] = {}  # kept, so that ids stay theirs
        self._named: set[str] = set()  # in the functions that were followed
        self._classes: dict[type, set[str]] = {}  # with the names that were looked up in each
        self._follow(function, "")

    def changed(self) -> str | None:
        """Return in a few words what has changed; None if nothing has."""
        for cell, was, name in self._cells:
            try:
                now = cell.cell_contents
            except ValueError:  # it is empty
                now = _MISSING
            if now is not was and not _same(now, was):
                return _told(name, was, now)
        for mapping, key, was, name in self._entries:
            now = mapping.get(key, _MISSING)
            if now is not was and not _same(now, was):
                return _told(name, was, now)
        for find, slot, was, name in self._slots:
            now = getattr(find(), slot, _MISSING)
            if now is not was and not _same(now, was):
                return _told(name, was, now)
        for mapping, size, name in self._sizes:
            if len(mapping) != size:
                return f"{name or 'an object'} had {size} attributes and has {len(mapping)}"
        for items, was_items, name in self._lists:
            if len(items) != len(was_items):
                return f"{name} had {len(was_items)} items and has {len(items)}"
            for now, was in zip(items, was_items, strict=True):
                if now is not was and not _same(now, was):
                    return _told(f"an item of {name}", was, now)
        return None

    def _follow(self, thing: Any, name: str) -> None:
        waiting = [(thing, name)]
        while (waiting or (waiting := list(self._of_classes()))) and len(self._seen) < LIMIT:
            found, called = waiting.pop()
            if isinstance(found, weakref.ref):  # what is held weakly is not kept alive by this either
                found = found()
                if id(found) in self._seen or _opaque(found):
                    continue
                self._seen[id(found)] = None
            elif id(found) in self._seen or _opaque(found):
                continue
            else:
                self._seen[id(found)] = found
            waiting += list(self._parts(found, called))

    def _parts(self, thing: Any, name: str) -> Iterator[tuple[Any, str]]:
        if isinstance(thing, types.MethodType):
            yield thing.__func__, name
            yield thing.__self__, name or "self"
        elif isinstance(thing, types.FunctionType):
            yield from self._function(thing)
        elif isinstance(thing, functools.partial):
            yield from ((part, name) for part in (thing.func, thing.args, thing.keywords))
        elif isinstance(thing, dict):
            yield from self._mapping(thing, name)
        elif isinstance(thing, list):
            self._lists.append((thing, tuple(thing), name))
            yield from ((item, f"{name}[{k}]") for k, item in enumerate(thing))
        elif isinstance(thing, (tuple, set, frozenset)):
            yield from ((item, name) for item in thing)
        elif isinstance(thing, type):
            self._classes.setdefault(thing, set())
        elif getattr(thing, "captures_itself", False):
            yield vars(thing).get("__wrapped__"), name
        else:
            yield from self._object(thing, name)

    def _object(self, thing: Any, name: str) -> Iterator[tuple[Any, str]]:
        for method in ("__call__", "forward"):
            found = getattr(type(thing), method, None)
            if isinstance(found, types.FunctionType):
                yield found, name
        if isinstance(getattr(thing, "__dict__", None), dict):
            yield from self._mapping(vars(thing), name)
        if _of_others(type(thing)):
            return
        self._classes.setdefault(type(thing), set())
        for owner in type(thing).__mro__:
            for slot in [k for k, v in vars(owner).items() if isinstance(v, types.MemberDescriptorType)]:
                value, called = getattr(thing, slot, _MISSING), f"{name}.{slot}"
                self._slots.append((_held(thing), slot, value, called))
                yield value, called

    def _of_classes(self) -> Iterator[tuple[Any, str]]:
        """Look up what the followed functions name in the classes that they reach, once for each name and class."""
        for kind, done in self._classes.items():
            owners = [owner for owner in kind.__mro__ if not _of_others(owner)]
            for name in sorted(self._named & {n for owner in owners for n in vars(owner)} - done):
                done.add(name)
                for owner in owners:  # as Python does; those before the one that has it must go on having none
                    found = vars(owner).get(name, _MISSING)
                    self._entries.append((vars(owner), name, found, f"{owner.__name__}.{name}"))
                    if found is not _MISSING:
                        yield _function_in(found), f"{owner.__name__}.{name}"
                        break

    def _function(self, function: types.FunctionType) -> Iterator[tuple[Any, str]]:
        code = function.__code__
        used = set(_names(code))
        self._named |= used
        for free, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            content = _content(cell)
            self._cells.append((cell, content, free))
            yield content, free
            yield from self._of_module(content, used)
        space = function.__globals__
        for name in sorted(used & space.keys()):
            self._entries.append((space, name, space[name], name))
            yield space[name], name
            yield from self._of_module(space[name], used)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            yield value, "a default"
        wrapped = function.__dict__.get("__wrapped__")
        if wrapped is not None:
            yield wrapped, function.__name__

    def _of_module(self, module: Any, used: set[str]) -> Iterator[tuple[Any, str]]:
        """Look at what a function takes from a module of the user's: ``settings.factor``."""
        if not isinstance(module, types.ModuleType) or module.__name__.partition(".")[0] in _OTHERS:
            return
        for name in sorted(used & vars(module).keys()):
            called = f"{module.__name__}.{name}"
            self._entries.append((vars(module), name, vars(module)[name], called))
            yield vars(module)[name], called

    def _mapping(self, mapping: dict[Any, Any], name: str) -> Iterator[tuple[Any, str]]:
        self._sizes.append((mapping, len(mapping), name))
        for key, value in list(mapping.items()):
            called = f"{name}.{key}" if name else str(key)
            self._entries.append((mapping, key, value, called))
            yield value, called


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty still
        return _MISSING


def _opaque(thing: Any) -> bool:
    """Whether nothing in a thing is followed: it has no parts, or they are not the user's."""
    if isinstance(thing, (*_SIMPLE, Array, types.ModuleType, types.BuiltinFunctionType)):
        return True
    return isinstance(thing, (types.FunctionType, types.MethodType, type)) and _of_others(thing)


def _of_others(thing: Any) -> bool:
    """Whether a function or class is polygrad's, NumPy's or Python's own, which do not change."""
    module = getattr(thing, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in _OTHERS


def _function_in(found: Any) -> Any:
    """Return the function that a class's property or method of another kind wraps; anything else as it is."""
    if isinstance(found, (staticmethod, classmethod)):
        return found.__func__
    if isinstance(found, property):
        return found.fget
    return found.func if isinstance(found, functools.cached_property) else found


def _held(thing: Any) -> Callable[[], Any]:
    """Return what gives an object back, without keeping it alive if that can be."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


def _same(now: Any, was: Any) -> bool:
    if type(now) is not type(was):
        return False
    if isinstance(now, _SIMPLE):
        return bool(now == was) or (now != now and was != was)  # noqa: PLR0124  NaN is what differs from itself
    if isinstance(now, tuple):
        return len(now) == len(was) and all(a is b or _same(a, b) for a, b in zip(now, was, strict=True))
    if isinstance(now, types.MethodType):
        return now.__self__ is was.__self__ and now.__func__ is was.__func__
    return False


def _told(name: str, was: Any, now: Any) -> str:
    if isinstance(was, _SIMPLE) and isinstance(now, (*_SIMPLE, tuple)):
        return f"{name} was {was!r} and is {now!r}"
    return f"{name} is another {type(was).__name__} than it was" if type(now) is type(was) else f"{name} has changed"
