"""polygrad on the host's cores, through NumPy.

Here: the plugin that the entry point names. Not here: NumPy itself, until the device is opened.
"""

from polygrad_cpu.driver import CpuDriver

__all__ = ["CpuDriver", "plugin"]

plugin = CpuDriver.plugin()
