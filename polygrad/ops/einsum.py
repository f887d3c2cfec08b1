"""Sums of products by index letters: `einsum`.

Here: NumPy's notation (repeated letters, ellipsis, implicit result, axes as lists of ints) read into pairs of operands,
each pair one matrix product over permuted and reshaped axes.
Not here: matrix products. Three and more operands are contracted in the order that opt_einsum finds best, if it is
installed, else from left to right.
"""

import math
from typing import Any

from polygrad import dtypes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.internal import cast
from polygrad.ops.table import composite

Letters = tuple[str, ...]  # one for each axis; those of an ellipsis are "...0", "...1", counted from the last axis


def _refuse(text: str, why: str) -> ShapeError:
    return ShapeError(f"cannot read the subscripts {text!r} of einsum: {why}")


def _term(text: str, part: str, rank: int | None) -> Letters:
    """Return the letters of one operand, or of the result (rank None: an ellipsis stands as itself)."""
    head, dots, tail = part.partition("...")
    for letter in head + tail:
        if not letter.isalpha():
            raise _refuse(text, f"{letter!r} is no letter")
    if not dots:
        if rank is not None and len(head) != rank:
            raise _refuse(text, f"{part!r} names {len(head)} axes of an operand that has {rank}")
        return tuple(head)
    if rank is None:
        return (*head, "...", *tail)
    hidden = rank - len(head) - len(tail)
    if hidden < 0:
        raise _refuse(text, f"{part!r} names {len(head) + len(tail)} axes of an operand that has {rank}")
    return (*head, *(f"...{k}" for k in reversed(range(hidden))), *tail)


def _from_lists(arguments: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """Return subscripts and operands from operand, axes, operand, axes, ..., perhaps the result's axes."""
    arrays, lists = list(arguments[::2]), list(arguments[1::2])
    result = arrays.pop() if len(arguments) % 2 else None

    def letters(axes: Any) -> str:
        return "".join("..." if k is Ellipsis else chr(97 + k) if 0 <= k < 26 else chr(39 + k) for k in axes)

    text = ",".join(letters(axes) for axes in lists)
    return (text if result is None else f"{text}->{letters(result)}"), arrays


def _read(arguments: tuple[Any, ...]) -> tuple[str, list[Letters], Letters, list[Any]]:
    """Return the text, the letters of operands and of the result, and the operands."""
    if not arguments:
        raise ShapeError("cannot compute einsum of nothing: give subscripts and operands")
    text, operands = (arguments[0], list(arguments[1:])) if isinstance(arguments[0], str) else _from_lists(arguments)
    left, arrow, right = text.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise _refuse(text, f"they are of {len(parts)} operands, but {len(operands)} are given")
    terms = [_term(text, part, x.ndim) for part, x in zip(parts, operands, strict=True)]
    dots = max((sum(k.startswith("...") for k in term) for term in terms), default=0)
    hidden = tuple(f"...{k}" for k in reversed(range(dots)))
    if not arrow:
        every = [k for term in terms for k in term if not k.startswith("...")]
        return text, terms, (*hidden, *sorted(k for k in set(every) if every.count(k) == 1)), operands
    result: list[str] = []
    for k in _term(text, right, None):
        result += hidden if k == "..." else (k,)
    known = {k for term in terms for k in term}
    for k in result:
        if result.count(k) > 1:
            raise _refuse(text, f"the result names {k!r} twice")
        if k not in known:
            raise _refuse(text, f"the result names {k!r}, which no operand has")
    return text, terms, tuple(result), operands


def _sizes(text: str, terms: list[Letters], operands: list[Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for term, x in zip(terms, operands, strict=True):
        for letter, n in zip(term, x.shape, strict=True):
            if sizes.setdefault(letter, n) != n:
                if n != 1 and sizes[letter] != 1:
                    raise _refuse(text, f"index {letter!r} has sizes {sizes[letter]} and {n}")
                sizes[letter] = max(n, sizes[letter]) if 0 not in (n, sizes[letter]) else 0
    return sizes


def _without_repeats(xp: Any, x: Any, term: Letters) -> tuple[Any, Letters]:
    """Return x with each letter once: a letter named twice takes the diagonal of its axes."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            rest = [k for k in range(x.ndim) if k not in (first, second)]
            x = xp.diagonal(xp.permute_dims(x, (*rest, first, second)))
            term = (*(term[k] for k in rest), letter)
    return x, term


def _summed(xp: Any, x: Any, term: Letters, keep: set[str]) -> tuple[Any, Letters]:
    """Return x summed over the letters that nobody else has."""
    gone = tuple(k for k, letter in enumerate(term) if letter not in keep)
    if not gone:
        return x, term
    return xp.sum(x, axis=gone, dtype=x.dtype), tuple(letter for letter in term if letter in keep)


def _arranged(xp: Any, x: Any, term: Letters, wanted: Letters, sizes: dict[str, int]) -> Any:
    """Return x with axes in the order of *wanted*, broadcast where it has none or one element."""
    order = [term.index(k) for k in wanted if k in term]
    x = xp.permute_dims(x, tuple(order))
    shape = tuple(x.shape[[k for k in wanted if k in term].index(k)] if k in term else 1 for k in wanted)
    return xp.broadcast_to(xp.reshape(x, shape), tuple(sizes[k] for k in wanted))


def _contracted(xp: Any, a: Any, ta: Letters, b: Any, tb: Letters, keep: set[str], sizes: dict[str, int]) -> Any:
    """Return the product of two operands summed over the letters not in *keep*, and its letters."""
    a, ta = _summed(xp, a, ta, keep | set(tb))
    b, tb = _summed(xp, b, tb, keep | set(ta))
    shared = [k for k in ta if k in tb]
    stretched = [k for k in shared if a.shape[ta.index(k)] != b.shape[tb.index(k)]]
    inner = tuple(k for k in shared if k not in keep)
    batch = tuple(k for k in shared if k in keep)
    left, right = tuple(k for k in ta if k not in tb), tuple(k for k in tb if k not in ta)
    out = (*batch, *left, *right)
    if not inner and not (left and right and batch == () and not stretched):
        wide = [
            xp.reshape(xp.permute_dims(x, tuple(t.index(k) for k in out if k in t)),
                       tuple(x.shape[t.index(k)] if k in t else 1 for k in out))
            for x, t in ((a, ta), (b, tb))
        ]  # fmt: skip
        return xp.multiply(*wide), out
    a = _arranged(xp, a, ta, (*batch, *left, *inner), sizes)
    b = _arranged(xp, b, tb, (*batch, *inner, *right), sizes)
    count = [math.prod(sizes[k] for k in group) for group in (left, inner, right)]
    lead = tuple(sizes[k] for k in batch)
    product = xp.matmul(xp.reshape(a, (*lead, count[0], count[1])), xp.reshape(b, (*lead, count[1], count[2])))
    return xp.reshape(product, tuple(sizes[k] for k in out)), out


def _order(text: str, operands: list[Any]) -> list[tuple[int, int]]:
    """Return which two operands to contract in each step; the result of a step goes to the end."""
    if len(operands) > 2:
        try:
            import opt_einsum  # noqa: PLC0415  an extra
        except ImportError:
            pass
        else:
            path, _ = opt_einsum.contract_path(text, *[x.shape for x in operands], shapes=True, optimize="auto")
            return _in_pairs([tuple(step) for step in path])
    return [(0, 1)] + [(count - 1, 0) for count in range(len(operands) - 1, 1, -1)] if len(operands) > 1 else []


def _in_pairs(path: list[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Return a path whose steps may name more than two operands as one of pairs."""
    if all(len(step) == 2 for step in path):
        return [(a, b) for a, b in path]
    count = sum(len(step) - 1 for step in path) + 1
    return [(0, 1)] + [(k - 1, 0) for k in range(count - 1, 1, -1)] if count > 1 else []


def _einsum_samples(draw: Any) -> Any:
    cases: tuple[Any, ...] = (
        ("ij,jk->ik", (3, 4), (4, 2)), ("ij,jk", (3, 4), (4, 2)), ("ii", (3, 3)), ("ii->i", (3, 3)), ("ij->ji", (2, 3)),
        ("ij->", (2, 3)), ("i,i", (4,), (4,)), ("i,j->ij", (3,), (2,)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 2)),
        ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)), ("...i->...", (2, 3)), ("ij,ij->ij", (2, 3), (2, 3)),
        ("ijk,jl,kl->il", (2, 3, 4), (3, 2), (4, 2)), ("iij,jk->k", (2, 2, 3), (3, 2)), ("ba", (2, 3)),
        ("i,i,i->", (3,), (3,), (3,)), ("ij,j->i", (2, 0), (0,)), (",ij->ij", (), (2, 2)), ("aabb->ab", (2, 2, 3, 3)),
    )  # fmt: skip
    return [((text, *[draw.array(shape, -2, 2) for shape in shapes]), {}) for text, *shapes in cases]


