"""Ops that are not elementwise as ONNX operators, and which op is exported by what.

Here: `RULES` by the op's name, `REFUSED` with the reason, and `write`, which writes one node.
Not here: elementwise ops (`onnx_scalars.py`), operators for several nodes at once (`onnx_patterns.py`).

Every primitive of polygrad's table is in `RULES` or `REFUSED`, is elementwise, or is a library's op, which is made of
other ops by the fallback that it declares unless there is an operator for it.
"""

import functools
from collections.abc import Callable, Sequence

from polygrad import dtypes
from polygrad.graph.node import Node
from polygrad.io.onnx_graph import FAR, Builder, Nodes, refuse
from polygrad.io.onnx_scalars import cast_rule
from polygrad.ops.placing import identity_of

Rule = Callable[..., str | tuple[str, ...]]
_LABEL_SHIFT = 2**62  # takes a negative label, which would count from the end, out of every range


def _same(_b: Builder, _nodes: Nodes, x: str, *_rest: str) -> str:
    return x


def _reshape(b: Builder, nodes: Nodes, x: str) -> str:
    return b.reshaped(x, nodes, lambda n: n.shape)


def _permute(b: Builder, nodes: Nodes, x: str) -> str:
    return b.op("Transpose", x, perm=b.same(nodes, lambda n: n.spec.attrs[0], "order of axes"))


def _expand(b: Builder, nodes: Nodes, x: str) -> str:
    out = b.op("Expand", x, b.ints(nodes, lambda n: n.shape))
    b.expanded[out] = b.expanded.get(x, x)
    return out


def _slice(b: Builder, nodes: Nodes, x: str) -> str:
    axes = [k for k in range(nodes[0].ndim) if any(_is_cut(n, k) for n in nodes)]
    if not axes:
        return x

    def part(which: int, n: Node) -> list[int]:
        return [n.spec.attrs[which][k] for k in axes]

    def ends(n: Node) -> list[int]:
        return [_end(*(of_axes[k] for of_axes in n.spec.attrs)) for k in axes]

    starts, steps = (b.ints(nodes, functools.partial(part, which)) for which in (0, 1))
    return b.op("Slice", x, starts, b.ints(nodes, ends), b.literal(axes, "int64"), steps)


def _is_cut(n: Node, k: int) -> bool:
    starts, steps, sizes = n.spec.attrs
    return bool((starts[k], steps[k], sizes[k]) != (0, 1, n.parents[0].shape[k]))


def _end(start: int, step: int, size: int) -> int:
    if step > 0:
        return start + step * (size - 1) + 1 if size else start
    end = start + step * size
    return end if end >= 0 and size else (-FAR if size else start)


def _pad(b: Builder, nodes: Nodes, x: str) -> str:
    fill = b.same(nodes, lambda n: n.spec.attrs[2], "fill")
    pads = b.ints(nodes, lambda n: [*n.spec.attrs[0], *n.spec.attrs[1]])
    return b.op("Pad", x, pads, b.scalar(fill, nodes[0].dtype.name))


def _counted(b: Builder, nodes: Nodes, number: Callable[[Node], int]) -> str:
    """Return 0 .. n - 1 as int64."""
    return b.op("Range", b.literal([0], "int64", ()), b.size(nodes, number), b.literal([1], "int64", ()))


def _along(axis: int, numbers: Callable[[Node], Sequence[int]] = lambda n: n.shape) -> Callable[[Node], int]:
    """Return what takes a node's size along an axis, or another of its numbers."""
    return lambda n: numbers(n)[axis]


def _only(axis: int, numbers: Callable[[Node], Sequence[int]], n: Node) -> list[int]:
    """Return a shape that has the node's number along one axis and 1 along all others."""
    return [size if k == axis else 1 for k, size in enumerate(numbers(n))]


