"""The runtime: from a graph to values on a device.

Here: realizing, memory, transfers, counters. Start at `realize.py`.
Not here: derivatives, arrays, any device.
"""

from polygrad.runtime.counting import Counts, launch_counter
from polygrad.runtime.devices import State, state, states
from polygrad.runtime.memory import Buffer, Storage
from polygrad.runtime.realize import realize, set_matmul_precision, set_matmul_tuning

__all__ = [
    "Buffer",
    "Counts",
    "State",
    "Storage",
    "launch_counter",
    "realize",
    "set_matmul_precision",
    "set_matmul_tuning",
    "state",
    "states",
]
