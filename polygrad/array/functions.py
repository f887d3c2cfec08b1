"""One public function, and where it fits one method, for each op of the table.

Here: the step from nodes to arrays: operands unwrapped, results wrapped, new arrays put on a device.
Not here: what any op does; functions that make arrays of foreign data (`creation.py`).
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from polygrad import dtypes
from polygrad.array.autocasting import following
from polygrad.array.config import default_complex, default_float, default_int, held, resolve
from polygrad.array.object import Array
from polygrad.array.operators import as_node
from polygrad.array.repeating import repeating
from polygrad.array.views import reshaped, shown
from polygrad.array.words import explain_call
from polygrad.errors import DeviceError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, apply
from polygrad.ops.table import TABLE, Op

CREATION = {"full", "zeros", "ones", "empty", "arange", "linspace", "eye", "tri", "fftfreq", "rfftfreq"}
LIKE = {"full_like", "zeros_like", "ones_like", "empty_like"}
VIEWS = {
    "reshape", "permute_dims", "matrix_transpose", "expand_dims", "squeeze", "flip", "moveaxis", "swapaxes",
    "broadcast_to", "broadcast_arrays", "unstack", "split",
}  # fmt: skip
_DEFAULTED = {"zeros", "ones", "empty", "linspace", "eye", "tri", "fftfreq", "rfftfreq"}


def wrap(result: Any, device: str | None = None) -> Any:
    """Return nodes as arrays, in lists and tuples too; nodes without a device go to *device*."""
    if isinstance(result, Node):
        if result.device is None:
            result.device = resolve(device)
        return Array(result)
    if isinstance(result, (list, tuple)):
        parts = [wrap(r, device) for r in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    return result


def device_of(args: Any) -> str | None:
    """Return the device of the first array in a call's arguments."""
    for a in args:
        if isinstance(a, Array):
            return a.device
        if isinstance(a, (list, tuple)):
            found = device_of(a)
            if found is not None:
                return found
    return None


def _public(op: Op) -> Callable[..., Any]:
    function = following(op.name, getattr(F, op.name), op.body.__module__)
    record = repeating(function)

    @functools.wraps(op.body)
    def wrapped(*args: Any, tape: Any = None, **kwargs: Any) -> Any:
        device = device_of(args)
        nodes = [as_node(a, device) for a in args]
        named = {k: as_node(v, device) for k, v in kwargs.items()} if kwargs else kwargs
        if tape is None:
            try:
                return wrap(record(nodes, named), device)
            except DeviceError:
                same_device(op.verb, *arrays_in(args))  # in the user's words, not in those of a part of the function
                raise
            except TypeError:
                explain_call(wrapped, args, kwargs)
                raise
        before, RECORDING.enabled = RECORDING.enabled, True
        outer, RECORDING.observer = RECORDING.observer, tape._note  # the tape is asked for by name
        try:
            return wrap(function(*nodes, **named), device)
        finally:
            RECORDING.enabled, RECORDING.observer = before, outer

    _sign(wrapped, op)
    return _sign(_quick(op, wrapped), op) if op.kind == "elementwise" else wrapped


def _viewing(op: Op) -> Callable[..., Any]:
    """Return a function whose results are views of its operands; see `views.py`."""
    general = _public(op)

    @functools.wraps(general)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return shown(general, args, kwargs) if args and isinstance(args[0], Array) else general(*args, **kwargs)

    @functools.wraps(general)
    def reshape(x: Any, /, shape: Any, *, copy: bool | None = None, **kwargs: Any) -> Any:
        return reshaped(general, x, shape, copy, kwargs) if isinstance(x, Array) else general(x, shape, copy=copy)

    return reshape if op.name == "reshape" else wrapped


