"""How each kind of primitive takes a batch axis: `vmap` reads a graph of one example by these rules.

Here: one rule for each kind, in `RULES`. A rule gets the operands of all examples, a batch axis in front of those that
differ between examples, and builds the result of all examples with the batch axis in front.
Not here: the walk over the graph (`autograd/batching.py`), derivatives, the ops themselves.

A rule is ``(xp, n, out, lifted, operands, *attrs) -> node``: *n* examples; *out*, the node of one example, whose shape
and parents' shapes have no batch axis; *lifted*, for each operand whether it has one (at least one has).
"""

from collections.abc import Callable
from typing import Any

from polygrad import dtypes
from polygrad.ops.table import TABLE, Op

Rule = Callable[..., Any]

# Kinds that have no operands, so that no example can differ from another in them; a pair is read by its parts.
LEAVES = frozenset({"scalar", "buffer", "iota", "placeholder", "pair"})


def full(xp: Any, n: int, x: Any) -> Any:
    """Return an operand that is the same for all examples with a batch axis in front."""
    return xp.expand_(x, (n, *x.shape))


def _aligned(xp: Any, x: Any, rank: int) -> Any:
    """Return a lifted operand with axes of size 1 behind the batch axis, so that it broadcasts to *rank* axes."""
    missing = rank + 1 - x.ndim
    return x if missing <= 0 else xp.reshape_(x, (x.shape[0], *(1,) * missing, *x.shape[1:]))


def _elementwise(xp: Any, n: int, out: Any, lifted: Any, operands: Any, *_: Any) -> Any:
    rank = out.ndim
    given = [_aligned(xp, x, rank) if moved else x for x, moved in zip(operands, lifted, strict=True)]
    return getattr(xp, out.op.name)(*given)


def _as_it_is(xp: Any, n: int, out: Any, lifted: Any, operands: Any, *attrs: Any) -> Any:
    return getattr(xp, out.op.name)(operands[0], *attrs)


def _cast(xp: Any, n: int, out: Any, lifted: Any, operands: Any, *attrs: Any) -> Any:
    return xp.astype(operands[0], *attrs) if out.op.name == "astype" else xp.bitcast(operands[0], *attrs)


def _alias(xp: Any, n: int, out: Any, lifted: Any, operands: Any, *_: Any) -> Any:
    return xp.alias(operands[0] if lifted[0] else full(xp, n, operands[0]))


def _transfer(xp: Any, n: int, out: Any, lifted: Any, operands: Any, device: Any) -> Any:
    return xp.to_device_(operands[0], device)


def _reshape(xp: Any, n: int, out: Any, lifted: Any, operands: Any, shape: Any) -> Any:
    return xp.reshape_(operands[0], (n, *shape))


def _permute(xp: Any, n: int, out: Any, lifted: Any, operands: Any, order: Any) -> Any:
    return xp.permute_(operands[0], (0, *[k + 1 for k in order]))


def _expand(xp: Any, n: int, out: Any, lifted: Any, operands: Any, shape: Any) -> Any:
    return xp.expand_(_aligned(xp, operands[0], len(shape)), (n, *shape))


def _slice(xp: Any, n: int, out: Any, lifted: Any, operands: Any, starts: Any, steps: Any, sizes: Any) -> Any:
    return xp.slice_(operands[0], (0, *starts), (1, *steps), (n, *sizes))


def _pad(xp: Any, n: int, out: Any, lifted: Any, operands: Any, before: Any, after: Any, fill: Any) -> Any:
    return xp.pad_(operands[0], (0, *before), (0, *after), fill)


def _reduce(xp: Any, n: int, out: Any, lifted: Any, operands: Any, axes: Any) -> Any:
    return getattr(xp, out.op.name)(operands[0], tuple(k + 1 for k in axes))


def _matmul(xp: Any, n: int, out: Any, lifted: Any, operands: Any, *_: Any) -> Any:
    """Multiply by a matrix that all examples share in one product, the examples' rows below each other.

    Products of columns with rows, the gradients of single examples, need no sums: they are elementwise, and fuse.
    """
    a, b = operands
    if a.shape[-1] == 1 and all(lifted):
        return a * b
    if out.ndim == 2 and not all(lifted) and n:
        if lifted[0]:
            rows, inner = a.shape[1:]
            flat = xp.matmul_(xp.reshape_(a, (n * rows, inner)), b)
            return xp.reshape_(flat, (n, rows, b.shape[1]))
        inner, columns = b.shape[1:]
        flat = xp.matmul_(xp.reshape_(xp.swap_last(b), (n * columns, inner)), xp.swap_last(a))
        return xp.swap_last(xp.reshape_(flat, (n, columns, a.shape[0])))
    a, b = (x if moved else full(xp, n, x) for x, moved in zip(operands, lifted, strict=True))
    return xp.matmul_(a, b)


def _gather(xp: Any, n: int, out: Any, lifted: Any, operands: Any, *attrs: Any) -> Any:
    shape, plan = attrs
    moved = tuple(k + 1 if k >= 0 else k for k in plan)
    indices = [_aligned(xp, i, len(shape)) if up else i for i, up in zip(operands[1:], lifted[1:], strict=True)]
    return xp.gather_(operands[0], *indices, (n, *shape), (0, *moved) if lifted[0] else moved)


