"""The namespace `xp` of nodes: every op of the table as a function from nodes to nodes, and the operators of Node.

Here: `F`, over which derivative rules and composites are written. Operands are nodes or Python scalars, which adapt to
the nodes' dtype.
Not here: what any op does; arrays.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from polygrad import dtypes
from polygrad.errors import DTypeError
from polygrad.graph.node import Node, Pair, apply, call_library, cast, creation_site, lift, on_pairs, scalar, sibling
from polygrad.graph.pairs import pair, record, refused
from polygrad.ops import TABLE
from polygrad.ops.table import Op


class Namespace:
    """Functions from nodes to nodes, one for each op of the table."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the op table has no {name!r}")


F: Any = Namespace()


def operands_as_nodes(op: Op, args: tuple[Any, ...]) -> tuple[Node, ...]:
    """Return *args* as nodes; Python scalars take their dtype from the nodes beside them."""
    if op.name == "where":
        return (_alone(args[0]), *_lifted(args[1:]))
    return _lifted(args)


def _alone(value: Any) -> Node:
    return value if isinstance(value, Node) else scalar(value, _default(value))


def _default(value: Any) -> dtypes.DType:
    if not isinstance(value, (bool, int, float, complex)):
        raise DTypeError(f"cannot use {value!r} in an expression of arrays: convert it with pg.asarray(...)")
    if isinstance(value, (bool, int)):
        return dtypes.bool_ if isinstance(value, bool) else dtypes.int64
    return dtypes.float64 if isinstance(value, float) else dtypes.complex128


def _lifted(args: tuple[Any, ...]) -> tuple[Node, ...]:
    like = None
    for a in args:
        if isinstance(a, Node):
            like = a if like is None or a.aval.dtype is like.aval.dtype else _stronger(like, a)
    if like is None:
        return tuple(_alone(a) for a in args)
    return tuple([a if isinstance(a, Node) else _lift_checked(a, like) for a in args])


def _stronger(a: Node, b: Node) -> Node:
    return a if dtypes.promote(a.aval.dtype, b.aval.dtype) is a.aval.dtype else b


def _lift_checked(value: Any, like: Node) -> Node:
    if not isinstance(value, (bool, int, float, complex)):
        raise DTypeError(f"cannot use {value!r} in an expression of arrays: convert it with pg.asarray(...)")
    return lift(value, like)


def _elementwise(op: Op) -> Callable[..., Node]:
    arity = len(inspect.signature(op.body).parameters) - 1

    @functools.wraps(op.body)
    def function(*args: Any) -> Node:
        for a in args:
            if type(a) is not Node:
                args = operands_as_nodes(op, args)
                break
        if len(args) != arity:
            if op.name == "where" and len(args) == 1:
                return F.nonzero(*args)  # type: ignore[no-any-return]  # as NumPy and PyTorch do with a condition alone
            raise TypeError(f"{op.name} takes {arity} operands, got {len(args)}")
        return apply(op, args)

    return function


def _primitive(op: Op) -> Callable[..., Node]:
    def function(*args: Any) -> Node:
        count = 0
        while count < len(args) and isinstance(args[count], Node):
            count += 1
        return apply(op, args[:count], args[count:] or None)

    def traced(*args: Any) -> Node:
        node = function(*args)
        node.trace = creation_site()  # a bad index is found when it is used, and the error names this line
        return node

    return traced if op.kind in ("gather", "check", "scatter") else function


def _library(op: Op) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        count = 0
        while count < len(args) and isinstance(args[count], Node):
            count += 1
        made = call_library(op, args[:count], args[count:])
        return made if len(made) > 1 else made[0]

    return function


def _composite(op: Op) -> Callable[..., Any]:
    plain = functools.partial(op.body, F)
    if op.complex is None and (op.samples is None or "complex" in op.dtypes):  # those without samples are internal
        return plain

    def function(*args: Any, **keywords: Any) -> Any:
        for a in args:
            if type(a) is Pair or type(a) is complex:
                if callable(op.complex):
                    return op.complex(F, *args, **keywords)
                raise refused(op, args)
        return plain(*args, **keywords)

    return function


_MAKERS: dict[str, Callable[[Op], Callable[..., Any]]] = {
    "elementwise": _elementwise,
    "composite": _composite,
    "library": _library,
}
for _op in TABLE.values():
    _maker: Callable[[Op], Callable[..., Any]] = _MAKERS.get(_op.kind, _primitive)
    setattr(F, _op.name, _maker(_op))


def _astype(x: Node, dtype: dtypes.DType) -> Node:
    if type(x) is Pair and dtype is dtypes.bool_:
        return F.not_equal(x, 0.0)  # type: ignore[no-any-return]
    return cast(x, dtype)


def _turned(x: Node, order: tuple[int, ...]) -> Node:
    """Return a gradient with its axes in another order.

    Of a product whose last two axes are exchanged the operands are, and come the other way round: so the gradient of
    weights that are used transposed lies in memory as they do, and what reads both runs through them alike.
    """
    rank = len(order)
    if order == (*range(rank - 2), rank - 1, rank - 2) and type(x) is Node and x.spec.op.kind == "matmul":
        if x.storage is None:
            a, b = x.parents
            return F.matmul_(F.swap_last(b), F.swap_last(a))  # type: ignore[no-any-return]
    return F.permute_(x, order)  # type: ignore[no-any-return]


F.sibling = sibling
F.turned = _turned
F.astype = _astype  # the primitive makes a node even where the dtype stays
F.pair_ = pair
on_pairs(functools.partial(record, F))


def _operator(name: str) -> tuple[Callable[..., Node], Callable[..., Node]]:
    function = getattr(F, name)
    return (lambda a, b: function(a, b)), (lambda a, b: function(b, a))


# Python's operators, without their underscores, and the ops that they stand for; Array takes them from here.
OPERATORS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "matmul": "matmul",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
ORDERINGS = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}

for _dunder, _name in OPERATORS.items():
    _forward, _reflected = _operator(_name)
    setattr(Node, f"__{_dunder}__", _forward)
    setattr(Node, f"__r{_dunder}__", _reflected)
for _dunder, _name in ORDERINGS.items():
    setattr(Node, f"__{_dunder}__", _operator(_name)[0])
setattr(Node, "__neg__", lambda self: F.negative(self))  # noqa: B010  F is filled by now, and its type is open
setattr(Node, "__invert__", lambda self: F.bitwise_invert(self))  # noqa: B010  as above
