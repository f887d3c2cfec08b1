"""Where drivers keep compiled programs between processes.

Here: one folder for each driver.
Not here: what is in it.
"""

import os
import pathlib
import sys


def cache_root() -> pathlib.Path:
    """Return POLYGRAD_CACHE_DIR if it is set, else ``polygrad`` in the user's cache folder on this system."""
    chosen = os.environ.get("POLYGRAD_CACHE_DIR")
    if chosen:
        return pathlib.Path(chosen)
    if os.name == "nt":
        root = os.environ.get("LOCALAPPDATA") or pathlib.Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        root = pathlib.Path.home() / "Library" / "Caches"
    else:
        root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(root) / "polygrad"


def cache_folder(driver: str) -> pathlib.Path:
    """Return the folder of *driver*; it need not exist.

    Examples
    --------
    >>> cache_folder("acme").name
    'acme'
    """
    return cache_root() / driver
