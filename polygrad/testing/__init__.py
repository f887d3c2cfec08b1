"""Tools for tests.

Here: drawn operands (`draw.py`), the meaning of a graph by NumPy (`interpret.py`).
Not here: tests, and anything that a program needs to run.
"""
