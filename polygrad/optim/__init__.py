"""Optimisers: ``pg.optim``.

Here: the public names, once.
Not here: any code. Start reading at `optimizer.py`.
"""

from polygrad.optim import lr_scheduler
from polygrad.optim.algorithms import SGD, Adam, AdamW, RMSprop
from polygrad.optim.clipping import clip_by_global_norm
from polygrad.optim.optimizer import Optimizer

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "clip_by_global_norm", "lr_scheduler"]