def _windows(b: Builder, nodes: Nodes, x: str) -> str:
    kernel, stride, dilation = b.same(nodes, lambda n: n.spec.attrs, "window")
    rank = len(kernel)
    lead = nodes[0].ndim - 2 * rank
    for j, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        places = b.op("Mul", _counted(b, nodes, _along(lead + j)), b.literal([s], "int64", ()))
        rows = b.op("Unsqueeze", places, b.literal([1], "int64"))
        x = b.op("Gather", x, b.op("Add", rows, b.literal([i * d for i in range(k)], "int64")), axis=lead + 2 * j)
    order = [*range(lead), *range(lead, lead + 2 * rank, 2), *range(lead + 1, lead + 2 * rank, 2)]
    return b.op("Transpose", x, perm=tuple(order))


def _scalar(b: Builder, nodes: Nodes) -> str:
    node = nodes[0]
    values = [n.value for n in nodes]
    if len({repr(v) for v in values}) == 1:
        return b.scalar(values[0], node.dtype.name)
    whole = all(v == int(v) for v in values)
    number = b.size(nodes, lambda n: int(n.value)) if whole else _fraction(b, nodes)
    return cast_rule(b, number, "int64" if whole else "float64", node.dtype.name)


def _fraction(b: Builder, nodes: Nodes) -> str:
    """Return a number that is no whole one: the reciprocal of one, or this fails with the sentence for numbers."""
    back = [1.0 / n.value if n.value else 0.5 for n in nodes]
    if any(abs(v - round(v)) > 1e-9 * abs(v) for v in back):
        b.formulas(nodes, lambda n: [n.value])
        raise refuse(nodes, "a fraction in it changes with the sizes")
    by = b.cast(b.size(nodes, lambda n: round(1.0 / n.value)), "float64")
    return b.op("Reciprocal", by)


def _iota(b: Builder, nodes: Nodes) -> str:
    return cast_rule(b, _counted(b, nodes, lambda n: n.shape[0]), "int64", nodes[0].dtype.name)


def _cast(b: Builder, nodes: Nodes, x: str) -> str:
    return cast_rule(b, x, nodes[0].parents[0].dtype.name, nodes[0].dtype.name)


def _bitcast(b: Builder, nodes: Nodes, x: str) -> str:
    before, after = nodes[0].parents[0].dtype, nodes[0].dtype
    if dtypes.KINDS[before] != "int" or dtypes.KINDS[after] != "int":
        raise refuse(nodes, "ONNX's operators do not show the bits of a float")
    return cast_rule(b, x, before.name, after.name)


def _check(b: Builder, nodes: Nodes, index: str) -> str:
    """Return indices from 0 on; a negative label gets out of every range, so that the runtime refuses it too."""
    label = b.same(nodes, lambda n: n.spec.attrs[1], "meaning")
    index = cast_rule(b, index, nodes[0].parents[0].dtype.name, "int64")
    negative = b.op("Less", index, b.literal([0], "int64", ()))
    shift = b.literal([-_LABEL_SHIFT], "int64", ()) if label else b.size(nodes, lambda n: n.spec.attrs[0])
    return b.op("Where", negative, b.op("Add", index, shift), index)


# ---- positions ------------------------------------------------------------------------------------------------------


def _gather(b: Builder, nodes: Nodes, x: str, *indices: str) -> str:
    plan = b.same(nodes, lambda n: n.spec.attrs[1], "plan")
    node = nodes[0]
    at = [k for k, where in enumerate(plan) if where < 0]
    rest = [k for k, where in enumerate(plan) if where >= 0]
    if len(at) == 1:
        axis, j = at[0], -1 - plan[at[0]]
        index = cast_rule(b, indices[j], node.parents[1 + j].dtype.name, "int64")
        others = [plan[k] for k in rest]
        free = [d for d in range(node.ndim) if d not in others]
        standing = others == [*range(axis), *range(node.ndim - len(plan) + axis + 1, node.ndim)]
        if standing and _varies_within(nodes, j, free):
            return b.op("Gather", x, b.reshaped(index, nodes, lambda n: _sizes_at(n, j, free)), axis=axis)
        if node.ndim == len(plan) and others == [k for k in range(node.ndim) if k != axis]:
            wide = b.op("Expand", index, b.ints(nodes, lambda n: n.shape))
            return b.op("GatherElements", x, wide, axis=axis)
    columns = [
        cast_rule(b, indices[-1 - w], node.parents[-w].dtype.name, "int64")
        if w < 0
        else b.reshaped(_counted(b, nodes, _along(w)), nodes, functools.partial(_only, w, lambda n: n.shape))
        for w in plan
    ]
    return b.op("GatherND", x, _together(b, nodes, columns, lambda n: n.shape))


