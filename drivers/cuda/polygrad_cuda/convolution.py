"""Convolutions and their gradients through cuDNN, and by plain kernels where cuDNN has no engine.

Here: the graphs of the three ops, and the launches of the kernels. Not here: the library (`cudnn.py`), the text of the
kernels (`convolution_sources.py`).

float32 means float32: engines that use TF32 are chosen only if the caller asks.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polygrad.driver import Ref, UnsupportedOp
from polygrad_cuda.convolution_sources import text
from polygrad_cuda.cudnn import ALIGNMENT, AVOIDED, EXACT, Planned
from polygrad_cuda.scratch import contiguous_strides

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

OPS = frozenset({"convolution", "convolution_input", "convolution_weight"})
THREADS = 256
MOST_BLOCKS = 1 << 16
AXES = 2  # cuDNN takes images and volumes: signals are images of one row
MOST_AXES = 3

Sizes = tuple[int, ...]


def convolve(
    driver: "CudaDriver", name: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]
) -> None:
    """Queue an op: 'convolution' (y of x, w), 'convolution_input' (x of y, w) or 'convolution_weight' (w of x, y)."""
    refs = (*ins, outs[0])
    addresses = [driver.address(ref) for ref in refs]
    planned = find(driver, name, refs, attrs)
    if planned is None:
        _by_kernel(driver, name, refs, addresses, attrs)
    elif any(address % ALIGNMENT for address in addresses):
        _through_copies(driver, planned, refs, addresses)
    else:
        planned.run(driver, addresses)


def _through_copies(driver: "CudaDriver", planned: Planned, refs: Sequence[Ref], addresses: Sequence[int]) -> None:
    """Run a graph on copies of the operands, or of the result, that begin where cuDNN takes them to begin."""
    with driver.scratch() as scratch:
        places = []
        for ref, address in zip(refs, addresses, strict=True):
            place = ref._replace(handle=address, offset=0)
            if address % ALIGNMENT:
                nbytes = math.prod(ref.shape) * driver.itemsize(ref.dtype)
                place = Ref(scratch.take(nbytes), 0, ref.shape, contiguous_strides(ref.shape), ref.dtype)
                if ref is not refs[-1]:
                    driver.copy(place, ref)
            places.append(place)
        planned.run(driver, [place.handle for place in places])
        if addresses[-1] % ALIGNMENT:
            driver.copy(refs[-1], places[-1])


def on_stream(
    driver: "CudaDriver", name: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]
) -> bool:
    """Whether a convolution is nothing but launches on the stream; it is planned then, and has its workspace."""
    with driver.vendor_calls("planning a convolution"):
        planned = find(driver, name, (*ins, outs[0]), attrs)
        return planned is None or planned.make_room(driver)


def find(driver: "CudaDriver", name: str, refs: Sequence[Ref], attrs: Mapping[str, Any]) -> Planned | None:
    """Return cuDNN's graph for operands of these shapes, planned if it is new; None if it has none."""
    precision = attrs.get("precision", "highest")
    if precision not in ("highest", "tf32"):
        raise UnsupportedOp(f"convolutions know the precisions 'highest' and 'tf32', not {precision!r}")
    dtype, shapes = refs[0].dtype, tuple(tuple(ref.shape) for ref in refs)
    geometry = tuple(attrs[key] for key in ("stride", "before", "after", "dilation"))
    key = (name, dtype, shapes, geometry, attrs["groups"], precision)
    exact = dtype in ("float32", "float64") and precision == "highest"

    def describe(graph: Any) -> Sequence[Any]:
        return _describe(graph, name, shapes, geometry)

    return driver.cudnn().planned(key, dtype, describe, EXACT if exact else AVOIDED)


def _describe(graph: Any, name: str, shapes: Sequence[Sizes], geometry: Sequence[Sizes]) -> Sequence[Any]:
    """Fill *graph* with one op, and return its operands and its result."""
    stride, before, after, dilation = geometry
    missing = max(0, AXES - len(stride))
    one, none = (1,) * missing, (0,) * missing
    wide = [(*shape[:2], *one, *shape[2:]) for shape in shapes]
    first, second = (
        graph.tensor(dim=list(shape), stride=list(contiguous_strides(shape)), name=f"operand{k}")
        for k, shape in enumerate(wide[:2])
    )
    how = {
        "pre_padding": [*none, *before], "post_padding": [*none, *after], "stride": [*one, *stride],
        "dilation": [*one, *dilation],
    }  # fmt: skip
    if name == "convolution":
        out = graph.conv_fprop(image=first, weight=second, **how)
    elif name == "convolution_input":
        out = graph.conv_dgrad(loss=first, filter=second, **how)
    else:
        out = graph.conv_wgrad(image=first, loss=second, **how)
    out.set_output(True).set_dim(list(wide[2])).set_stride(list(contiguous_strides(wide[2])))
    return first, second, out


def _by_kernel(
    driver: "CudaDriver", name: str, refs: Sequence[Ref], addresses: Sequence[int], attrs: Mapping[str, Any]
) -> None:
    """Queue a plain kernel: a thread for each element of the result, a block for each element of the weights."""
    order = {"convolution": (0, 1, 2), "convolution_input": (2, 1, 0), "convolution_weight": (0, 2, 1)}[name]
    x, w, y = (refs[k] for k in order)
    missing = MOST_AXES - (len(x.shape) - 2)
    one, none = (1,) * missing, (0,) * missing
    numbers = (
        x.shape[0], attrs["groups"], w.shape[1], w.shape[0] // attrs["groups"], *one, *x.shape[2:], *one, *w.shape[2:],
        *one, *y.shape[2:], *one, *attrs["stride"], *none, *attrs["before"], *one, *attrs["dilation"],
    )  # fmt: skip
    elements = math.prod(refs[2].shape)
    blocks = elements if name == "convolution_weight" else -(-elements // THREADS)
    driver.launch(
        text(refs[0].dtype), name, (min(blocks, MOST_BLOCKS), 1, 1), (THREADS, 1, 1),
        ("pointer",) * 3 + ("int64",) * len(numbers), (*addresses, *numbers),
    )  # fmt: skip
