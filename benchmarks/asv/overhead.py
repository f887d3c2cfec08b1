"""What asv follows over commits: costs of polygrad's own, and a few kernels, on the device `cpu:0`.

Run by ``asv run`` in the repository (extra ``history``); ``python -m polygrad bench`` compares with other libraries.

Here: the classes that asv finds: ``time_`` is seconds, ``track_`` a number, ``peakmem_`` bytes.
Not here: what the work is (`polygrad.bench`).
"""

import statistics

import polygrad as pg
from polygrad.bench import work
from polygrad.bench.peers.graph_costs import graph_cost
from polygrad.bench.peers.polygrad_arrays import Adapter

SMALL = work.table("small")
WARM = 3  # the third call of what is compiled is a replay


class Graphs:
    """Microseconds a node to record, schedule (for the first time) and differentiate graphs."""

    params = (["record", "schedule", "differentiate"], [1_000, 10_000])
    param_names = ("part", "nodes")
    unit = "us/node"
    timeout = 600

    def track_cost(self, part: str, nodes: int) -> float:
        """Return the median of a few graphs."""
        call = graph_cost(SMALL[f"{part}_{nodes}"])
        call()
        return 1e6 * statistics.median(call() for _ in range(3)) / nodes


class Calls:
    """Seconds a call, plain and within pg.compile."""

    params = (
        [
            "add1_fwd",
            "add1_bwd",
            "chain100_bwd",
            "ew12_bwd",
            "softmax_bwd",
            "layernorm_bwd",
            "adamw",
            "mlp_small_batch",
        ],
        ["plain", "compile"],
    )
    param_names = ("work", "mode")

    def setup(self, name: str, mode: str) -> None:
        """Make the work ready, and the first calls."""
        self.adapter = Adapter(mode, "cpu:0", 1)
        self.step = self.adapter.build(SMALL[name])
        for _ in range(WARM):
            self.step()
        pg.synchronize()

    def time_call(self, name: str, mode: str) -> None:  # noqa: ARG002  asv passes all parameters
        """Make a call and wait for it."""
        self.adapter.wait(self.step())

    def peakmem_call(self, name: str, mode: str) -> None:  # noqa: ARG002  as above
        """The same, for its memory."""
        self.adapter.wait(self.step())
