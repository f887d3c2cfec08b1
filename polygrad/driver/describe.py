"""Kernels and ops described for people: short names, and the bytes that they move.

Here: text and numbers for errors and profiles.
Not here: anything that runs.
"""

import math
from collections.abc import Sequence

from polygrad.driver.ir import ITEMSIZE, Kernel
from polygrad.driver.launch import BoundView, decode
from polygrad.driver.types import Ref

_SILENT = frozenset({"load", "scalar", "const", "iota", "cast", "bitcast"})
_SHOWN = 6
# What a kernel is not named after, unless it does nothing else.
_PLAIN = frozenset({
    "add", "subtract", "negative", "where", "less", "less_equal", "equal", "not_equal", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bitwise_invert",
})  # fmt: skip
_NAMED = 3


def kernel_name(kernel: Kernel) -> str:
    """Return a short name of *kernel*: what it computes, in order, and how often it touches memory.

    Examples
    --------
    >>> from polygrad.driver.ir import Instr, Store, View
    >>> view = View(0, "float32", (1,))
    >>> body = (Instr("load", "float32", (), 0), Instr("exp", "float32", (0,)), Instr("add", "float32", (1, 1)))
    >>> kernel_name(Kernel(1, 0, ("float32",), (view,), (), body, (Store(2, 0),)))
    'exp,add [1 load, 1 store]'
    """
    words = _words(kernel)
    if len(words) > _SHOWN:
        words[_SHOWN:] = [f"+{len(words) - _SHOWN}"]
    loads = sum(i.op == "load" for i in kernel.body)
    return f"{','.join(words)} [{_counted(loads, 'load')}, {_counted(len(kernel.stores), 'store')}]"


def kernel_identifier(kernel: Kernel) -> str:
    """Return a name for the functions of *kernel*, by which vendors' profilers show them.

    Examples
    --------
    >>> from polygrad.driver.ir import Instr, Store, View
    >>> view = View(0, "float32", (1,))
    >>> body = (Instr("load", "float32", (), 0), Instr("exp", "float32", (0,)), Instr("add", "float32", (1, 1)))
    >>> kernel_identifier(Kernel(1, 0, ("float32",), (view,), (), body, (Store(2, 0),)))
    'pg_exp_1l1s'
    """
    words = _words(kernel)
    notable = [word for word in words if word not in _PLAIN] or words
    loads = sum(i.op == "load" for i in kernel.body)
    return f"pg_{'_'.join(notable[:_NAMED])}_{loads}l{len(kernel.stores)}s"


def _words(kernel: Kernel) -> list[str]:
    """Return what a kernel computes, each op once, in order."""
    told = [str(i.attr) if i.op == "reduce" else i.op for i in kernel.body if i.op not in _SILENT]
    return list(dict.fromkeys(told)) or [
        next((i.op for i in kernel.body if i.op in ("iota", "cast", "bitcast")), "copy")
    ]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def op_bytes(refs: Sequence[Ref]) -> int:
    """Return how many bytes of memory the operands of an op have, an element that is broadcast counted once.

    Examples
    --------
    >>> op_bytes([Ref(None, 0, (2, 3), (3, 1), "float32"), Ref(None, 0, (2, 3), (0, 1), "float32")])
    36
    """
    return sum(
        ITEMSIZE[r.dtype] * math.prod(n for n, stride in zip(r.shape, r.strides, strict=True) if stride != 0)
        for r in refs
    )


def kernel_bytes(kernel: Kernel, ints: tuple[int, ...]) -> int:
    """Return how many bytes one launch of *kernel* loads and stores if every element of every view is touched once.

    It is the floor that a good kernel reaches: a cache that forgets, or a guard that skips a load, is not looked at.
    """
    launch = decode(kernel, ints)
    varies: list[frozenset[int]] = []  # the axes along which each value varies
    total = 0
    for instr in kernel.body:
        axes = frozenset[int]().union(*(varies[a] for a in instr.args))
        if instr.op == "iota":
            axes = frozenset({int(instr.attr)})
        elif instr.op == "reduce":
            axes = frozenset(k for k in axes if k < kernel.parallel)
        elif instr.op == "load":
            view = launch.views[instr.attr]
            axes |= {k for k, stride in enumerate(view.strides) if stride != 0}
            total += ITEMSIZE[kernel.views[instr.attr].dtype] * _elements(view, axes, launch.extents)
        varies.append(axes)
    for store in kernel.stores:
        view = launch.views[store.view]
        axes = frozenset(k for k, stride in enumerate(view.strides) if stride != 0)
        total += ITEMSIZE[kernel.views[store.view].dtype] * _elements(view, axes, launch.extents) * max(view.parts, 1)
    return total


def _elements(view: BoundView, axes: frozenset[int], extents: Sequence[int]) -> int:
    seen = {axis: (lo, hi) for axis, lo, hi in view.window}
    count = 1
    for axis in axes:
        lo, hi = seen.get(axis, (0, extents[axis]))
        count *= max(min(hi, extents[axis]) - max(lo, 0), 0)
    return count
