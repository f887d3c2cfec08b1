"""Views: arrays that show elements of another array, and see each other's writes.

Here: how a view remembers what it was cut from, and `write`, through which every handle on the same elements gets its
new value. Underneath nothing is ever changed: a write makes one new node of the array at the root, and the other
handles are cut from it again when they are next looked at.
Not here: keys and values of assignments (`mutation.py`), in-place operators (`operators.py`), memory.

A view holds the array at its root, the movement ops that lead from there to it, and whether it was made while gradients
were recorded. The root holds weak references to its views, and an array that never had one holds nothing: so there are
no cycles, and what is never written to pays nothing.
"""

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from polygrad import shapes
from polygrad.array.object import Array
from polygrad.errors import GradError, ShapeError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, watches
from polygrad.graph.spec import Aval, Spec
from polygrad.ops.table import Op
from polygrad.runtime.structure import active_mask
from polygrad.schedule.views import moved


class Move(NamedTuple):
    """What an op does, as a Spec says it."""

    op: Op
    attrs: tuple[Any, ...]


# One movement op on the way from a root to a view, and the Aval before it.
Step = tuple[Spec | Move, Aval]
Steps = tuple[Step, ...]
MOVES = frozenset({"reshape", "permute", "slice", "expand"})


class _Behind(Array):
    """A view whose root was written to since: its node is made again when it is looked at."""

    __slots__ = ()

    @property
    def _node(self) -> Node:
        return _caught_up(self)

    @_node.setter
    def _node(self, node: Node) -> None:
        self.__class__ = Array  # type: ignore[assignment]  # both have the same slots
        _SLOT.__set__(self, node)


_Behind.__name__ = _Behind.__qualname__ = "Array"  # it is one, and soon looks like one
_SLOT: Any = Array.__dict__["_node"]


def _caught_up(view: Array) -> Node:
    root, steps, record = view._link
    before, RECORDING.enabled = RECORDING.enabled, record
    try:
        node = cut_from(root._node, steps)
    finally:
        RECORDING.enabled = before
    view.__class__ = Array
    _SLOT.__set__(view, node)
    return node


def cut_from(node: Node, steps: Steps) -> Node:
    """Return a node moved by steps."""
    for spec, _ in steps:
        node = getattr(F, spec.op.name)(node, *spec.attrs)
    return node


def view_of(source: Array, make: Callable[..., Node], *args: Any) -> Array:
    """Return ``make(source's node, *args)`` as an array: a view of *source* if it is made by movement ops alone."""
    node = source._node
    if RECORDING.observer is None:
        return attached(Array(make(node, *args)), source, node)
    with _unobserved():
        return attached(Array(make(node, *args)), source, node)


@contextlib.contextmanager
def _unobserved() -> Iterator[None]:
    """Show nodes to an observer only after the block: it may realize them, which cuts them off from their operands."""
    outer = RECORDING.observer
    made: list[Node] = []
    RECORDING.observer = made.append
    try:
        yield
    finally:
        RECORDING.observer = outer
    if outer is not None:
        for n in made:
            outer(n)


