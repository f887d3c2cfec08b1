"""Parts of models: ``pg.nn``.

Here: the public names, once.
Not here: any code. Start reading at `module.py`.
"""

from typing import Any

from polygrad.nn import functional, init
from polygrad.nn.activations import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)
from polygrad.nn.attention import MultiheadAttention, SelfAttention
from polygrad.nn.containers import ModuleDict, ModuleList, ParameterList, Sequential
from polygrad.nn.convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from polygrad.nn.functional import OPS as _OPS
from polygrad.nn.functional import alpha_dropout, dropout, feature_dropout, scaled_dot_product_attention
from polygrad.nn.gpt import GPT, GPTConfig
from polygrad.nn.kv_cache import KVCache
from polygrad.nn.layers import (
    AlphaDropout,
    Bilinear,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    Embedding,
    Flatten,
    Identity,
    Linear,
    Unflatten,
)
from polygrad.nn.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CrossEntropyLoss,
    GaussianNLLLoss,
    HingeEmbeddingLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MarginRankingLoss,
    MSELoss,
    NLLLoss,
    PoissonNLLLoss,
    SmoothL1Loss,
    SoftMarginLoss,
    TripletMarginLoss,
)
from polygrad.nn.module import HookHandle, LoadReport, Module, functional_call
from polygrad.nn.normalisation import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from polygrad.nn.parameter import Parameter
from polygrad.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from polygrad.nn.positions import PositionalEmbedding, RotaryEmbedding, SinusoidalEmbedding
from polygrad.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from polygrad.nn.resampling import PixelShuffle, Upsample
from polygrad.nn.summary import Summary, summary
from polygrad.nn.transformer import FeedForward, SwiGLU, TransformerBlock

globals().update(_OPS)


def __getattr__(name: str) -> Any:
    """Import what belongs to `polygrad.io` when it is asked for: io is built above nn."""
    if name == "load_safetensors":
        import importlib  # noqa: PLC0415  needed only here

        return importlib.import_module("polygrad.io").load_safetensors
    raise AttributeError(f"module 'polygrad.nn' has no attribute {name!r}")


__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AlphaDropout",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bilinear",
    "CELU",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "ELU",
    "Embedding",
    "FeedForward",
    "Flatten",
    "GELU",
    "GLU",
    "GPT",
    "GPTConfig",
    "GRU",
    "GRUCell",
    "GaussianNLLLoss",
    "GroupNorm",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HingeEmbeddingLoss",
    "HookHandle",
    "HuberLoss",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KLDivLoss",
    "KVCache",
    "L1Loss",
    "LSTM",
    "LSTMCell",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LoadReport",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MarginRankingLoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "PReLU",
    "Parameter",
    "PixelShuffle",
    "ParameterList",
    "PoissonNLLLoss",
    "PositionalEmbedding",
    "RMSNorm",
    "RNN",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "RotaryEmbedding",
    "SELU",
    "SelfAttention",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SinusoidalEmbedding",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "Softmax",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Summary",
    "SwiGLU",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "TransformerBlock",
    "TripletMarginLoss",
    "Unflatten",
    "Upsample",
    "alpha_dropout",
    "dropout",
    "feature_dropout",
    "functional",
    "functional_call",
    "init",
    "scaled_dot_product_attention",
    "summary",
]
__all__.extend(sorted(_OPS))
