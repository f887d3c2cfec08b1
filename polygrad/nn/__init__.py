"""Parts of models: ``pg.nn``.

Here: the public names, once.
Not here: any code. Start reading at `module.py`.
"""

from typing import Any

from polygrad.nn import functional, init
from polygrad.nn.activations import GELU, ReLU, Sigmoid, SiLU, Softmax, Tanh
from polygrad.nn.functional import OPS as _OPS
from polygrad.nn.functional import dropout
from polygrad.nn.layers import AvgPool2d, Conv2d, Dropout, Embedding, Flatten, Identity, Linear, MaxPool2d, Sequential
from polygrad.nn.module import LoadReport, Module, functional_call
from polygrad.nn.normalisation import BatchNorm2d, LayerNorm, RMSNorm
from polygrad.nn.parameter import Parameter

globals().update(_OPS)


def __getattr__(name: str) -> Any:
    """Import what belongs to `polygrad.io` when it is asked for: io is built above nn."""
    if name == "load_safetensors":
        import importlib  # noqa: PLC0415  needed only here

        return importlib.import_module("polygrad.io").load_safetensors
    raise AttributeError(f"module 'polygrad.nn' has no attribute {name!r}")


__all__ = [
    "GELU",
    "AvgPool2d",
    "BatchNorm2d",
    "Conv2d",
    "Dropout",
    "Embedding",
    "Flatten",
    "Identity",
    "LayerNorm",
    "Linear",
    "LoadReport",
    "MaxPool2d",
    "Module",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "dropout",
    "functional",
    "functional_call",
    "init",
]
__all__.extend(sorted(_OPS))
