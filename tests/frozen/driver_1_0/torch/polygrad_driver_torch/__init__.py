"""polygrad on PyTorch's CPU tensors.

Here: the plugin that the entry point names. Not here: PyTorch, until the device is opened.
"""

from polygrad_driver_torch.driver import TorchDriver

plugin = TorchDriver.plugin()
