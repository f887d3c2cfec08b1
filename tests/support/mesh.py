"""A driver whose devices have collectives of their own, through files.

Here: that driver, of host memory. Not here: tests; the jobs that use it (`tests/ranks.py`).
"""

import dataclasses
import os
import time
from pathlib import Path

import numpy as np


class Files:
    """Collectives through files, of one device."""

    name, sums = "files", frozenset({"float32", "float64", "int64"})

    def __init__(self, driver, folder):
        self.driver, self.folder, self.number = driver, folder, 0

    def identity(self):
        return bytes(range(100, 228))

    def connect(self, identity, rank, size):
        assert identity == self.identity()
        self.rank, self.size = rank, size

    def memory(self, ref):
        whole = np.frombuffer(self.driver.view(ref.handle, 1 << 60), np.uint8)
        flat = whole[: whole.size // np.dtype(ref.dtype).itemsize * np.dtype(ref.dtype).itemsize].view(ref.dtype)
        return flat[ref.offset : ref.offset + int(np.prod(ref.shape))]

    def every(self, ref):
        self.number += 1
        Path(self.folder, f"{self.number}.{self.rank}.part").write_bytes(self.memory(ref).tobytes())
        os.rename(f"{self.folder}/{self.number}.{self.rank}.part", f"{self.folder}/{self.number}.{self.rank}")
        for r in range(self.size):
            there = Path(self.folder, f"{self.number}.{r}")
            while not there.exists():
                time.sleep(0.001)
            yield np.frombuffer(there.read_bytes(), ref.dtype)

    def put(self, ref, value):
        np.copyto(self.memory(ref), value.reshape(-1))
        return 1

    def all_reduce(self, pairs, op):
        return [
            self.put(o, {"sum": np.sum, "max": np.max, "min": np.min}[op](list(self.every(i)), axis=0))
            for i, o in pairs
        ]

    def broadcast(self, pairs, root):
        return [self.put(o, list(self.every(i))[root]) for i, o in pairs]

    def all_gather(self, pairs):
        return [self.put(o, np.stack(list(self.every(i)))) for i, o in pairs]

    def reduce_scatter(self, pairs):
        return [self.put(o, np.split(np.sum(list(self.every(i)), axis=0), self.size)[self.rank]) for i, o in pairs]

    def done(self, token):
        return True

    def wait(self, token):
        pass

    def mark(self):
        return 0

    def times(self, token):
        return 0.0, 0.0

    def abort(self):
        pass

    def close(self):
        pass


def mesh_driver(folder):
    """Return a driver whose devices move values through files."""
    from polygrad.driver import DriverInfo
    from polygrad_cpu.driver import CpuDriver

    class Mesh(CpuDriver):
        info = DriverInfo("mesh", summary="host memory, and files between processes")

        def open(self, ordinal, options):
            return dataclasses.replace(super().open(0, options), driver="mesh", ordinal=ordinal)

        @classmethod
        def count(cls):
            return 2

        def collectives(self):
            return Files(self, folder)

    return Mesh