def shown(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of the namespace whose results, one or several, show elements of its operands."""
    if RECORDING.observer is None:
        return _shown(function, args, kwargs)
    with _unobserved():
        return _shown(function, args, kwargs)


def _shown(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    operands = [a for a in args if isinstance(a, Array)]
    nodes = [a._node for a in operands]
    out = function(*args, **kwargs)
    results = [out] if isinstance(out, Array) else out
    if len(operands) == 1:
        operands, nodes = operands * len(results), nodes * len(results)
    for result, source, node in zip(results, operands, nodes, strict=True):
        attached(result, source, node)
    return out


def reshaped(
    function: Callable[..., Any], source: Array, shape: Any, copy: bool | None, kwargs: dict[str, Any]
) -> Array:
    """Call reshape: its result is a view where strides allow it, as in NumPy, and a copy elsewhere.

    Raises
    ------
    ValueError
        If *copy* is False and a copy is needed.
    """
    new = shapes.reshape("reshape", source.shape, shape)
    viewable = not copy and _nests(source, new)
    if copy is False and not viewable:
        raise ValueError(
            f"cannot reshape this view of shape {list(source.shape)} to {list(new)} without a copy: its elements do "
            "not lie one after the other; leave copy=False out"
        )
    if viewable and not kwargs:
        return view_of(source, F.reshape, new)
    if viewable:
        return shown(function, (source, new), kwargs)  # type: ignore[no-any-return]
    return function(source, new, copy=True, **kwargs)  # type: ignore[no-any-return]


def attached(view: Array, source: Array, node: Node) -> Array:
    """Make *view* a view of *source*, whose node was *node*, if movement ops lead from there to it; return it."""
    out = view._node
    if node.spec.op.kind == "pair" and out.spec.op.kind == "pair":  # both parts move alike
        node, out = node.parents[0], out.parents[0]
    steps: Steps = ()
    while out is not node:
        spec = out.spec
        if spec.op.kind not in MOVES or not out.parents:
            return view
        out = out.parents[0]
        steps = ((spec, out.aval), *steps)
    link = source._link
    if type(link) is tuple:
        source, before, _ = link
        steps = before + steps
    elif link is None:
        source._link = set()
    known: set[weakref.ref[Array]] = source._link
    view._link = (source, steps, RECORDING.enabled)
    known.add(weakref.ref(view, known.discard))
    return view


def _nests(source: Array, new: shapes.Shape) -> bool:
    """Whether a reshape of a view is one itself; a root counts as contiguous."""
    link = source._link
    if type(link) is not tuple or not source.size:
        return True
    root, steps, _ = link
    shape, strides = root.shape, shapes.strides(root.shape)
    for step in steps:
        after, kind = _after(step), step[0].op.kind
        if kind == "reshape":
            found = restrided(shape, strides, after)
            if found is None:
                return False
            shape, strides = after, found
        else:
            at = moved(kind, step[0].attrs, after, shape, strides)
            assert at is not None  # noqa: S101  every other movement has strides
            shape, strides = at[0], at[1]
    return restrided(shape, strides, new) is not None


def restrided(shape: shapes.Shape, strides: shapes.Shape, new: shapes.Shape) -> shapes.Shape | None:
    """Return the strides of a reshape of strided memory; None if it needs a copy.

    Axes that follow each other in memory count as one; each such run must be made up of whole new axes.

    >>> restrided((2, 3), (3, 1), (3, 2)), restrided((3, 2), (1, 3), (6,)), restrided((2, 3), (6, 1), (2, 3, 1))
    ((2, 1), None, (6, 1, 1))
    """
    runs: list[list[int]] = []  # [size, stride of its last axis]
    for n, stride in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if runs and runs[-1][1] == stride * n:
            runs[-1] = [runs[-1][0] * n, stride]
        else:
            runs.append([n, stride])
    out: list[int] = []
    rest = 1  # of the run at hand
    for n in reversed(new):
        if rest == 1 and n != 1:
            rest, step = runs.pop()
        if n == 1:
            out.append(out[-1] if out else 1)
            continue
        if rest % n:
            return None
        out.append(step)
        rest, step = rest // n, step * n
    return tuple(reversed(out))


def _after(step: Step) -> shapes.Shape:
    """Return the shape after a step."""
    spec, before = step
    if spec.op.kind == "permute":
        return tuple(before.shape[k] for k in spec.attrs[0])
    return spec.attrs[2] if spec.op.kind == "slice" else spec.attrs[0]  # type: ignore[no-any-return]


# ---- writing ---------------------------------------------------------------------------------------------------------


def may_write(target: Array) -> None:
    """Raise unless *target* may be written to.

    Raises
    ------
    GradError
        If it is a leaf that needs gradients, or a view of one, outside of `no_grad`.
    ShapeError
        If it is a view that shows one element at several places.
    """
    link = target._link
    root = target
    if type(link) is tuple:
        root = link[0]
        for spec, before in link[1]:
            if spec.op.kind == "expand" and shapes.size(spec.attrs[0]) != before.size:
                raise ShapeError(
                    f"cannot write into a view of shape {list(target.shape)} that was broadcast from "
                    f"{list(before.shape)}: several of its elements are one; copy it first, with .astype(x.dtype)"
                )
    if RECORDING.enabled and (is_watched_leaf(target) or is_watched_leaf(root)):
        raise GradError("cannot write into a leaf that needs gradients: do it in pg.no_grad(), or on a copy")


def is_watched_leaf(array: Array) -> bool:
    """Whether somebody has asked for the gradient of this very handle."""
    node = array._node
    return (
        bool(node.mask)
        and isinstance(node.leaf, weakref.ref)
        and node.leaf() is array
        and bool(watches(active_mask(), node))
    )


def write(target: Array, value: Node) -> None:
    """Give *target* a new value of its shape and dtype; whoever shows the same elements shows it too.

    Call `may_write` first. A leaf stays a leaf.
    """
    link = target._link
    if link is None:
        _bind(target, value)
    elif type(link) is tuple:
        root, steps, record = link
        if value.aval.size:
            write_root(root, stored(root._node, steps, value))
            if not is_watched_leaf(target):
                target._node = _placed(value, target)
                target._link = (root, steps, record or RECORDING.enabled)
    else:
        write_root(target, value)


def write_root(root: Array, value: Node) -> None:
    """Give the array at the root of views a new value."""
    views = [v for v in [ref() for ref in tuple(root._link or ())] if v is not None]
    leaves = [v for v in views if type(v) is not _Behind and is_watched_leaf(v)]
    if leaves and value.mask and RECORDING.enabled:
        raise GradError(
            "cannot write a value that needs gradients where a view is a leaf that needs gradients: detach() the value"
        )
    _bind(root, value)
    for view in views:
        if any(view is leaf for leaf in leaves):
            view._become_leaf(cut_from(root._node, view._link[1]))
        else:
            _SLOT.__set__(view, None)
            view.__class__ = _Behind


def _bind(array: Array, value: Node) -> None:
    value = _placed(value, array)
    if is_watched_leaf(array):
        array._become_leaf(value)
    else:
        array._node = value


def _placed(value: Node, like: Array) -> Node:
    """Return a node that belongs to a device: a value made of numbers alone has none yet."""
    if value.device is None:
        value = F.alias(value) if value.value is not None else value
        value.device = like.device
    return value


# ---- the way back ---------------------------------------------------------------------------------------------------


class _Level:
    """A strided block of an array, its axes permuted and axes of size 1 put in or left out."""

    def __init__(self, shape: shapes.Shape) -> None:
        self.whole = shape  # of the array
        self.steps: Steps = ()
        self.starts = [0] * len(shape)
        self.strides = [1] * len(shape)
        self.sizes = list(shape)
        self.axes: list[int | None] = list(range(len(shape)))  # for each axis of the view the axis of the array
        self.shape = shape  # of the view

    def take(self, step: Step) -> bool:
        """Follow one step further; return whether that is possible."""
        kind, attrs = step[0].op.kind, step[0].attrs
        if kind == "permute":
            self.axes = [self.axes[k] for k in attrs[0]]
        elif kind == "slice":
            for axis, start, stride, size in zip(self.axes, *attrs, strict=True):
                if axis is not None:
                    self.starts[axis] += self.strides[axis] * start
                    self.strides[axis] = self.strides[axis] * stride if size > 1 else 1
                    self.sizes[axis] = size
        else:
            new = attrs[0]
            wide = [axis for axis, n in zip(self.axes, self.shape, strict=True) if n != 1]
            if [n for n in new if n != 1] != [n for n in self.shape if n != 1]:
                return False
            rest = iter(wide)
            self.axes = [None if n == 1 else next(rest) for n in new]
        self.steps += (step,)
        self.shape = _after(step)
        return True

    def put(self, array: Node, value: Node) -> Node:
        """Return the array with a value of the view's shape in the block."""
        mapped = [(k, axis) for k, axis in enumerate(self.axes) if axis is not None]
        flat = tuple(self.shape[k] for k, _ in mapped)
        value = value if flat == self.shape else F.reshape_(value, flat)
        order = tuple(sorted(range(len(mapped)), key=lambda k: mapped[k][1]))
        value = value if order == tuple(range(len(order))) else F.permute_(value, order)
        sizes = tuple(self.sizes)
        value = value if value.shape == sizes else F.reshape_(value, sizes)
        return F.store_(array, value, tuple(self.starts), tuple(self.strides), sizes)  # type: ignore[no-any-return]


def stored(root: Node, steps: Steps, value: Node) -> Node:
    """Return *root* with the elements that *steps* lead to replaced by *value*."""
    levels = [_Level(root.aval.shape)]
    for step in steps:
        if not levels[-1].take(step):  # a reshape that cuts or joins axes: blocks are counted in its axes from here on
            levels.append(_Level(_after(step)))
    arrays = [root]
    for level, inner in itertools.pairwise(levels):
        arrays.append(F.reshape_(cut_from(arrays[-1], level.steps), inner.whole))
    for level, array in zip(reversed(levels), reversed(arrays), strict=True):
        value = level.put(array, value if value.aval.shape == level.shape else F.reshape_(value, level.shape))
    return value
