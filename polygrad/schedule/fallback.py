"""Library ops for devices that do not have them, as fused kernels on the same device.

Here: matmul as multiply and sum, random bits as integer arithmetic, scatters as masked reductions. Slow, right, and
never on the host.
Not here: the fast versions, which are the drivers' own.
"""

from polygrad import shapes
from polygrad.driver.ir import Instr, Kernel, Store, View
from polygrad.graph.node import Node
from polygrad.ops.placing import identity_of
from polygrad.schedule.body import Body, name
from polygrad.schedule.emit import STATUS, FusedLaunch
from polygrad.schedule.views import View as Operand

PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)


def library_launch(node: Node, operands: list[Operand]) -> FusedLaunch:
    """Return the fused launch that computes a library op."""
    return {"matmul": _matmul, "random": _random, "scatter": _scatter}[node.spec.op.kind](node, operands)


def _classes(strides: tuple[int, ...]) -> tuple[tuple[int | None, ...], list[int]]:
    return tuple(s if s in (0, 1) else None for s in strides), [s for s in strides if s not in (0, 1)]


def _launch(
    node: Node,
    body: Body,
    axes: tuple[int, ...],
    reduced: int,
    views: list[tuple[View, list[int], Node | None]],
    value: int,
    buffers: list[object],
    scalars: tuple[Node, ...] = (),
    status: bool = False,
    traced: dict[int, Node] | None = None,
) -> FusedLaunch:
    ints, offsets = list(axes), []
    for _, own, leaf in views:
        if leaf is not None and leaf.storage is not None:
            offsets.append((len(ints), leaf))
        ints += own
    dtypes_of = [next(v.dtype for v, _, _ in views if v.buffer == k) for k in range(len(buffers))]
    where = -1
    if status:
        where = len(buffers)
        buffers = [*buffers, STATUS]
        dtypes_of.append("int32")
    kernel = Kernel(
        len(axes) - reduced,
        reduced,
        tuple(dtypes_of),
        tuple(v for v, _, _ in views),
        tuple(name(s.dtype) for s in scalars),
        tuple(body.instrs),
        (Store(value, len(views) - 1),),
        where,
    )
    return FusedLaunch(kernel, tuple(buffers), tuple(ints), scalars, tuple(offsets), (node,), {}, traced or {})


def _matmul(node: Node, operands: list[Operand]) -> FusedLaunch:
    (a, _, sa, oa), (b, _, sb, ob) = operands
    axes = (*node.aval.shape, node.parents[0].aval.shape[-1])
    body = Body()
    dtype = name(node.dtype)
    left = (*sa[:-2], sa[-2], 0, sa[-1])
    right = (*sb[:-2], 0, sb[-1], sb[-2])
    out = (*shapes.strides(node.aval.shape), 0)
    views: list[tuple[View, list[int], Node | None]] = []
    buffers: list[object] = []
    values = []
    for base, strides, offset in ((a, left, oa), (b, right, ob)):
        if base not in buffers:
            buffers.append(base)
        classes, dynamic = _classes(strides)
        views.append((View(buffers.index(base), dtype, classes), [offset, *dynamic], base))
        values.append(
            body.cast(
                body.add(Instr("load", dtype, (), len(views) - 1)),
                "float32" if dtype in ("float16", "bfloat16") else dtype,
            )
        )
    total = body.cast(body.reduce("sum", body("multiply", *values)), dtype)
    classes, dynamic = _classes(out)
    buffers.append(node)
    views.append((View(len(buffers) - 1, dtype, classes), [0, *dynamic], None))
    return _launch(node, body, axes, 1, views, total, buffers)


def _random(node: Node, _operands: list[Operand]) -> FusedLaunch:
    body = Body()
    key, counter = (body.add(Instr("scalar", "uint64", (), k)) for k in (0, 1))
    index = body.cast(body.add(Instr("iota", "int64", (), 0)), "uint64")
    block = body("add", counter, body("bitwise_right_shift", index, body.const(2, "uint64")))
    words = [_low(body, block), _high(body, block), body.const(0, "uint32"), body.const(0, "uint32")]
    keys = [_low(body, key), _high(body, key)]
    for _ in range(10):
        a = body("multiply", body.cast(words[0], "uint64"), body.const(PHILOX_MULTIPLIERS[0], "uint64"))
        b = body("multiply", body.cast(words[2], "uint64"), body.const(PHILOX_MULTIPLIERS[1], "uint64"))
        words = [
            body("bitwise_xor", body("bitwise_xor", _high(body, b), words[1]), keys[0]),
            _low(body, b),
            body("bitwise_xor", body("bitwise_xor", _high(body, a), words[3]), keys[1]),
            _low(body, a),
        ]
        keys = [body("add", k, body.const(w, "uint32")) for k, w in zip(keys, PHILOX_WEYL, strict=True)]
    lane = body.cast(body("bitwise_and", index, body.const(3, "uint64")), "uint32")
    value = words[3]
    for k in (2, 1, 0):
        value = body.where(body("equal", lane, body.const(k, "uint32")), words[k], value)
    views: list[tuple[View, list[int], Node | None]] = [(View(0, "uint32", (1,)), [0], None)]
    scalars = (node.parents[0], node.parents[1])
    return _launch(node, body, node.aval.shape, 0, views, value, [node], scalars)


def _low(body: Body, value: int) -> int:
    return body.cast(value, "uint32")


def _high(body: Body, value: int) -> int:
    return body.cast(body("bitwise_right_shift", value, body.const(32, "uint64")), "uint32")


def _scatter(node: Node, operands: list[Operand]) -> FusedLaunch:
    (values, _, _, ov), (rows, _, _, orow) = operands
    n, m = node.aval.shape
    k = rows.aval.size
    dtype = name(node.dtype)
    mode = node.spec.attrs[1] if len(node.spec.attrs) > 1 else "sum"
    body = Body()
    views: list[tuple[View, list[int], Node | None]] = [
        (View(0, "int64", (0, 0, 1)), [orow], rows),
        (
            View(1, dtype, (0, 1, None), gathers=1),
            [ov, m, 0, n],
            values,
        ),  # a gather of stride 0: it checks the row number
    ]
    row = body.add(Instr("load", "int64", (), 0))
    value = body.add(Instr("load", dtype, (row,), 1))
    checked = value
    stored = dtype in ("float16", "bfloat16")
    value = body.cast(value, "float32") if stored else value
    wrapped = body.where(body("less", row, body.const(0, "int64")), body("add", row, body.const(n, "int64")), row)
    here = body("equal", wrapped, body.add(Instr("iota", "int64", (), 0)))
    nothing = 0 if mode == "sum" else identity_of(mode, node.dtype)
    rest = body.const(float(nothing) if "float" in dtype else int(nothing), body.dtype(value))
    kind = "prod" if mode == "multiply" else mode
    total = body.cast(body.reduce(kind, body.where(here, value, rest)), dtype)
    views.append((View(2, dtype, (None, 1, 0)), [0, m], None))
    return _launch(node, body, (n, m, k), 1, views, total, [rows, values, node], status=True, traced={checked: node})
