"""Sizes that follow the inputs' sizes: a function is traced several times, and numbers that differ are put into words.

Here: which sizes the traces have, and `Sizes.fit`, which finds the formula of a number from its value in each trace.
Not here: traces, ONNX.

A formula is a sum of products of sizes with whole coefficients, such as ``4 * batch * time + 1``. It is found from one
trace for each corner of a cube (each size at its first or its second value), and proven by one more trace, in which
all sizes are others.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

from polygrad.errors import ShapeError

Formula = dict[tuple[int, ...], int | float]  # from the numbers of sizes that are multiplied to the coefficient
MOST_SIZES = 3  # each doubles the number of traces
LEAST = 2  # a size of 1 broadcasts, which others do not
# How far the three values of a size are from the example's: up; down, for functions that take no more than that; around
# it, where there is little room; below it, where the example's own is special, as the length of a whole context is.
STEPS = ((0, 1, 3), (0, -1, -2), (0, 1, -1), (-1, -2, -3))


class Unfit(ShapeError):
    """The traces for these sizes do not fit together; those for other sizes may."""


class Sizes:
    """Named sizes, and the value of each in each trace.

    Parameters
    ----------
    names : sequence of str
        What the sizes are called.
    given : mapping of names to ints
        The sizes of the examples; one of 1 is replaced.
    steps : mapping of names to triples of ints, optional
        How far a size's first value, its second, and that in the proof are from the given one; see `STEPS`.

    Examples
    --------
    >>> sizes = Sizes(["batch"], {"batch": 4})
    >>> sizes.traces
    [(4,), (5,), (7,)]
    >>> sizes.fit([4, 5, 7]), sizes.fit([12, 15, 21]), sizes.fit([3, 3, 3])
    ({(0,): 1}, {(0,): 3}, {(): 3})
    >>> sizes.fit([2, 2, 3]) is None
    True
    >>> sizes.text({(0,): 3, (): 1})
    '3*batch + 1'
    """

    def __init__(
        self, names: Sequence[str], given: Mapping[str, int], steps: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self.names = list(names)
        rows = [[max(given[n], LEAST) + step for step in (steps or {}).get(n, STEPS[0])] for n in names]
        self._corners = [(first, second) for first, second, _ in rows]
        # Sizes that grow do so by different steps, so that one is not mistaken for another.
        proof = tuple(last + k if last > first else last for k, (first, _, last) in enumerate(rows))
        self.traces = [*itertools.product(*self._corners), proof] if names else [()]
        self.possible = all(n >= LEAST for trace in self.traces for n in trace)

    def fit(self, values: Sequence[int | float]) -> Formula | None:
        """Return the formula of a number that has these values in the traces; None if there is none."""
        if all(v == values[0] for v in values):
            return {(): values[0]}
        table = dict(zip(self.traces[:-1], values[:-1], strict=True))
        found = self._solve(table, 0)
        if any(isinstance(values[0], int) and c != int(c) for c in found.values()):
            return None
        exact = {key: int(c) if isinstance(values[0], int) else c for key, c in found.items() if c}
        return exact if math.isclose(self.value(exact, self.traces[-1]), values[-1], rel_tol=1e-12) else None

    def _solve(self, table: dict[tuple[int, ...], int | float], k: int) -> Formula:
        """Return the formula of a table over the corners of sizes from the k-th on."""
        if k == len(self.names):
            return {(): table[()]}
        low, high = self._corners[k]
        at = {end: {key[1:]: v for key, v in table.items() if key[0] == end} for end in (low, high)}
        a, b = self._solve(at[low], k + 1), self._solve(at[high], k + 1)
        out: Formula = {}
        for key in dict.fromkeys([*a, *b]):
            slope = (b.get(key, 0) - a.get(key, 0)) / (high - low)
            out[(k, *key)] = slope
            out[key] = a.get(key, 0) - slope * low
        return out

    def value(self, formula: Formula, sizes: Sequence[int]) -> int | float:
        """Return the value of a formula for given sizes."""
        return sum(c * math.prod(sizes[k] for k in key) for key, c in formula.items())

    def text(self, formula: Formula) -> str:
        """Return a formula as text, products first."""
        parts = []
        for key, c in sorted(formula.items(), key=lambda item: (-len(item[0]), item[0])):
            names = [self.names[k] for k in key]
            parts.append("*".join(([] if c == 1 and names else [str(c)]) + names))
        return " + ".join(parts) or "0"
