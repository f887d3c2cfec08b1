"""compile: a function whose calls are captured once and then launched again without Python.

Here: signatures of arguments, the choice among captures, capturing a call, replaying it.
Not here: watching arrays (`capturing.py`), what else a function depends on (`environment.py`), the shortest way to the
last capture (`shortcut.py`), launches (`runtime`).

The first call with some shapes runs as it is: state that is made at first use (an optimiser's) is made then. The second
is captured, and later ones are replayed.
"""

import functools
import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from polygrad.array import autocasting, interchange
from polygrad.array.capturing import Watch, watching
from polygrad.array.config import get_device
from polygrad.array.creation import asarray
from polygrad.array.environment import Environment
from polygrad.array.object import Array
from polygrad.array.replaying import MISS, ArgumentOf, Capture
from polygrad.array.shortcut import Shortcut
from polygrad.array.slots import with_slots, without_slots
from polygrad.array.tree import flatten
from polygrad.array.views import write
from polygrad.errors import CaptureError, CompileWarning, OutOfMemory
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, Pair, parts, share, watches
from polygrad.runtime.realize import matmul_precision, matmul_tuning, realize
from polygrad.runtime.recorder import Recorder
from polygrad.runtime.structure import ALWAYS, active_mask

LIMIT = 8  # captures of one function: each keeps the memory of its intermediate values


