"""The schedule: from a graph of nodes to an ordered list of kernels.

Here: `plan`, and the records that it returns. Read `fuse.py` for the policy, `group.py` for one kernel, `index.py` for
its arithmetic.
Not here: memory, launching, derivatives.
"""

from polygrad.schedule.plan import Question, plan
from polygrad.schedule.steps import Fused, Library, Many, Operand, Plan

__all__ = ["Fused", "Library", "Many", "Operand", "Plan", "Question", "plan"]
