"""Files of arrays: ``pg.io``.

Here: the public names, once.
Not here: any code.
"""

from polygrad.io.safetensors_files import load_safetensors, read_metadata, save_safetensors

__all__ = ["load_safetensors", "read_metadata", "save_safetensors"]