def _varies_within(nodes: Nodes, j: int, free: Sequence[int]) -> bool:
    """Whether the j-th index operand has its elements along axes of the result that nothing else names, all of them."""
    return all(
        all(size == 1 or n.ndim - p.ndim + d in free for d, size in enumerate(p.shape))
        and _sizes_at(n, j, free) == [n.shape[d] for d in free]
        for n in nodes
        for p in (n.parents[1 + j],)
    )


def _sizes_at(n: Node, j: int, axes: Sequence[int]) -> list[int]:
    """Return the sizes of the j-th index operand along axes of the result."""
    index = n.parents[1 + j]
    skip = n.ndim - index.ndim
    return [index.shape[d - skip] if d >= skip else 1 for d in axes]


def _together(b: Builder, nodes: Nodes, columns: Sequence[str], shape: Callable[[Node], Sequence[int]]) -> str:
    """Return a position for each element of a shape: columns, each broadcast to it, side by side along a new axis."""
    whole, last = b.ints(nodes, shape), b.literal([-1], "int64")
    wide = [b.op("Unsqueeze", b.op("Expand", c, whole), last) for c in columns]
    return b.op("Concat", *wide, axis=-1)


def _put(b: Builder, nodes: Nodes, x: str, value: str) -> str:
    steps = b.same(nodes, lambda n: n.spec.attrs[1], "steps")
    columns = []
    for k, step in enumerate(steps):
        count = _counted(b, nodes, _along(k, lambda n: n.spec.attrs[2]))
        at = b.op("Mul", count, b.literal([step], "int64", ()))
        at = b.op("Add", at, b.size(nodes, _along(k, lambda n: n.spec.attrs[0])))
        columns.append(b.reshaped(at, nodes, functools.partial(_only, k, lambda n: n.spec.attrs[2])))
    return b.op("ScatterND", x, _together(b, nodes, columns, lambda n: n.spec.attrs[2]), value)


def _scatter(b: Builder, nodes: Nodes, values: str, rows: str) -> str:
    mode = "add" if len(nodes[0].spec.attrs) == 1 else b.same(nodes, lambda n: n.spec.attrs[1], "mode")
    dtype = nodes[0].dtype
    start = 0 if mode == "add" else identity_of(mode, dtype)
    if dtype is dtypes.uint64 and mode in ("max", "min"):
        raise refuse(nodes, "runtimes do not order uint64 in a scatter; cast it with .astype('int64')")
    whole = b.op("Expand", b.scalar(start, dtype.name), b.ints(nodes, lambda n: n.shape))
    rows = cast_rule(b, rows, nodes[0].parents[1].dtype.name, "int64")
    count = b.size(nodes, lambda n: n.shape[0])
    rows = b.op("Where", b.op("Less", rows, b.literal([0], "int64", ())), b.op("Add", rows, count), rows)
    at = b.op("Unsqueeze", rows, b.literal([1], "int64"))
    how = {"multiply": "mul"}.get(mode, mode)
    return b.settle(b.op("ScatterND", whole, at, values, reduction=how), dtype.name)


# ---- sums and products ----------------------------------------------------------------------------------------------


