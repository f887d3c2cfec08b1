"""Operators that stand for several nodes at once, so that an exported model reads, and runs, like the model.

Here: `PATTERNS` by the op of the last node: what polygrad makes of a convolution, a pooling, a linear layer, a softmax,
a joining, relu and sigmoid is recognised and written as ONNX's own operator, where that means the same.
Not here: single nodes (`onnx_ops.py`). What is inside of a pattern is written too, and left out if nothing needs it.

Layer norms stay as they are: runtimes may compute ONNX's LayerNormalization from a mean of squares, which loses digits.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

from polygrad.graph.node import Node
from polygrad.io.onnx_graph import Builder, Nodes

Names = Mapping[Node, str]
Pattern = Callable[[Builder, Names, Nodes], str | None]
_FLOATS = ("float32", "float64")
_LEAST, _MOST = 1, 3  # axes of windows that runtimes convolve and pool over


def under(node: Node, *ops: str) -> list[Node] | None:
    """Return the nodes that *ops* name, each the first operand of the one before, the first being *node* itself."""
    found: list[Node] = []
    for op in ops:
        if found:
            if not found[-1].parents:
                return None
            node = found[-1].parents[0]
        if node.op.name != op or node.storage is not None:
            return None
        found.append(node)
    return found


def is_number(b: Builder, node: Node, value: float) -> bool:
    """Whether a node is a given host scalar in every trace, broadcast or not."""
    if node.op.name == "expand_" and node.storage is None:
        node = node.parents[0]
    return bool(node.op.kind == "scalar" and node.value == value and node in b.steady)


def _window(b: Builder, node: Node) -> Any:
    """Return the facts of windows over [N, C, ...] in float32 that no size changes; None if it is another view."""
    rank = len(node.spec.attrs[0])
    fits = node.dtype.name == "float32" and node.parents[0].ndim == rank + 2 and _LEAST <= rank <= _MOST
    return node.spec.attrs if fits and node in b.steady else None


def _padded(b: Builder, names: Names, node: Node, fill: float, rank: int) -> tuple[str, tuple[int, ...]]:
    """Return what windows lie on and its padding: that of a pad of *fill* around the last axes, else none."""
    if node.op.name == "pad_" and node.storage is None and node.spec.attrs[2] == fill and node in b.steady:
        before, after, _ = node.spec.attrs
        if not any(before[:2] + after[:2]):
            return names[node.parents[0]], (*before[2:], *after[2:])
    return names[node], (0,) * (2 * rank)


def _convolution(b: Builder, names: Names, window: Node, weight: Node, groups: int) -> str | None:
    found = _window(b, window)
    if found is None or weight.dtype is not window.dtype:
        return None
    kernel, stride, dilation = found
    if weight.shape[2:] != kernel:
        return None
    x, pads = _padded(b, names, window.parents[0], 0, len(kernel))
    return b.op(
        "Conv", x, names[weight], kernel_shape=kernel, strides=stride, dilations=dilation, pads=pads, group=groups
    )


def conv(b: Builder, names: Names, nodes: Nodes) -> str | None:
    """A convolution in one group: windows as rows times kernels as columns."""
    found = under(nodes[0], "permute_", "reshape_", "matmul_", "reshape_", "permute_", "windows_")
    if found is None:
        return None
    last, _, product, _, laid, window = found
    columns = under(product.parents[1], "permute_", "reshape_")
    rank = len(window.spec.attrs[0])
    at, within = range(2, 2 + rank), range(2 + rank, 2 + 2 * rank)
    fits = last.spec.attrs[0] == (0, rank + 1, *range(1, rank + 1)) and laid.spec.attrs[0] == (0, *at, 1, *within)
    if columns is None or not fits or columns[0].spec.attrs[0] != (1, 0):
        return None
    weight = columns[1].parents[0]
    if weight.ndim != rank + 2 or weight.shape[1] != window.shape[1] or columns[1].shape[0] != weight.shape[0]:
        return None
    return _convolution(b, names, window, weight, 1)


def grouped_conv(b: Builder, names: Names, nodes: Nodes) -> str | None:
    """A convolution in groups: a batch of products, one for each."""
    path = ("reshape_", "permute_", "reshape_", "matmul_", "reshape_", "permute_", "reshape_", "windows_")
    found = under(nodes[0], *path)
    if found is None:
        return None
    root, last, _, product, _, laid, apart, window = found
    rank = len(window.spec.attrs[0])
    at = range(2, 2 + rank)
    order = (1, 0, *(k + 1 for k in at), 2, *(k + 1 + rank for k in at))
    columns = under(product.parents[1], "permute_", "reshape_")
    fits = last.spec.attrs[0] == (1, 0, rank + 2, *at) and laid.spec.attrs[0] == order
    if columns is None or not fits or columns[0].spec.attrs[0] != (0, 2, 1) or root.ndim != rank + 2:
        return None
    weight, groups = columns[1].parents[0], product.shape[0]
    if weight.ndim != rank + 2 or weight.shape[1] * groups != window.shape[1] or root.shape[1] != weight.shape[0]:
        return None
    if apart.shape[1:3] != (groups, weight.shape[1]) or columns[1].shape[0] != groups:
        return None
    return _convolution(b, names, window, weight, groups)


def depthwise_conv(b: Builder, names: Names, nodes: Nodes) -> str | None:
    """A convolution of each channel with its own kernel: windows times kernels, summed."""
    found = under(nodes[0], "reshape_", "sum_", "multiply", "windows_")
    if found is None:
        return None
    root, total, product, window = found
    rank = len(window.spec.attrs[0])
    spread = under(product.parents[1], "reshape_")
    if spread is None or total.spec.attrs[0] != tuple(range(2 + rank, 2 + 2 * rank)) or root.ndim != rank + 2:
        return None
    weight, channels = spread[0].parents[0], window.shape[1]
    fits = spread[0].shape == (channels, *(1,) * rank, *weight.shape[2:]) and weight.shape[:2] == (channels, 1)
    return _convolution(b, names, window, weight, channels) if fits else None


def max_pool(b: Builder, names: Names, nodes: Nodes) -> str | None:
    """The maximum of each window."""
    found = under(nodes[0], "reshape_", "max_", "windows_")
    if found is None or _window(b, found[2]) is None or not _pools(found[0], found[1], found[2]):
        return None
    kernel, stride, dilation = found[2].spec.attrs
    x, pads = _padded(b, names, found[2].parents[0], -math.inf, len(kernel))
    if any(p >= k for p, k in zip(pads, (*kernel, *kernel), strict=True)):
        return None  # more than runtimes allow
    return b.op("MaxPool", x, kernel_shape=kernel, strides=stride, dilations=dilation, pads=pads)


def mean_pool(b: Builder, names: Names, nodes: Nodes) -> str | None:
    """The mean of each window; padding, if there is any, is an operator of its own."""
    found = under(nodes[0], "reshape_", "divide", "sum_", "windows_")
    if found is None or _window(b, found[3]) is None or not _pools(found[0], found[2], found[3]):
        return None
    kernel, stride, dilation = found[3].spec.attrs
    if any(d != 1 for d in dilation) or not is_number(b, found[1].parents[1], math.prod(kernel)):
        return None
    x = names[found[3].parents[0]]
    return b.op("AveragePool", x, kernel_shape=kernel, strides=stride)


def _pools(root: Node, reduced: Node, window: Node) -> bool:
    """Whether a reduction goes over the places in windows, and the result has the windows' places."""
    rank = len(window.spec.attrs[0])
    axes = tuple(range(2 + rank, 2 + 2 * rank))
    return bool(tuple(sorted(reduced.spec.attrs[0])) == axes and root.shape == window.shape[: 2 + rank])


