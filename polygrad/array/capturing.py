"""Watching which arrays a captured function reads and gives new values.

Here: `Watch`, and what library code says while a function is captured: `capturing`, `number`, `effect`, `afterwards`,
`outside`.
Not here: the launches (`runtime/recorder.py`), signatures and replays (`compiling.py`).

An array is a handle on a node, in two slots, `_node` and `_grad`. While a function is captured, descriptors in the
place of these two see every access of its thread; at other times nothing is paid. So it is known exactly which arrays
the function found outside of its arguments (they are hidden inputs, read anew at each call), which it gave new values
(they get new values at each call), and which it made and left behind somewhere (it cannot be replayed).
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from polygrad.array.object import Array
from polygrad.errors import CaptureError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, newest, parts
from polygrad.runtime.memory import Storage
from polygrad.runtime.realize import realize
from polygrad.runtime.recorder import Recorder

_NODE: Any = Array.__dict__["_node"]
_GRAD: Any = Array.__dict__["_grad"]
_one_at_a_time = threading.RLock()
_current: "list[Watch]" = []  # the watch of the call that is being captured

# ---- for library code ------------------------------------------------------------------------------------------------


def capturing() -> Recorder | None:
    """Return what writes down the call of this thread that is being captured, if there is one."""
    return RECORDING.capture  # type: ignore[no-any-return]


def number(read: Callable[[], Any]) -> Any:
    """Return the number that *read* gives; in a captured function, as one that is read again at each call."""
    capture = RECORDING.capture
    return read() if capture is None else capture.host.read(read)


def effect(do: Callable[[], Callable[[], None]]) -> None:
    """Do something to the host's state, at each call of a captured function too; *do* returns what undoes it."""
    capture = RECORDING.capture
    if capture is None:
        do()
    else:
        capture.host.effect(do)


def afterwards(do: Callable[[], Callable[[], None]]) -> None:
    """Do something now, and after the launches of each call of a captured function; *do* returns what undoes it."""
    do()
    if RECORDING.capture is not None:
        RECORDING.capture.after.append(do)


@contextmanager
def outside() -> Iterator[None]:
    """Make what a captured function needs to find, such as first state, in a block that is not captured itself."""
    if RECORDING.capture is None:
        yield
    else:
        with _current[0].paused():
            yield


# ---- the watch -------------------------------------------------------------------------------------------------------


class Handle:
    """What is known of one array that a captured function has touched.

    Attributes
    ----------
    array : Array
        In the call that is captured.
    find : callable
        Returns the array of another call; None if it is gone.
    node : Node or None
        What it stood for when it was first read; None if it was given a value before.
    written, grad_written : bool
        Whether it was given a value, or a gradient.
    grad_read : bool or None
        If its gradient was looked at before it was set: whether there was one.
    """

    __slots__ = ("array", "find", "grad_read", "grad_seen", "grad_written", "node", "seen", "written")

    def __init__(self, array: Array, find: Callable[[], Array | None]) -> None:
        self.array = array
        self.find = find
        self.node: Node | None = None
        self.seen = self.written = False
        self.grad_seen = self.grad_written = False
        self.grad_read: bool | None = None


