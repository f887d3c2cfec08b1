"""polygrad on NVIDIA GPUs: the plugin that the entry point names.

Here: the plugin object. Not here: anything that imports CuPy; a device is touched when one is counted or opened.
"""

from polygrad_cuda.driver import CudaDriver

plugin = CudaDriver.plugin()