def _reduce(kind: str) -> Rule:
    def rule(b: Builder, nodes: Nodes, x: str) -> str:
        dtype = nodes[0].dtype.name
        axes = b.literal(b.same(nodes, lambda n: n.spec.attrs[0], "axes"), "int64")
        if dtype == "bool":
            return b.cast(b.op(kind, b.cast(x, "int32"), axes, keepdims=1), "bool")
        turned = dtype == "uint64" and kind in ("ReduceMax", "ReduceMin")
        flip = b.literal([-(2**63)], "int64", ())
        found = b.op(kind, b.op("BitwiseXor", x, flip) if turned else x, axes, keepdims=1)
        return b.op("BitwiseXor", found, flip) if turned else b.settle(found, dtype)

    return rule


def _matmul(b: Builder, nodes: Nodes, x: str, y: str) -> str:
    xs = [
        cast_rule(b, name, p.dtype.name, nodes[0].dtype.name) for name, p in zip((x, y), nodes[0].parents, strict=True)
    ]
    return b.settle(b.op("MatMul", *xs), nodes[0].dtype.name)


# ---- library's ops that ONNX has ------------------------------------------------------------------------------------


def _sort(b: Builder, nodes: Nodes, x: str) -> tuple[str, ...]:
    """Return the sorted elements and their places: TopK takes the earlier of equal ones first, so it is stable."""
    dtype = nodes[0].parents[0].dtype.name
    keys = b.cast(x, "int32") if dtype == "bool" else x
    flip = b.literal([-(2**63)], "int64", ())
    keys = b.op("BitwiseXor", x, flip) if dtype == "uint64" else keys
    count = b.ints(nodes, lambda n: n.parents[0].shape[-1:])
    values, places = b.several("TopK", (keys, count), 2, axis=-1, largest=0, sorted=1)
    if dtype == "bool":
        values = b.cast(values, "bool")
    return (b.op("BitwiseXor", values, flip) if dtype == "uint64" else values), places


def _sorted_values(b: Builder, nodes: Nodes, x: str) -> tuple[str, ...]:
    return _sort(b, nodes, x)[:1]


def _running_sum(b: Builder, nodes: Nodes, x: str) -> tuple[str, ...]:
    axis = b.literal([nodes[0].ndim - 1], "int64", ())
    return (b.settle(b.op("CumSum", x, axis), nodes[0].dtype.name),)


RULES: dict[str, Rule] = {
    "alias": _same,
    "call_output_": _same,
    "analytic_": _same,
    "transfer_": _same,  # where a runtime computes is its own affair
    "reshape_": _reshape,
    "permute_": _permute,
    "expand_": _expand,
    "slice_": _slice,
    "pad_": _pad,
    "windows_": _windows,
    "host_scalar": _scalar,
    "iota": _iota,
    "astype": _cast,
    "bitcast": _bitcast,
    "check_": _check,
    "gather_": _gather,
    "put_": _put,
    "scatter_rows_": _scatter,
    "scatter_reduce_rows_": _scatter,
    "sum_": _reduce("ReduceSum"),
    "max_": _reduce("ReduceMax"),
    "min_": _reduce("ReduceMin"),
    "prod_": _reduce("ReduceProd"),
    "matmul_": _matmul,
    "sort_": _sort,
    "sort_values_": _sorted_values,
}
_BORROWED = "polygrad makes it of nothing else, and ONNX has no operator for it"
REFUSED: dict[str, str] = {
    "random_bits_": "random numbers differ from run to run; draw them before and pass them in, or call .eval() first",
    "placeholder_": "it stands for the value of one example in pg.vmap, and has none itself",
    "buffer": "it is a value in memory, which stands in the file as a constant",
    "pair_": "ONNX's operators take no complex numbers; return pg.real(...) and pg.imag(...)",
    **dict.fromkeys(("eigh_", "eigvalsh_", "eig_", "eigvals_", "svd_", "svdvals_", "qr_"), _BORROWED),
}


def library_rule(node: Node) -> Rule | None:
    """Return the rule of a library's op, if ONNX has an operator that does this call."""
    if node.op.name == "scan_" and node.spec.attrs[1] == "sum":
        return _running_sum
    return RULES.get(node.op.name)
