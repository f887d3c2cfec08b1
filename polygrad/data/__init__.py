"""Data for training: ``pg.data``.

Here: the public names, once.
Not here: any code. Start reading at `loader.py`.
"""

from polygrad.data.collating import collate
from polygrad.data.datasets import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from polygrad.data.loader import DataLoader
from polygrad.data.order import Permutation
from polygrad.data.tokens import RandomWindows, TokenFile, TokenWindows, write_tokens

__all__ = [
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "IterableDataset",
    "Permutation",
    "RandomWindows",
    "Subset",
    "TensorDataset",
    "TokenFile",
    "TokenWindows",
    "collate",
    "random_split",
    "write_tokens",
]
