"""Differentiation: from graph to gradient graph, never a value.

Here: the backward sweep (`reverse.py`) and forward mode (`forward.py`).
Not here: the rules, which are in the op table; tapes and `.grad`, which belong to arrays.
"""

from polygrad.autograd.forward import push
from polygrad.autograd.reverse import Call, spend, sweep

__all__ = ["Call", "push", "spend", "sweep"]