def gemm(b: Builder, names: Names, nodes: Nodes) -> str | None:
    """A product with a matrix transposed, as linear layers have it."""
    node = nodes[0]
    columns = under(node.parents[1], "permute_")
    alike = {p.dtype.name for p in node.parents} == {node.dtype.name}
    if columns is None or node.ndim != 2 or node.dtype.name not in _FLOATS or not alike:  # noqa: PLR2004  matrices
        return None
    return b.op("Gemm", names[node.parents[0]], names[columns[0].parents[0]], transB=1)


def biased(b: Builder, names: Names, nodes: Nodes) -> str | None:
    """A bias added to a linear layer or a convolution that has none yet."""
    node = nodes[0]
    if node.dtype.name not in _FLOATS or any(p.dtype is not node.dtype for p in node.parents):
        return None
    product, bias = node.parents
    made = b.made.get(names[product])
    if made is None or len(made.inputs) != 2 or product.shape != node.shape:  # noqa: PLR2004  x and weight
        return None
    if made.kind == "Gemm" and bias.ndim == 1 and bias.shape[0] == node.shape[1]:
        return b.op("Gemm", *made.inputs, names[bias], **dict(made.attributes))
    laid = under(bias, "reshape_")
    if made.kind == "Conv" and laid is not None:
        values, shape = laid[0].parents[0], (node.shape[1], *(1,) * (node.ndim - 2))
        if values.ndim == 1 and bias.shape == shape:
            return b.op("Conv", *made.inputs, names[values], **dict(made.attributes))
    return None


