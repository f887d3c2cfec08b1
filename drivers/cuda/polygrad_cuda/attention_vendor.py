"""Attention by cuDNN, in float16 and bfloat16: what is in its graphs, and which operands they take.

Here: the graphs of attention and of its backward pass. Not here: how graphs are planned and run (`cudnn.py`), what is
done where cuDNN is not installed or has no engine (`attention.py`).

Its statistics are the logarithm of the sum of exponentials, which our kernels keep too: either may do the backward pass
of the other. Unless POLYGRAD_CUDA_DETERMINISTIC asks for one order, its backward pass adds up the gradient by queries
in any: its last bits differ from run to run, as with PyTorch. In one order it takes 1.6 times as long, and much memory.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polygrad.driver import Ref
from polygrad_cuda.cudnn import AVOIDED, Cudnn

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

DTYPES = ("float16", "bfloat16")
EIGHT = 8  # elements that cuDNN's kernels read at once


def vendor_attention(driver: "CudaDriver", backward: bool, refs: Sequence[Ref], *, scale: float, causal: bool) -> bool:
    """Queue attention, or its backward pass, on operands and results; False: cuDNN has no engine for it.

    >>> float_rows = Ref(0, 0, (2, 8, 4, 64), (2048, 256, 64, 1), "float32")
    >>> vendor_attention(None, False, [float_rows] * 4, scale=1.0, causal=True)
    False
    """
    if refs[0].dtype not in DTYPES or not all(_fits(r) for r in refs):
        return False
    addresses = [driver.address(r) for r in refs]
    if any(a % (2 * EIGHT) for a in addresses):
        return False
    cudnn = driver.cudnn()
    describe = _backward if backward else _forward
    how: dict[str, Any] = {"attn_scale": scale, "use_causal_mask": causal}
    one_order = one_order_wanted()
    if backward:
        how["use_deterministic_algorithm"] = one_order
    key = ("attention", backward, refs[0].dtype, scale, causal, one_order, *[(r.shape, r.strides) for r in refs])
    avoided = AVOIDED if one_order else [note for note in AVOIDED if note != "NONDETERMINISTIC"]
    planned = cudnn.planned(key, refs[0].dtype, lambda graph: describe(cudnn, graph, refs, how), avoided)
    if planned is None:
        return False
    planned.run(driver, addresses)
    return True


def one_order_wanted() -> bool:
    """Return whether results have to be the same in each run, bit by bit: POLYGRAD_CUDA_DETERMINISTIC is 1."""
    return os.environ.get("POLYGRAD_CUDA_DETERMINISTIC", "") == "1"


def _fits(ref: Ref) -> bool:
    if ref.dtype not in DTYPES:  # the statistics
        return True
    return ref.shape[-1] % EIGHT == 0 and all(s % EIGHT == 0 for s in ref.strides[:3])


def _by_heads(ref: Ref) -> tuple[list[int], list[int]]:
    """Return dimensions and strides as [batch, heads, length, features], or of statistics [batch, heads, length, 1]."""
    if ref.dtype not in DTYPES:
        return [*ref.shape, 1], [*ref.strides, 1]
    order = (0, 2, 1, 3)
    return [ref.shape[k] for k in order], [ref.strides[k] for k in order]


def _tensors(cudnn: Cudnn, graph: Any, refs: Sequence[Ref]) -> list[Any]:
    out = []
    for k, ref in enumerate(refs):
        dim, stride = _by_heads(ref)
        out.append(graph.tensor(name=f"operand_{k}", dim=dim, stride=stride, data_type=cudnn.data_type(ref.dtype)))
    return out


def _ends(cudnn: Cudnn, made: Sequence[Any], refs: Sequence[Ref]) -> None:
    """Say of results how they lie."""
    for tensor, ref in zip(made, refs, strict=True):
        dim, stride = _by_heads(ref)
        tensor.set_output(True).set_dim(dim).set_stride(stride).set_data_type(cudnn.data_type(ref.dtype))


def _forward(cudnn: Cudnn, graph: Any, refs: Sequence[Ref], how: dict[str, Any]) -> list[Any]:
    q, k, v = _tensors(cudnn, graph, refs[:3])
    made = graph.sdpa(q=q, k=k, v=v, is_inference=False, **how)
    _ends(cudnn, made, refs[3:])
    return [q, k, v, *made]


def _backward(cudnn: Cudnn, graph: Any, refs: Sequence[Ref], how: dict[str, Any]) -> list[Any]:
    q, k, v, out, statistics, g = given = _tensors(cudnn, graph, refs[:6])
    made = graph.sdpa_backward(q=q, k=k, v=v, o=out, dO=g, stats=statistics, **how)
    _ends(cudnn, made, refs[6:])
    return [*given, *made]
