"""polygrad on any OpenCL 1.2 device.

Here: the plugin that the entry point names. Not here: PyOpenCL, which is imported when the first device is asked for.
"""

from polygrad_opencl.driver import OpenCLDriver

plugin = OpenCLDriver.plugin()

__all__ = ["OpenCLDriver", "plugin"]
