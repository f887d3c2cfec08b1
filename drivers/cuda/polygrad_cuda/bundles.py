"""Launches written down as a CUDA graph: what is launched on the stream is captured, and launched again by one call.

Here: capturing, launching, and giving single kernels other arguments. Not here: which launches go together (the core).

CuPy has no call for a node's parameters, so CUDA's library is called for that by ctypes. A kernel that is launched
while its numbers are changed does not reach the stream: its block of arguments is laid out as for any launch, and goes
to the node that stands for the kernel in the graph.
"""

import ctypes
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polygrad.driver import LaunchError, Ref
from polygrad_cuda import convolution
from polygrad_cuda.launching import Launcher
from polygrad_cuda.many import ManyLaunches, Together

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver
    from polygrad_cuda.fused import FusedKernel

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
EXTERNAL = 1  # CU_EVENT_RECORD_EXTERNAL: the record is a node, which others may wait for at each launch
RELAXED = 2  # cudaStreamCaptureModeRelaxed: other threads, and the loading of modules, go on meanwhile
# Ops that do nothing but launch kernels, copy memory of the device and call libraries that may be captured, all on the
# stream and with memory that stays. Matrix products say for themselves.
ON_STREAM = frozenset({
    "arg_extreme", "attention", "attention_backward", "convolution", "convolution_input", "convolution_weight", "copy",
    "nonzero", "random_bits", "scan", "scatter_add", "scatter_reduce", "searchsorted", "sort", "sort_values",
})  # fmt: skip


class NodeParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of CUDA's ABI."""

    _fields_ = (
        ("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint), ("arguments", ctypes.c_void_p), ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p),
    )  # fmt: skip


class Node:
    """A kernel in a graph, from what was launched: the arguments of the vendor's launchKernel."""

    def __init__(self, handle: int, launched: Sequence[Any]) -> None:
        grid, block = (ctypes.c_uint * 3)(*launched[1:4]), (ctypes.c_uint * 3)(*launched[4:7])
        self.handle = ctypes.c_void_p(handle)
        self.parameters = NodeParameters(
            function=launched[0], grid=grid, block=block, shared=launched[7], arguments=launched[9]
        )
        self.address = ctypes.byref(self.parameters)


class Varying:
    """A launch whose numbers change: its nodes and, of a fused kernel, how their arguments are laid out."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.kernel: FusedKernel | None = None
        self.launchers: tuple[Launcher, ...] = ()
        self.buffers: tuple[int, ...] = ()
        self.together: list[Together] = []
        self.other = False  # whether it is several launches, which are laid out by being launched

    def fused(self, kernel: "FusedKernel", launchers: tuple[Launcher, ...], buffers: Sequence[int]) -> None:
        """Note what a fused kernel launches; what is launched after it is not this launch's."""
        if self.kernel is None and not self.other:
            self.kernel, self.launchers, self.buffers = kernel, launchers, tuple(buffers)

    def many(self, kernel: "FusedKernel", launches: ManyLaunches) -> None:
        """Note what was launched for many launches of a fused kernel, to write other scalars into copies of it.

        If some of them are launched by themselves, all are laid out anew, as those of an op.
        """
        if self.kernel is None and not self.other:
            self.other = bool(launches.alone)
            if not self.other:
                self.kernel, self.together = kernel, [call.copied() for call in launches.calls]

    def lay_out(self, scalars: Sequence[Any]) -> list[Node]:
        """Lay the arguments of a fused kernel out with other scalars; return the nodes that they are for."""
        assert self.kernel is not None  # noqa: S101  it was noted
        if self.together:
            return self._lay_out_many(self.kernel, scalars)
        if self.kernel.converts:
            scalars = self.kernel.converted(scalars)
        for launcher in self.launchers:  # whose blocks of arguments are those that the nodes name
            try:
                launcher.lay_out(*self.buffers, *scalars)
            except (struct.error, OverflowError):  # a scalar beyond its dtype: convert as the IR says
                launcher.lay_out(*self.buffers, *self.kernel.converted(scalars))
        return self.nodes[: len(self.launchers)]

    def _lay_out_many(self, kernel: "FusedKernel", scalars: Sequence[Sequence[Any]]) -> list[Node]:
        if kernel.converts:
            scalars = [kernel.converted(own) for own in scalars]
        nodes = self.nodes[: len(self.together)]  # what is launched after it is not this launch's
        for call, node in zip(self.together, nodes, strict=True):
            try:
                call.number(scalars)
            except (struct.error, OverflowError):  # as above
                call.number([kernel.converted(own) for own in scalars])
            node.parameters.arguments = call.arguments
        return nodes


class CudaBundle:
    """A graph, ready to be launched."""

    def __init__(self, driver: "CudaDriver", graph: int, varying: list[Varying]) -> None:
        self.driver, self.graph, self.varying = driver, graph, varying
        self.launchable = driver.runtime.graphInstantiate(graph)
        self.plans = driver.library_plans()  # their kernels are unloaded with them
        self._launchable = ctypes.c_void_p(self.launchable)
        self._set = driver.nodes.set_parameters
        self._nodes: Iterator[Node] = iter(())

    def launch(self) -> None:
        """Launch it on the stream."""
        driver = self.driver
        if driver.dead is not None:
            raise driver.dead
        try:
            driver.set_device(driver.ordinal)
            driver.runtime.graphLaunch(self.launchable, driver.stream)
        except driver.errors as error:
            raise driver.failure(error, "launching a graph") from error

    def change(self, number: int, launch: Callable[[], None], scalars: Sequence[Any] | None) -> None:
        """Take the arguments of the kernels that are launched for those of the graph."""
        varying, route = self.varying[number], self.driver.route
        if varying.kernel is not None and scalars is not None:
            for node in varying.lay_out(scalars):
                self._give(node)
            return
        self._nodes = iter(varying.nodes)
        before, route[0] = route[0], self._take
        try:
            launch()
        finally:
            route[0] = before

    def _take(self, *launched: Any) -> None:
        node = next(self._nodes)
        node.parameters.arguments = launched[9]
        self._give(node)

    def _give(self, node: Node) -> None:
        """Give a kernel of the graph the arguments that its parameters point to; CUDA copies them."""
        status = self._set(self._launchable, node.handle, node.address)
        if status:
            raise LaunchError(f"cannot give a kernel of a graph on {self.driver.device} other numbers: {status}")

    def close(self) -> None:
        """Give the graph back; if it is running, CUDA does so when it has finished."""
        driver = self.driver
        graph, launchable, self.graph, self.launchable = self.graph, self.launchable, 0, 0
        if driver.dead is not None or not graph:
            return
        with driver.vendor_calls("giving a graph back"):
            if launchable:
                driver.runtime.graphExecDestroy(launchable)
            driver.runtime.graphDestroy(graph)


class CudaCapturing:
    """Captures the stream of one device."""

    def __init__(self, driver: "CudaDriver") -> None:
        self.driver = driver
        self.varying: list[Varying] = []

    def takes(self, op: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> bool:
        """Whether all that an op does happens on the stream."""
        if op in ("matmul", "matmul_add"):
            return self.driver.products().on_stream(outs[0], ins[0], ins[1])
        if op in convolution.OPS:
            return convolution.on_stream(self.driver, op, outs, ins, attrs)
        return op in ON_STREAM

    def begin(self) -> None:
        """Begin to capture."""
        self.varying = []
        with self.driver.vendor_calls("beginning to capture launches"):
            self.driver.runtime.streamBeginCapture(self.driver.stream, RELAXED)
        self.driver.capturing = True

    def varies(self) -> None:
        """Note which nodes the kernels launched from now on become."""
        self.varying.append(Varying())
        self.driver.route[0] = self._noting
        self.driver.noting = self.varying[-1]

    def _noting(self, *launched: Any) -> None:
        self.driver.launch_kernel(*launched)
        handle = self.driver.nodes.newest(self.driver.stream)
        self.varying[-1].nodes.append(Node(handle, launched))

    def end(self) -> CudaBundle:
        """Return the graph."""
        driver = self.driver
        driver.route[0], driver.noting, driver.capturing = driver.launch_kernel, None, False
        with driver.vendor_calls("capturing launches"):
            graph = driver.runtime.streamEndCapture(driver.stream)
            try:
                bundle = CudaBundle(driver, graph, self.varying)
            except driver.errors:
                driver.runtime.graphDestroy(graph)
                raise
        driver.bundles.add(bundle)
        return bundle

    def abandon(self) -> None:
        """End a capture that went wrong, if it was not ended yet."""
        driver = self.driver
        driver.route[0], driver.noting, driver.capturing = driver.launch_kernel, None, False
        if driver.dead is None:
            try:
                graph = driver.runtime.streamEndCapture(driver.stream)
            except driver.errors:  # what went wrong has ended it
                return
            driver.runtime.graphDestroy(graph)


class Nodes:
    """The calls of CUDA's library that CuPy does not have."""

    def __init__(self) -> None:
        library = ctypes.CDLL(LIBRARY)
        pointer = ctypes.c_void_p
        self.set_parameters = library.cuGraphExecKernelNodeSetParams_v2  # of pointers of ctypes; to check costs 0.7 us
        self._record = library.cuEventRecordWithFlags
        self._record.argtypes = [pointer, pointer, ctypes.c_uint]
        self._info = library.cuStreamGetCaptureInfo_v2
        self._info.argtypes = [pointer] * 6

    def record(self, event: int, stream: int) -> None:
        """Put the record of an event into the graph that a stream is captured into."""
        failed = self._record(event, stream, EXTERNAL)
        if failed:
            raise LaunchError(f"cannot mark a place among launches: CUDA's error {failed}")

    def newest(self, stream: int) -> int:
        """Return the node of what was last launched on a stream that is captured."""
        status, number, count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
        graph, nodes = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)()
        places = [ctypes.byref(found) for found in (status, number, graph, nodes, count)]
        failed = self._info(stream, *places)
        if failed or count.value != 1:
            raise LaunchError(f"cannot tell the kernels of a graph apart: {failed}, {count.value} nodes")
        return nodes[0] or 0