class _Arguments:
    """The arguments of a call: its arrays, its numbers, and the rest as a key."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.arrays: list[Array] = []
        self.numbers: list[int | float] = []
        self.kept: list[Any] = []  # objects that count by identity
        self.args, self.kwargs = args, kwargs
        self.key = (self._key(args), self._key(kwargs) if kwargs else None)
        realize([a._node for a in self.arrays])
        self.layouts = tuple([_layout(a) for a in self.arrays])

    def _key(self, value: Any) -> Any:
        if isinstance(value, Array):
            self.arrays.append(value)
            return Array
        kind = type(value)
        if kind is bool or value is None or isinstance(value, (str, bytes)):
            return (kind, value)
        if kind is int or kind is float:
            self.numbers.append(value)
            return kind
        if isinstance(value, dict):
            return (kind, *[(k, self._key(v)) for k, v in value.items()])
        if isinstance(value, (list, tuple)):
            return (kind, *[self._key(v) for v in value])
        if interchange.is_numpy(value):
            self.arrays.append(asarray(value))
            return "numpy"
        self.kept.append(value)
        return (kind, id(value))

    def rebuilt(self, arrays: Sequence[Array], numbers: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with other arrays and numbers."""
        a, n = iter(arrays), iter(numbers)
        return self._rebuilt(self.args, a, n), self._rebuilt(self.kwargs, a, n)

    def _rebuilt(self, value: Any, arrays: Any, numbers: Any) -> Any:
        kind = type(value)
        if isinstance(value, Array) or interchange.is_numpy(value):
            return next(arrays)
        if kind is int or kind is float:
            return next(numbers)
        if isinstance(value, dict):
            return {k: self._rebuilt(v, arrays, numbers) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            made = [self._rebuilt(v, arrays, numbers) for v in value]
            return kind(*made) if hasattr(value, "_fields") else kind(made)
        return value


def _layout(array: Array) -> tuple[Any, ...]:
    node = array._node
    of_parts = [0 if p.storage.contiguous else p.storage.strides for p in parts(node)]
    return (node.aval.ident, type(node) is Pair, node.device, array.requires_grad, *of_parts)


class Compiled:
    """A function that is captured and replayed; see `compile`."""

    captures_itself = True

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._lock = threading.RLock()
        self._seen: dict[Any, list[Any]] = {}  # signatures of calls that ran as they are, and what they keep
        self._captures: dict[Any, list[Capture]] = {}
        self._last: Shortcut | None = None
        self._every = _validation()
        self._count = 0
        self._why = ""
        self._of: weakref.WeakKeyDictionary[Any, Compiled] = weakref.WeakKeyDictionary()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Return the method of an instance, with captures of its own."""
        if instance is None:
            return self
        found = self._of.get(instance)
        if found is None:
            found = self._of.setdefault(instance, Compiled(_method(self._function, instance)))
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, or replay an earlier call of it."""
        if RECORDING.capture is not None or RECORDING.batches or RECORDING.observer is not None:
            return self._function(*args, **kwargs)  # it becomes part of what is captured, mapped or observed
        if self._last is not None and not kwargs and not self._every:
            with self._lock:
                out = self._last(args)
            if out is not MISS:
                return out
        arguments = _Arguments(args, kwargs)
        if any(_is_recorded(a._node) for a in arguments.arrays):
            return self._function(*args, **kwargs)  # and part of what is differentiated
        with self._lock:
            key = (arguments.key, arguments.layouts, _configuration())
            why = []
            for capture in reversed(self._captures.get(key, ())):
                why.append(capture.environment.changed())
                if why[-1] is None:
                    if self._every and not capture.replays % self._every:
                        out = self._validated(capture, arguments)
                    else:
                        out = capture.call(arguments.arrays, arguments.numbers)
                    if out is not MISS:
                        self._last = None if kwargs else Shortcut.of(capture, arguments.args, _configuration)
                        return out
                    why[-1] = "a number or an array that it depends on has changed"
            if key in self._seen:
                self._why = (why[0] or "") if why else ""
                return self._capture(key, arguments)
            args, kwargs = arguments.rebuilt(arguments.arrays, arguments.numbers)
            out = self._function(*args, **kwargs)
            self._seen[key] = arguments.kept  # a call that failed has not made what it was to make
            return out

    def _capture(self, key: Any, arguments: _Arguments) -> Any:
        environment = Environment(self._function)
        recorder = Recorder()
        watch = Watch(recorder)
        box: list[Capture | None] = [None]
        aliases = [_alias(a) for a in arguments.arrays]
        held = list(aliases)  # until there is a capture
        for k, alias in enumerate(aliases):
            watch.expect(alias, ArgumentOf(box, held, k))
        symbols = [recorder.host.read(functools.partial(_number, box, k, n)) for k, n in enumerate(arguments.numbers)]
        call_args, call_kwargs = arguments.rebuilt(aliases, symbols)
        with watching(watch):
            result = with_slots(self._function(*call_args, **call_kwargs))
            leaves, _ = flatten(result)
            written = [h.array for h in watch.handles.values() if h.written]
            grads = [g for h in watch.handles.values() if h.grad_written and (g := h.array._grad) is not None]
            _refuse_recorded(leaves, watch)
            realize([a._node for a in (*leaves, *written, *grads)])
        roots = [a._link[0] for a in (*leaves, *written, *grads) if type(a._link) is tuple]
        _refuse_left_behind(watch, {id(a) for a in (*leaves, *grads, *roots)})
        del grads, written, roots, call_args, call_kwargs
        try:
            made = Capture(recorder, watch, result, environment)
        except OutOfMemory as error:  # the call itself was done, so its result counts
            self._no_room(error)
        else:
            box[0] = made
            held.clear()
            self._keep(key, made)
        for alias, array in zip(aliases, arguments.arrays, strict=True):
            handle = watch.handles[id(alias)]
            if handle.written:
                write(array, F.cut(alias._node))
            if handle.grad_written:
                array._grad = alias._grad
        back = {id(alias): array for alias, array in zip(aliases, arguments.arrays, strict=True)}
        _, rebuild = flatten(result)
        return without_slots(rebuild([back.get(id(a), a) for a in leaves]), lambda slot: slot.now)

    def _validated(self, capture: Capture, arguments: _Arguments) -> Any:
        """Replay a call, take everything back, call the function as it is, and compare."""
        capture.arrays = arguments.arrays
        before = capture.written()
        undone: list[Callable[[], None]] = []
        out = capture.call(arguments.arrays, arguments.numbers, undone)
        if out is MISS:
            return out
        replayed = [*flatten(out)[0], *[x for a, _, _ in before for x in (a.detach(), a._grad) if x is not None]]
        replayed = [x.detach() for x in replayed]
        for back in reversed(undone):
            back()
        for array, node, grad in before:
            if array._link is None:
                array._node = node
            else:
                write(array, node)
            array._grad = grad
        args, kwargs = arguments.rebuilt(arguments.arrays, arguments.numbers)
        out = self._function(*args, **kwargs)
        plain = [*flatten(out)[0], *[x for a, _, _ in before for x in (a.detach(), a._grad) if x is not None]]
        for k, (x, y) in enumerate(zip(replayed, plain, strict=True)):
            if not interchange.identical(x._node, y._node):
                raise CaptureError(
                    f"a replay of {getattr(self, '__name__', 'a compiled function')} differs from the call itself in "
                    f"value {k}, {x.dtype.name}{list(x.shape)}; the arrays have what the call gave them"
                )
        return out

    def _no_room(self, error: OutOfMemory) -> None:
        self._why = "there was no room for the memory of its intermediate values"
        warnings.warn(
            f"{getattr(self, '__name__', 'a compiled function')} was called as it is: a capture would keep the memory "
            f"of its intermediate values, for which there is no room ({error})",
            CompileWarning,
            stacklevel=5,
        )

    def _keep(self, key: Any, capture: Capture) -> None:
        self._captures.setdefault(key, []).append(capture)
        self._count += 1
        if self._count == LIMIT + 1:
            why = f", the last time because {self._why}" if self._why else ", each time with other shapes or settings"
            warnings.warn(
                f"{getattr(self, '__name__', 'a compiled function')} was captured {self._count} times{why}: pass what "
                "changes as an array or a number",
                CompileWarning,
                stacklevel=4,
            )
        while sum(map(len, self._captures.values())) > LIMIT:
            oldest = next(k for k, v in self._captures.items() if v)
            self._captures[oldest].pop(0)
            self._last = None
            if not self._captures[oldest]:
                del self._captures[oldest]

    def explain(self) -> str:
        """Return what was captured: of each capture the launches, inputs, memory, and how often it was replayed."""
        lines = [f"{self._count} captures of {getattr(self, '__name__', 'a function')}, {len(self._seen)} signatures"]
        for k, c in enumerate([c for some in self._captures.values() for c in some], 1):
            lines.append(
                f"{k}. {c.replay.fused} kernels and {c.replay.ops} library calls on "
                f"{', '.join(s.name for s in c.replay.states) or 'no device'}; {len(c.inputs)} arrays read, "
                f"{len(c.states)} written ({c.replay.over} over their old values), {c.replay.private} bytes kept; "
                f"{len(c.host.steps)} steps on the host, "
                f"{len(c.host.conditions)} conditions; replayed {c.replays} times"
            )
            if c.replay.described():
                lines.append(f"   {c.replay.described()}")
        if self._why:
            lines.append(f"last captured anew because {self._why}")
        return "\n".join(lines)


def _validation() -> int:
    """Return how many replays there are to one that is compared, as ``POLYGRAD_VALIDATE`` says; 0 if none is."""
    for word in os.environ.get("POLYGRAD_VALIDATE", "").split(","):
        what, _, every = word.strip().partition(":")
        if what == "compile":
            if every and not (every.isascii() and every.isdigit() and int(every)):
                raise ValueError(
                    f"POLYGRAD_VALIDATE={word.strip()} does not say how often: compile:8 is every 8th replay"
                )
            return int(every or 16)
    return 0


def _method(function: Callable[..., Any], instance: Any) -> Callable[..., Any]:
    """Return a function bound to an instance that it does not keep alive."""
    alive = weakref.ref(instance)

    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        return function(alive(), *args, **kwargs)

    return method


def _configuration() -> tuple[Any, ...]:
    return (RECORDING.enabled, get_device(), autocasting.autocast_dtype(), matmul_precision(), matmul_tuning())


def _is_recorded(node: Node) -> bool:
    """Whether a transform or a tape follows an array, or it was computed from arrays that need gradients."""
    mask = watches(active_mask(), node)
    return bool(mask & ~ALWAYS) or (bool(mask) and any(p.parents for p in parts(node)))


def _alias(array: Array) -> Array:
    """Return an argument as an array of the function's own, so that it is told apart from every other."""
    node = F.cut(array._node)
    share(node, array._node)
    alias = Array(node)
    if array.requires_grad:
        alias.requires_grad = True
        alias._grad = array._grad
    return alias


def _number(box: list[Capture | None], k: int, first: int | float) -> int | float:
    return first if box[0] is None else box[0].numbers[k]


def _refuse_recorded(results: Sequence[Array], watch: Watch) -> None:
    for a in results:
        pending = [p for p in parts(a._node) if not p.spent and watches(active_mask(), p)]
        if id(a) not in watch.handles and pending:
            raise CaptureError(
                f"cannot compile a function whose result, {a.dtype.name}{list(a.shape)}, needs gradients: a replayed "
                "call records nothing; go backward within the function, return .detach(), or call it in pg.no_grad()"
            )


def _refuse_left_behind(watch: Watch, known_ids: set[int]) -> None:
    if not watch.left_behind(known_ids):
        return
    gc.collect()  # it may be held by a cycle that nobody can reach
    left = watch.left_behind(known_ids)
    if left:
        raise CaptureError(
            f"cannot compile a function that keeps an array it made, {left[0].dtype.name}{list(left[0].shape)}, "
            "somewhere (an attribute, a list): later calls would not; return it, or give it to an array that is there "
            "already"
        )


def compile(function: Callable[..., Any]) -> Compiled:  # noqa: A001  the name that PyTorch has
    """Return *function* that is captured once for each signature of its arguments, and then replayed.

    A replay launches what the captured call launched, without Python, graph or scheduling: a whole training step with
    forward, backward, optimiser and schedule, say. Arrays that the function finds elsewhere are read anew at each call,
    and those that it gives new values get new values; floats and ints among the arguments may differ between calls.
    Where Python decided by a number, that becomes a condition, and a call that does not fulfil it is captured anew.
    Usable as a decorator, for functions and methods.

    Parameters
    ----------
    function : callable
        Takes and returns trees of arrays, numbers and other things. Arrays, and NumPy arrays, may differ in values
        between calls; for other shapes, dtypes, devices or layouts it is captured again. What has no meaning for a
        replay happens only when a call is captured: printing, appending to a list.

    Returns
    -------
    Compiled
        It has `explain`, which tells what was captured.

    Raises
    ------
    CaptureError
        When a call is captured (the second with a signature) and the function looks at a value, makes arrays of NumPy
        arrays, keeps an array that it made, or returns one that needs gradients.

    Notes
    -----
    With ``POLYGRAD_VALIDATE=compile`` every 16th replay (``compile:8``: every 8th) is taken back, done again by the
    function itself, and compared bit for bit.

    Warns
    -----
    CompileWarning
        If it was captured more than eight times; the oldest captures are then dropped. If there was no room for the
        memory that a capture keeps, or a driver failed to write launches down.

    Examples
    --------
    >>> import polygrad as pg
    >>> w = pg.nn.Parameter([1.0, 2.0])
    >>> optimiser = pg.optim.SGD([w], lr=0.5)
    >>> @pg.compile
    ... def step(x):
    ...     loss = ((w - x) ** 2).sum()
    ...     loss.backward()
    ...     optimiser.step()
    ...     optimiser.zero_grad()
    ...     return loss
    >>> [float(step(pg.asarray([3.0, 3.0], dtype=pg.float32))) for _ in range(4)]
    [5.0, 0.0, 0.0, 0.0]
    """
    if not callable(function):
        raise TypeError(f"cannot compile {function!r}: it is no function")
    return Compiled(function)
