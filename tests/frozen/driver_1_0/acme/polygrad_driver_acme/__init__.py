"""polygrad on Acme devices.

Here: the plugin that the entry point names. Not here: the vendor's library, until a device is opened.
"""

from polygrad_driver_acme.driver import AcmeDriver

plugin = AcmeDriver.plugin()
