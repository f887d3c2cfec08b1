"""The graph: nodes, and the functions that make them.

Here: `Node` (an op applied to nodes) and `F` (every op as a function of nodes).
Not here: values, kernels, derivatives. Start at `node.py`.
"""

from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, apply, scalar

__all__ = ["RECORDING", "F", "Node", "apply", "scalar"]
