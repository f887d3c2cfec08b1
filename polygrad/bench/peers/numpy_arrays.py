"""NumPy by hand: whole arrays, or the same maths by blocks of rows with memory that is used again, on all threads.

Here: the work in NumPy's own functions; which gradients, and how blocks go to threads.
Not here: the blocks themselves, gradients included (`numpy_blocks.py`).

It is no library of gradients: "numpy.block" shows what a driver made of NumPy can reach.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from polygrad.bench import inputs, maths
from polygrad.bench.peers import Step
from polygrad.bench.peers.numpy_blocks import BLOCK_BYTES, BLOCKS, ELEMENTWISE, adamw_block
from polygrad.bench.work import WORD, Work


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _logsumexp(x: Any) -> Any:
    top = x.max(-1, keepdims=True)
    return np.log(np.exp(x - top).sum(-1)) + top[..., 0]


def _functions() -> dict[str, maths.Function]:
    written = maths.functions(np)
    return written | {
        "softmax": _softmax,
        "logsumexp": _logsumexp,
        "take": lambda table, index: table[index],
        "cumsum": np.cumsum,
        "sort": np.sort,
        "rmsnorm_builtin": written["rmsnorm"],
        "layernorm_builtin": written["layernorm"],
    }


def _product_gradient(cotangent: Any, a: Any, b: Any) -> tuple[Any, ...]:
    return a @ b, cotangent @ np.swapaxes(b, -1, -2), np.swapaxes(a, -1, -2) @ cotangent


def _take_gradient(cotangent: Any, table: Any, index: Any) -> tuple[Any, ...]:
    grad = np.zeros_like(table)
    np.add.at(grad, index, cotangent)
    return table[index], grad


GRADIENTS: dict[str, maths.Function] = {
    "add": lambda cotangent, a, b: (a + b, cotangent, cotangent),
    "matmul": _product_gradient,
    "take": _take_gradient,
}


class Adapter:
    """NumPy on the CPU."""

    version = np.__version__

    def __init__(self, mode: str, device: str, threads: int) -> None:
        del device
        self.blocked = mode == "block"
        self.threads = threads if self.blocked else 1
        self.pool = ThreadPoolExecutor(self.threads)

    def build(self, work: Work) -> Step | None:
        """Return one call of the work."""
        if work.kind == "optimiser":
            return self._optimiser(work)
        if work.kind != "function":
            return None
        if work.maths in BLOCKS and self.blocked:
            return self._blocks(work)
        given = inputs.arrays(work.inputs)
        functions = GRADIENTS if work.wrt else _functions()
        function = functions.get(work.maths)
        if function is None:
            return None
        if work.wrt:
            given.insert(0, inputs.cotangent(work.out))
        return lambda: maths.results(function(*given))

    def _over(self, pieces: Sequence[Callable[[], None]]) -> None:
        """Run the pieces, on threads if there are several."""
        if len(pieces) == 1 or self.threads == 1:
            for piece in pieces:
                piece()
            return
        others = [self.pool.submit(piece) for piece in pieces[1:]]
        pieces[0]()
        for other in others:
            other.result()

    def _shares(self, count: int) -> list[range]:
        step = -(-count // self.threads)
        return [range(k, min(k + step, count)) for k in range(0, count, step)]

    def _blocks(self, work: Work) -> Step | None:
        block = BLOCKS[work.maths]
        backward = bool(work.wrt)
        if backward and not block.backward:
            return None
        arrays = inputs.arrays(work.inputs)
        x, weights = arrays[0], arrays[1:]
        rows = x.reshape(-1, BLOCK_BYTES // WORD // 8) if work.maths in ELEMENTWISE and x.size >= BLOCK_BYTES else x
        rows = rows.reshape(-1, rows.shape[-1])
        cotangent = inputs.cotangent(work.out).reshape(rows.shape) if backward else None
        height = max(1, BLOCK_BYTES // WORD // rows.shape[-1])
        outs = block.outs(rows, backward=backward)
        sums = [np.zeros((self.threads, rows.shape[-1]), np.float32) for _ in (weights if backward else ())]
        shares = self._shares(len(rows))
        scratch = [[np.empty((height, rows.shape[-1]), np.float32) for _ in range(block.scratch)] for _ in shares]

        def share(number: int, span: range) -> None:
            own = [s[number] for s in sums]
            for s in own:
                s[:] = 0
            for start in range(span.start, span.stop, height):
                part = slice(start, min(start + height, span.stop))
                temporary = [t[: part.stop - start] for t in scratch[number]]
                given = None if cotangent is None else cotangent[part]
                block.run(rows[part], weights, given, [o[part] for o in outs], temporary, own)

        pieces = [partial(share, number, span) for number, span in enumerate(shares)]
        shaped = [o.reshape(x.shape) if o.shape == rows.shape else o for o in outs]

        def call() -> Any:
            self._over(pieces)
            return (*shaped, *(s.sum(0) for s in sums))

        return call

    def _optimiser(self, work: Work) -> Step:
        values, grads = inputs.optimised(work.settings)
        step = BLOCK_BYTES // WORD if self.blocked else max(v.size for v in values)
        flat = [[a.reshape(-1) for a in group] for group in (values, grads)]
        moments = [[np.zeros_like(v) for v in flat[0]] for _ in range(2)]
        jobs = [(k, a, min(a + step, v.size)) for k, v in enumerate(flat[0]) for a in range(0, v.size, step)]
        shares = self._shares(len(jobs))
        scratch = [[np.empty(step, np.float32) for _ in range(2)] for _ in shares]
        count = [0]

        def share(number: int, span: range) -> None:
            for k, a, b in jobs[span.start : span.stop]:
                p, g, m, v = (group[k][a:b] for group in (*flat, *moments))
                adamw_block(p, g, m, v, [s[: b - a] for s in scratch[number]], count[0])

        pieces = [partial(share, number, span) for number, span in enumerate(shares)]

        def call() -> Any:
            count[0] += 1
            self._over(pieces)
            return (values[0],)

        return call

    def wait(self, results: Any) -> None:
        """Do nothing: calls return when they are done."""

    def numbers(self, result: Any) -> Any:
        """Return the result."""
        return result

    def let_go(self) -> None:
        """Do nothing: there is no pool."""

    def peak(self, *, reset: bool = False) -> int | None:
        """Say that memory is the process's own."""
        del reset
        return None