def _below_top(names: Names, node: Node) -> tuple[Node, int] | None:
    """Return x and the axis if a node is x less its maximum over one axis."""
    if node.op.name != "subtract" or node.storage is not None or node.dtype.name not in _FLOATS:
        return None
    x, top = node.parents[0], _bare(node.parents[1])
    if top.op.name != "max_" or top.storage is not None or names[top.parents[0]] != names[x]:
        return None
    return (x, top.spec.attrs[0][0]) if len(top.spec.attrs[0]) == 1 else None


def _bare(node: Node) -> Node:
    """Return what a chain of aliases, which cut values off from recordings, stands for."""
    while node.op.name == "alias" and node.storage is None:
        node = node.parents[0]
    return node


def quotients(b: Builder, names: Names, nodes: Nodes) -> str | None:
    """A softmax."""
    powers, total = nodes[0].parents
    if total.op.name != "sum_" or total.storage is not None or total.parents[0] is not powers:
        return None
    found = under(powers, "exp", "subtract")
    shifted = None if found is None else _below_top(names, found[1])
    if shifted is None or total.spec.attrs[0] != (shifted[1],):
        return None
    return b.op("Softmax", names[shifted[0]], axis=shifted[1])


def log_softmax(b: Builder, names: Names, nodes: Nodes) -> str | None:
    """What is left of x after its maximum and the logarithm of the sum of exponentials are taken away."""
    shifted = _below_top(names, nodes[0].parents[0])
    total = under(nodes[0].parents[1], "log", "sum_", "exp")
    if shifted is None or total is None or total[2].parents[0] is not nodes[0].parents[0]:
        return None
    return b.op("LogSoftmax", names[shifted[0]], axis=shifted[1]) if total[1].spec.attrs[0] == (shifted[1],) else None


def sigmoid(b: Builder, names: Names, nodes: Nodes) -> str | None:
    """A sigmoid: e or 1, divided by 1 + e, where e is exp(-abs(x))."""
    upper, share = nodes[0].parents
    found = under(share, "inverse_", "add", "exp")
    if upper.op.name != "where" or found is None or nodes[0].dtype.name not in _FLOATS:
        return None
    _, lower, e = found
    downhill = under(e, "exp", "where")
    if downhill is None or upper.parents[1] is not e or not is_number(b, upper.parents[2], 1.0):
        return None
    condition, x, mirrored = downhill[1].parents
    turned = under(mirrored, "negative")
    below = [
        c.op.name == "less" and c.parents[0] is x and is_number(b, c.parents[1], 0.0) for c in _conditions(upper, e)
    ]
    fits = turned is not None and turned[0].parents[0] is x and is_number(b, lower.parents[1], 1.0)
    return b.op("Sigmoid", names[x]) if fits and all(below) and condition.op.name == "less" else None


