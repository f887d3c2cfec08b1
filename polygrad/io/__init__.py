"""Files of arrays: ``pg.io``.

Here: the public names, once.
Not here: any code.
"""

from polygrad.io.checkpoints import Checkpoints, load_checkpoint, read_checkpoint, save_checkpoint
from polygrad.io.gpt2 import gpt2_state, load_gpt2
from polygrad.io.onnx_export import export_onnx
from polygrad.io.safetensors_files import load_safetensors, read_metadata, save_safetensors

__all__ = [
    "Checkpoints",
    "export_onnx",
    "gpt2_state",
    "load_checkpoint",
    "load_gpt2",
    "load_safetensors",
    "read_checkpoint",
    "read_metadata",
    "save_checkpoint",
    "save_safetensors",
]
