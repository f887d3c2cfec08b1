"""Tools for tests: of polygrad's own, and of code that uses polygrad.

Here: `gradcheck`, `gradgradcheck` (`gradients.py`), `assert_close` (`compare.py`), drawn operands (`draw.py`), the
meaning of a graph by NumPy (`interpret.py`).
Not here: tests, and anything that a program needs to run.
"""

from polygrad.testing.compare import assert_close
from polygrad.testing.gradients import gradcheck, gradgradcheck

__all__ = ["assert_close", "gradcheck", "gradgradcheck"]