def _conditions(upper: Node, e: Node) -> list[Node]:
    return [upper.parents[0], e.parents[0].parents[0]]


def relu(b: Builder, names: Names, nodes: Nodes) -> str | None:
    """A relu of floats."""
    return b.op("Relu", names[nodes[0].parents[0]]) if nodes[0].dtype.name in _FLOATS else None


def selections(b: Builder, names: Names, nodes: Nodes) -> str | None:
    """A relu, or arrays joined along an axis."""
    condition, chosen, x = nodes[0].parents
    if condition.op.name == "less_equal" and condition.storage is None and nodes[0].dtype.name in _FLOATS:
        if condition.parents[0] is x and is_number(b, condition.parents[1], 0.0) and is_number(b, chosen, 0.0):
            return b.op("Relu", names[x])
    joined = [_joined(n) for n in nodes]
    parts, axis = joined[0]
    if not parts or any(len(p) != len(parts) or a != axis for p, a in joined):
        return None
    return b.op("Concat", *[names[p] for p in parts], axis=axis)


def _joined(node: Node) -> tuple[list[Node], int]:
    """Return the arrays that a chain of selections joins, and the axis; none if it is something else.

    Each array is padded to the whole, and read where a count along the axis is below its end.
    """
    pads: list[Node] = []
    bounds: list[Any] = []
    whole = node
    while node.op.name == "where" and node.storage is None:
        test = under(node.parents[0], "less")
        if test is None or test[0].parents[1].op.kind != "scalar" or node.parents[1].op.name != "pad_":
            return [], 0
        bounds.append((test[0].parents[1].value, test[0].parents[0]))
        pads.append(node.parents[1])
        node = node.parents[2]
    pads.append(node)
    if len(pads) == 1 or any(p.op.name != "pad_" or p.storage is not None for p in pads):
        return [], 0
    axis = next((k for k, n in enumerate(pads[0].spec.attrs[1]) if n), 0)
    ends = list(itertools.accumulate(p.parents[0].shape[axis] for p in pads))
    starts = [0, *ends[:-1]]
    fits = ends[-1] == whole.shape[axis] and [v for v, _ in bounds] == ends[:-1]
    fits = fits and all(_lies(p, axis, start) for p, start in zip(pads, starts, strict=True))
    return ([p.parents[0] for p in pads], axis) if fits and all(_counts(c, whole, axis) for _, c in bounds) else ([], 0)


def _lies(pad: Node, axis: int, start: int) -> bool:
    """Whether a pad puts its operand at *start* of an axis, and adds nothing along the others."""
    before, after, _ = pad.spec.attrs
    return bool(
        before[axis] == start and not any(n for part in (before, after) for n in part[:axis] + part[axis + 1 :])
    )


def _counts(count: Node, whole: Node, axis: int) -> bool:
    """Whether a node is 0, 1, ... along an axis of another, and broadcasts along the others."""
    base = count.parents[0] if count.op.name == "reshape_" and count.storage is None else count
    shape = (whole.shape[axis], *(1,) * (whole.ndim - 1 - axis))
    return base.op.name == "iota" and count.shape == shape


PATTERNS: dict[str, tuple[Pattern, ...]] = {
    "permute_": (conv,),
    "reshape_": (grouped_conv, depthwise_conv, max_pool, mean_pool),
    "matmul_": (gemm,),
    "add": (biased,),
    "divide": (quotients,),
    "multiply": (sigmoid,),
    "subtract": (log_softmax,),
    "relu": (relu,),
    "where": (selections,),
}
