"""polygrad on the host's cores, through the system's C compiler.

Here: the plugin that the entry point names. Not here: the compiler, until the device is opened.
"""

from polygrad_driver_cc.driver import CcDriver

plugin = CcDriver.plugin()