@composite(
    reference=lambda np, *operands: np.einsum(*operands),
    samples=_einsum_samples,
    dtypes="int float complex",
    tolerance=4.0,
)
def einsum(xp: Any, *operands: Any) -> Any:
    """The sum of products that subscripts such as "ij,jk->ik" say, in NumPy's notation.

    Operands follow the subscripts; or, without subscripts, each is followed by its axes as a list of ints.
    """
    text, terms, result, arrays = _read(operands)
    dtype = arrays[0].dtype
    for x in arrays[1:]:
        dtype = dtypes.promote(dtype, x.dtype)
    if dtype is dtypes.bool_:
        raise DTypeError("cannot compute einsum of bool arrays: cast with .astype(...)")
    sizes = _sizes(text, terms, arrays)
    have = [_without_repeats(xp, cast(xp, x, dtype), term) for x, term in zip(arrays, terms, strict=True)]
    for first, second in _order(_plain_text(have, result), [x for x, _ in have]):
        pair = [have[first], have[second]]
        have = [entry for k, entry in enumerate(have) if k not in (first, second)]
        keep = set(result).union(*[set(term) for _, term in have])
        have.append(_contracted(xp, *pair[0], *pair[1], keep, sizes))
    x, term = _summed(xp, *have[0], set(result))
    return _arranged(xp, x, term, result, sizes) if term != result else x


def _plain_text(have: list[Any], result: Letters) -> str:
    """Return subscripts in single letters, an ellipsis' axes named like others."""
    names = {k: chr(192 + n) for n, k in enumerate(sorted({k for _, term in have for k in term} | set(result)))}
    return ",".join("".join(names[k] for k in term) for _, term in have) + "->" + "".join(names[k] for k in result)