def _scatter(xp: Any, n: int, out: Any, lifted: Any, operands: Any, count: int, *mode: Any) -> Any:
    """Scatter the rows of all examples at once: into wider rows if the places are shared, else into more rows."""
    function = getattr(xp, out.op.name)
    values, rows = operands
    k, m = out.parents[0].shape
    if not lifted[1]:
        flat = xp.reshape_(xp.permute_(values, (1, 0, 2)), (k, n * m))
        wide = function(flat, rows, count, *mode)
        return xp.permute_(xp.reshape_(wide, (count, n, m)), (1, 0, 2))
    values = values if lifted[0] else full(xp, n, values)
    first = xp.reshape_(xp.iota(n, dtypes.int64) * count, (n, 1))
    places = xp.reshape_(xp.checked_index(rows, count) + first, (n * k,))
    return xp.reshape_(function(xp.reshape_(values, (n * k, m)), places, n * count, *mode), (n, count, m))


def _put(xp: Any, n: int, out: Any, lifted: Any, operands: Any, starts: Any, steps: Any, sizes: Any) -> Any:
    x, value = (p if moved else full(xp, n, p) for p, moved in zip(operands, lifted, strict=True))
    return xp.put_(x, value, (0, *starts), (1, *steps), (n, *sizes))


_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def _random(xp: Any, n: int, out: Any, lifted: Any, operands: Any, words: int) -> Any:
    """Draw *words* under each example's key, as integer arithmetic: the device's own op takes one key.

    Notes
    -----
    Philox-4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    key, counter = (xp.reshape_(x, (n, 1)) if up else x for x, up in zip(operands, lifted, strict=True))
    index = xp.iota(words, dtypes.uint64)
    block = xp.bitwise_right_shift(index, 2) + counter
    zero = xp.constant(0, dtypes.uint32)
    state = [_low(xp, block), _high(xp, block), zero, zero]
    keys = [_low(xp, key), _high(xp, key)]
    for _ in range(10):
        p, q = (xp.astype(state[k], dtypes.uint64) * m for k, m in zip((0, 2), _MULTIPLIERS, strict=True))
        state = [
            xp.bitwise_xor(xp.bitwise_xor(_high(xp, q), state[1]), keys[0]),
            _low(xp, q),
            xp.bitwise_xor(xp.bitwise_xor(_high(xp, p), state[3]), keys[1]),
            _low(xp, p),
        ]
        keys = [xp.add(k, w) for k, w in zip(keys, _WEYL, strict=True)]
    lane = xp.bitwise_and(index, 3)
    value = state[3]
    for k in (2, 1, 0):
        value = xp.where(xp.equal(lane, k), state[k], value)
    return xp.expand_(value, (n, words))


def _low(xp: Any, word: Any) -> Any:
    return xp.astype(word, dtypes.uint32)


def _high(xp: Any, word: Any) -> Any:
    return xp.astype(xp.bitwise_right_shift(word, 32), dtypes.uint32)


def _library(xp: Any, n: int, out: Any, lifted: Any, operands: Any, index: int, *attrs: Any) -> Any:
    """Library ops work along the last axes: any axes may stand in front, if all operands have them."""
    given = [x if moved else full(xp, n, x) for x, moved in zip(operands, lifted, strict=True)]
    made = getattr(xp, out.op.name)(*given, *attrs)
    return made[index] if isinstance(made, tuple) else made


RULES: dict[str, Rule] = {
    "elementwise": _elementwise,
    "cast": _cast,
    "bitcast": _cast,
    "alias": _alias,
    "transfer": _transfer,
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "pad": _pad,
    "windows": _as_it_is,
    "reduce": _reduce,
    "matmul": _matmul,
    "gather": _gather,
    "check": _as_it_is,
    "scatter": _scatter,
    "put": _put,
    "random": _random,
    "library": _library,
}


def rule_of(op: Op) -> Rule | None:
    """Return the batching rule of an op: its own if it declares one, else that of its kind; None if it has none."""
    return op.batch or RULES.get(op.kind)


def without_rule() -> list[str]:
    """Return the ops of the table that vmap could not read: there must be none."""
    return [op.name for op in TABLE.values() if op.kind not in LEAVES | {"composite"} and rule_of(op) is None]


def folded(key: Any, index: Any, wrap: Callable[[Any], Any] = lambda z: z % 2**64) -> Any:
    """Return the key of the example (or rank) *index* of a stream of random numbers: ints, or nodes of dtype uint64.

    Notes
    -----
    Two rounds of the finaliser of SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
    OOPSLA 2014.

    >>> hex(folded(0, 0))
    '0xe220a8397b1dcdaf'
    """
    return _mixed(wrap(_mixed(key, wrap) + wrap((index + 1) * 0x9E3779B97F4A7C15)), wrap)


def _mixed(z: Any, wrap: Callable[[Any], Any]) -> Any:
    z = wrap((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9)
    z = wrap((z ^ (z >> 27)) * 0x94D049BB133111EB)
    return z ^ (z >> 31)
