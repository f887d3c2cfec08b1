"""CuPy on an NVIDIA GPU: forward functions alone, written out; it has no gradients.

Here: the work in CuPy's own functions.
Not here: kernels written by hand.
"""

from typing import Any

import cupy

from polygrad.bench import inputs, maths
from polygrad.bench.peers import Step
from polygrad.bench.work import Work


def _functions() -> dict[str, maths.Function]:
    def logsumexp(x: Any) -> Any:
        top = x.max(-1, keepdims=True)
        return cupy.log(cupy.exp(x - top).sum(-1)) + top[..., 0]

    def softmax(x: Any) -> Any:
        e = cupy.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    return maths.functions(cupy) | {
        "softmax": softmax,
        "logsumexp": logsumexp,
        "take": lambda table, index: table[index],
        "cumsum": cupy.cumsum,
        "sort": cupy.sort,
    }


class Adapter:
    """CuPy on its first GPU."""

    version = str(cupy.__version__)

    def __init__(self, mode: str, device: str, threads: int) -> None:
        del mode, device, threads
        self.pool = cupy.get_default_memory_pool()

    def build(self, work: Work) -> Step | None:
        """Return one call of the work."""
        function = _functions().get(work.maths)
        if work.kind != "function" or work.wrt or function is None:
            return None
        arrays = [cupy.asarray(a) for a in inputs.arrays(work.inputs)]
        return lambda: maths.results(function(*arrays))

    def wait(self, results: Any) -> None:
        """Wait for the GPU."""
        del results
        cupy.cuda.get_current_stream().synchronize()

    def numbers(self, result: Any) -> Any:
        """Return a result's values."""
        return cupy.asnumpy(result)

    def let_go(self) -> None:
        """Empty the pool."""
        self.pool.free_all_blocks()

    def peak(self, *, reset: bool = False) -> int | None:
        """Return what the pool holds: it keeps no peak, and gives nothing back before it is emptied."""
        del reset
        return int(self.pool.total_bytes())
