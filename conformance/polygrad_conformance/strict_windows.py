"""Ops over windows of the strict driver, window by window.

Here: one function an op, of arrays. Not here: other ops (`strict_ops.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from polygrad_conformance.case import Array


def _padded(x: Array, attrs: Mapping[str, Any], fill: float) -> Array:
    border = list(zip(attrs["before"], attrs["after"], strict=True))
    return np.pad(x.astype(np.float64), [(0, 0)] * (x.ndim - len(border)) + border, constant_values=fill)


def _windows(places: Sequence[int], kernel: Sequence[int], attrs: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the index of each window among the results, and of its elements in the padded array."""
    for at in np.ndindex(*places):
        facts = zip(at, kernel, attrs["stride"], attrs["dilation"], strict=True)
        yield (..., *at), (..., *[slice(p * s, p * s + (k - 1) * d + 1, d) for p, k, s, d in facts])


def _cut(padded: Array, attrs: Mapping[str, Any]) -> Array:
    sizes = padded.shape[-len(attrs["before"]) :]
    ends = zip(attrs["before"], attrs["after"], sizes, strict=True)
    index: Any = (..., *[slice(b, n - a) for b, a, n in ends])
    return np.asarray(padded[index])


def convolution(name: str, outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """Run a convolution, or one of its gradients."""
    g = attrs["groups"]
    x, w, y = {
        "convolution": (ins[0], ins[1], outs[0]), "convolution_input": (outs[0], ins[1], ins[0]),
        "convolution_weight": (ins[0], outs[0], ins[1]),
    }[name]  # fmt: skip
    kernel = w.shape[2:]
    kernels = np.zeros((g, w.shape[0] // g, w[0].size))
    if w is not outs[0]:
        kernels[...] = w.astype(np.float64).reshape(kernels.shape)
    padded = _padded(np.zeros(x.shape) if x is outs[0] else x, attrs, 0.0)
    for place, elements in _windows(y.shape[2:], kernel, attrs):
        seen = padded[elements]
        rows = seen.reshape(len(x), g, -1)
        if y is outs[0]:
            y[place] = np.einsum("ngk,gok->ngo", rows, kernels).reshape(len(x), -1)
            continue
        given = y[place].astype(np.float64).reshape(len(x), g, -1)
        if x is outs[0]:
            padded[elements] += np.einsum("ngo,gok->ngk", given, kernels).reshape(seen.shape)
        else:
            kernels += np.einsum("ngk,ngo->gok", rows, given)
    if x is outs[0]:
        x[...] = _cut(padded, attrs)
    elif w is outs[0]:
        w[...] = kernels.reshape(w.shape)


def pooling(name: str, outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """Take maxima of windows, or give their gradient back."""
    rank = len(attrs["kernel"])
    axes = tuple(range(-rank, 0))
    if name == "max_pool":
        padded = _padded(ins[0], attrs, -np.inf)
        for place, elements in _windows(outs[0].shape[-rank:], attrs["kernel"], attrs):
            outs[0][place] = padded[elements].max(axis=axes)
        return
    g, x, y = (a.astype(np.float64) for a in ins)
    padded = _padded(x, attrs, -np.inf)
    total = np.zeros(padded.shape)
    for place, elements in _windows(y.shape[-rank:], attrs["kernel"], attrs):
        wins = padded[elements] == np.expand_dims(y[place], axes)
        total[elements] += wins * np.expand_dims(g[place], axes) / np.maximum(wins.sum(axis=axes, keepdims=True), 1)
    outs[0][...] = _cut(total, attrs)
