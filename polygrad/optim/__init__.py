"""Optimisers: ``pg.optim``.

Here: the public names, once.
Not here: any code. Start reading at `optimizer.py`.
"""

from polygrad.optim import lr_scheduler
from polygrad.optim.accumulation import Accumulation
from polygrad.optim.algorithms import SGD, Adagrad, Adam, Adamax, AdamW, Lion, NAdam, RMSprop
from polygrad.optim.averaging import EMA
from polygrad.optim.clipping import clip_by_global_norm
from polygrad.optim.optimizer import Optimizer
from polygrad.optim.scaling import GradScaler

__all__ = [
    "EMA",
    "SGD",
    "Accumulation",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "GradScaler",
    "Lion",
    "NAdam",
    "Optimizer",
    "RMSprop",
    "clip_by_global_norm",
    "lr_scheduler",
]