def _quick(op: Op, general: Callable[..., Any]) -> Callable[..., Any]:
    """Return *general* with a short way for operands that are all arrays: recording an op is to cost little."""

    @functools.wraps(op.body)
    def one(*args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            if len(args) == 2:  # noqa: PLR2004  binary
                a, b = args
                if type(a) is Array and type(b) is Array and arity == 2:  # noqa: PLR2004  binary
                    return Array(apply(op, (a._node, b._node)))
            elif arity == 1 and len(args) == 1 and type(args[0]) is Array:
                return Array(apply(op, (args[0]._node,)))
        return general(*args, **kwargs)

    arity = len(op.signature.parameters)
    return one


def _sign(wrapped: Callable[..., Any], op: Op) -> Callable[..., Any]:
    wrapped.__signature__ = op.signature  # type: ignore[attr-defined]
    wrapped.__module__ = "polygrad"
    wrapped.__qualname__ = wrapped.__name__ = op.name
    wrapped.__annotations__ = {}
    return wrapped


def _creating(op: Op) -> Callable[..., Any]:
    function = getattr(F, op.name)

    @functools.wraps(op.body)
    def wrapped(*args: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
        name = resolve(device)
        if dtype is None and op.name in _DEFAULTED:
            numbers = op.name == "linspace" and any(isinstance(a, complex) for a in (*args, *kwargs.values()))
            dtype = (default_complex if numbers else default_float)(name)
        nodes = [as_node(a, name) for a in args]
        named = {k: as_node(v, name) for k, v in kwargs.items()}
        try:
            made = function(*nodes, dtype=dtype, **named) if dtype is not None else function(*nodes, **named)
        except TypeError:
            explain_call(wrapped, args, kwargs)
            raise
        if dtype is None and made.dtype.name not in held(name):
            defaults = {"float": default_float, "complex": default_complex}
            made = F.astype(made, defaults.get(dtypes.KINDS[made.dtype], default_int)(name))
        return wrap(made, name)

    return _with_device(_sign(wrapped, op))


def _liking(op: Op) -> Callable[..., Any]:
    function = getattr(F, op.name)

    @functools.wraps(op.body)
    def wrapped(x: Array, /, *args: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
        if not isinstance(x, Array):
            raise TypeError(f"{op.name} takes an array, got {type(x).__name__}; convert it with pg.asarray(...)")
        name = x.device if device is None else resolve(device)
        named = {k: as_node(v, name) for k, v in kwargs.items()}
        nodes = [as_node(a, name) for a in args]
        if dtype is not None:
            named["dtype"] = dtypes.as_dtype(dtype)
        plain = F.cut(x._node)
        return wrap(function(plain, *nodes, **named), name)

    return _with_device(_sign(wrapped, op))


def _with_device(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    sign: inspect.Signature = wrapped.__signature__  # type: ignore[attr-defined]
    parameters = list(sign.parameters.values())
    for name in ("dtype", "device"):
        if name not in sign.parameters:
            parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None))
    wrapped.__signature__ = sign.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapped


def arrays_in(args: Any) -> list[Array]:
    """Return the arrays of a call's arguments, those in lists and tuples too."""
    found: list[Array] = []
    for a in args:
        found += [a] if isinstance(a, Array) else arrays_in(a) if isinstance(a, (list, tuple)) else []
    return found


def same_device(op: str, *arrays: Array) -> None:
    """Raise DeviceError if arrays are on several devices."""
    if len({a.device for a in arrays}) > 1:
        raise DeviceError.mixed(op, [f"{a._node.aval!r} on {a.device}" for a in arrays]) from None


def make_all() -> dict[str, dict[str, Callable[..., Any]]]:
    """Return the public functions by name, for each namespace: main, linalg, fft, special."""
    out: dict[str, dict[str, Callable[..., Any]]] = {"main": {}, "linalg": {}, "fft": {}, "special": {}}
    for op in TABLE.values():
        if op.name.endswith("_") or not op.public or op.name in PRIVATE:
            continue
        maker = _creating if op.name in CREATION else _liking if op.name in LIKE else _public
        maker = _viewing if op.name in VIEWS else maker
        made = maker(op)
        for place in op.where.split():
            shown_as = op.name.removeprefix(f"{place}_")  # where `pg` has another function of that name
            out[place][shown_as] = made
        if "main" not in op.where:
            made.__module__ = f"polygrad.{op.where}"
            made.__qualname__ = made.__name__ = op.name.removeprefix(f"{op.where}_")
    return out


# Composites that only rules and other composites use.
PRIVATE = {
    "as_nodes",
    "like",
    "constant",
    "cut",
    "full_of",
    "sum_to",
    "spread",
    "swap_last",
    "checked_index",
    "products_of_others",
    "pair",
    "stop_gradient",
    "getitem",
    "uniform",
    "normal",
    "randint",
    "bernoulli",
    "random_bits",
    "alias",
    "astype",
    "bitcast",
    "softmath_log",
    "iota",
    "buffer",
    "host_scalar",
}

NAMESPACES = make_all()
FUNCTIONS = NAMESPACES["main"]


def _add_methods() -> None:
    """Give Array a method for each function whose first operand is the array itself."""
    for name, function in FUNCTIONS.items():
        parameters = list(inspect.signature(function).parameters.values())
        first = parameters[0].name if parameters else ""
        if first in ("x", "x1") and name not in CREATION | LIKE and not hasattr(Array, name):
            setattr(Array, name, function)


_add_methods()


def _variadic(name: str) -> Callable[..., Array]:
    function = FUNCTIONS[name]

    @functools.wraps(function)
    def method(self: Array, *sizes: Any, **kwargs: Any) -> Array:
        given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
        return function(self, given, **kwargs)  # type: ignore[no-any-return]

    return method


for _name in ("reshape", "permute_dims", "broadcast_to"):
    setattr(Array, _name, _variadic(_name))


def _transpose(self: Array, *order: Any) -> Array:
    """Return the axes in another order, reversed if none is given."""
    given = order[0] if len(order) == 1 and isinstance(order[0], (tuple, list)) else order
    return FUNCTIONS["permute_dims"](self, given or tuple(range(self.ndim))[::-1])  # type: ignore[no-any-return]


Array.transpose = _transpose  # type: ignore[attr-defined]
