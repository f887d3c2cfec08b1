"""cuDNN through its frontend: one handle, and the graphs that were planned with it.

Here: loading the library, planning a graph once for each key, running it on addresses. Not here: what is in a graph
(`convolution.py` and its like), what runs where cuDNN has no plan.

A graph is described once by its maker as tensors and operations; cuDNN chooses an engine for it. Engines that give
another result each time, that lower the precision of operands or that sum in less than float32 are never chosen.
"""

import importlib
import importlib.util
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

ALIGNMENT = 16  # bytes: engines take tensors to begin at a multiple
MOST = 1024  # graphs that are remembered
DATA_TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}
AVOIDED = ("NONDETERMINISTIC", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")
EXACT = (*AVOIDED, "TENSOR_CORE")  # with float32 operands, tensor cores would mean TF32

Describe = Callable[[Any], Sequence[Any]]


def installed() -> bool:
    """Return whether the frontend's package is there; it is not imported."""
    return importlib.util.find_spec("cudnn") is not None


class Planned:
    """A graph that can be run."""

    def __init__(self, graph: Any, uids: list[int], handle: Any) -> None:
        self.graph, self.uids, self.handle = graph, uids, handle
        self.workspace = int(graph.get_workspace_size())  # bytes

    def run(self, driver: "CudaDriver", addresses: Sequence[int]) -> None:
        """Queue the graph on tensors at *addresses*, in the order in which they were described."""
        bound = dict(zip(self.uids, addresses, strict=True))
        with driver.scratch() as scratch:
            self.graph.execute(bound, scratch.take(self.workspace) if self.workspace else 0, handle=self.handle)

    def make_room(self, driver: "CudaDriver") -> bool:
        """Whether the memory that all ops share has room for the workspace, or has grown to have it."""
        with driver.scratch() as scratch:
            scratch.take(self.workspace)
        return self.workspace <= driver.arena.size


class Cudnn:
    """cuDNN on one device's stream; what cannot be planned is None, and is not tried again."""

    def __init__(self, driver: "CudaDriver") -> None:
        self.driver = driver
        self.handle: Any = None
        self.graphs: dict[Hashable, Planned | None] = {}
        self.retired: list[Planned] = []  # what launches that were written down use still
        try:
            self.library = importlib.import_module("cudnn")
            self.handle = self.library.create_handle()
            self.library.set_stream(self.handle, driver.stream)
        except (ImportError, OSError, RuntimeError, AttributeError) as error:  # ops have another way
            self.trouble: Exception | None = error
        else:
            self.trouble = None
            # cuDNN tells what it cannot do as the first, its frontend as the second, faults of either as the last.
            self.refusals = (self.library.cudnnGraphNotSupportedError, NotImplementedError, RuntimeError)

    def close(self) -> None:
        """Give the handle back."""
        self.graphs.clear()
        self.retired.clear()
        if self.handle is not None:
            self.library.destroy_handle(self.handle)

    def data_type(self, dtype: str) -> Any:
        """Return cuDNN's name of a dtype."""
        return getattr(self.library.data_type, DATA_TYPES[dtype])

    def planned(
        self, key: Hashable, dtype: str, describe: Describe, avoided: Sequence[str] = AVOIDED
    ) -> Planned | None:
        """Return the graph of *key*; None if cuDNN cannot be used, or has no engine for it.

        Parameters
        ----------
        key : hashable
            What the graph depends on.
        dtype : str
            Of its tensors, unless they say otherwise; sums are float32, of float64 float64.
        describe : callable
            Gets an empty graph, fills it, and returns its inputs and outputs in the order of the addresses.
        avoided : sequence of str
            Names of cuDNN's numerical notes; engines that bear one are not chosen.
        """
        if self.trouble is not None:
            return None
        if key not in self.graphs:
            if len(self.graphs) >= MOST:
                self._forget()
            self.graphs[key] = self._plan(dtype, describe, avoided)
        return self.graphs[key]

    def _forget(self) -> None:
        """Forget all graphs; their kernels stay where a bundle may launch them."""
        if self.driver.bundles:
            self.retired += [graph for graph in self.graphs.values() if graph is not None]
        self.graphs.clear()

    def _plan(self, dtype: str, describe: Describe, avoided: Sequence[str]) -> Planned | None:
        library = self.library
        sums = self.data_type("float64" if dtype == "float64" else "float32")
        graph = library.pygraph(
            io_data_type=self.data_type(dtype), intermediate_data_type=sums, compute_data_type=sums, handle=self.handle
        )
        try:
            tensors = describe(graph)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([library.heur_mode.A, library.heur_mode.FALLBACK])
            graph.deselect_numeric_notes([getattr(library.numerical_note, name) for name in avoided])
            graph.check_support()
            graph.build_plans()
            return Planned(graph, [t.get_uid() for t in tensors], self.handle)
        except self.refusals:
            return None
