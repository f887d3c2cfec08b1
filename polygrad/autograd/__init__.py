"""Differentiation: from graph to gradient graph, never a value.

Here: the backward sweep (`reverse.py`), of a graph of known form too (`again.py`), forward mode (`forward.py`) and
batching (`batching.py`).
Not here: the rules, which are in the op table; tapes and `.grad`, which belong to arrays.
"""

from polygrad.autograd.again import sweep_again
from polygrad.autograd.batching import Batch, folded_key
from polygrad.autograd.forward import push
from polygrad.autograd.reverse import Call, gradient_of, spend, sweep

__all__ = ["Batch", "Call", "folded_key", "gradient_of", "push", "spend", "sweep", "sweep_again"]