class Watch:
    """Sees the arrays that this thread touches, within `watching`."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.handles: dict[int, Handle] = {}
        self.made: dict[int, weakref.ref[Array]] = {}
        self._start = newest()
        self._thread = threading.get_ident()
        self._paused = False

    def expect(self, array: Array, find: Callable[[], Array | None]) -> Handle:
        """Note an array before it is touched, and how to find that of another call."""
        found = self.handles[id(array)] = Handle(array, find)
        return found

    def sees(self) -> bool:
        """Whether an access counts."""
        return not self._paused and threading.get_ident() == self._thread

    def handle(self, array: Array) -> Handle | None:
        """Return what is known of an array; None of one that the function made itself."""
        found = self.handles.get(id(array))
        if found is None:
            if id(array) in self.made:
                return None
            found = self.handles[id(array)] = Handle(array, weakref.ref(array))
        return found

    def got(self, array: Array, node: Node) -> Node:
        """See an array read; return the node to use."""
        handle = self.handle(array)
        if handle is None or handle.seen:
            return node
        handle.seen = True
        if any(p.storage is None and p.number > self._start for p in parts(node)):
            return node  # a view of something that the function has written: it is computed with it
        with self.paused():
            node = self._own(array, node)
            handle.node = node
            for part in parts(node):
                self.recorder.input(part)
        return node

    def _own(self, array: Array, node: Node) -> Node:
        """Return the realized node of an array that no other array shares, with storages of its own."""
        realize([node])
        if any(h.node is node for h in self.handles.values()):
            if node.leaf is not None:
                raise CaptureError("cannot compile a function that uses two arrays which are one leaf: use one of them")
            with _recording_nothing():
                node = F.alias(node)
            realize([node])
            _NODE.__set__(array, node)
        for part in parts(node):
            if self.recorder.is_input(part.storage):
                old = part.storage
                part.storage = Storage(old.buffer, old.offset, old.strides, old.contiguous)
        return node

    def was_set(self, array: Array) -> None:
        """See an array given a node."""
        try:
            _NODE.__get__(array)
        except AttributeError:  # it has none yet: it was just made
            known = self.made
            key = id(array)
            known[key] = weakref.ref(array, lambda _: known.pop(key, None))
            return
        handle = self.handle(array)
        if handle is not None:
            handle.seen = handle.written = True

    def got_grad(self, array: Array, grad: Array | None) -> None:
        """See a gradient looked at."""
        handle = self.handle(array)
        if handle is None or handle.grad_seen:
            return
        handle.grad_seen, handle.grad_read = True, grad is not None
        if grad is not None and id(grad) not in self.handles:
            self.expect(grad, lambda: None if (owner := handle.find()) is None else _GRAD.__get__(owner))

    def set_grad(self, array: Array) -> None:
        """See a gradient set."""
        handle = self.handle(array)
        if handle is not None:
            handle.grad_seen = handle.grad_written = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Neither see nor write down what is done in a block."""
        self._paused = True
        before, RECORDING.capture = RECORDING.capture, None
        try:
            yield
        finally:
            RECORDING.capture = before
            self._paused = False

    def left_behind(self, known: set[int]) -> list[Array]:
        """Return the arrays that the function made and that are still held, but for those of the ids *known*."""
        return [a for key, ref in list(self.made.items()) if key not in known and (a := ref()) is not None]


@contextmanager
def _recording_nothing() -> Iterator[None]:
    before, RECORDING.enabled = RECORDING.enabled, False
    try:
        yield
    finally:
        RECORDING.enabled = before


class _NodeSeen:
    """In the place of the slot `_node`."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def __get__(self, array: Array | None, owner: Any = None) -> Any:
        if array is None:
            return self
        node = _NODE.__get__(array)
        return self.watch.got(array, node) if self.watch.sees() else node

    def __set__(self, array: Array, node: Node) -> None:
        if self.watch.sees():
            self.watch.was_set(array)
        _NODE.__set__(array, node)


class _GradSeen:
    """In the place of the slot `_grad`."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def __get__(self, array: Array | None, owner: Any = None) -> Any:
        if array is None:
            return self
        grad = _GRAD.__get__(array)
        if self.watch.sees():
            self.watch.got_grad(array, grad)
        return grad

    def __set__(self, array: Array, grad: Array | None) -> None:
        if self.watch.sees() and id(array) not in self.watch.made:
            self.watch.set_grad(array)
        _GRAD.__set__(array, grad)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Capture what this thread does in a block; other threads go on, one capture is done at a time."""
    with _one_at_a_time:
        type.__setattr__(Array, "_node", _NodeSeen(watch))
        type.__setattr__(Array, "_grad", _GradSeen(watch))
        RECORDING.capture = watch.recorder
        _current[:] = [watch]
        try:
            yield
        finally:
            RECORDING.capture = None
            _current.clear()
            type.__setattr__(Array, "_node", _NODE)
            type.__setattr__(Array, "_grad", _GRAD)
