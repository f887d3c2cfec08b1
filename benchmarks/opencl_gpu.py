"""Run a command with NVIDIA's OpenCL made visible, where only the library is installed, without its .icd file.

Here: finding the library, writing a folder that names it, running the command. Not here: OpenCL itself.

    python benchmarks/opencl_gpu.py python -m pytest drivers/opencl/tests
    python benchmarks/opencl_gpu.py            print the folder; use it as OCL_ICD_VENDORS

An OpenCL loader looks in the folder OCL_ICD_VENDORS for files that end in .icd, each holding the path of one
implementation. The folder that is written here names NVIDIA's alone, so that no other implementation is the default.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARY = "libnvidia-opencl.so.1"


def library() -> str:
    """Return the path of NVIDIA's OpenCL library, as the system's linker knows it.

    Raises
    ------
    SystemExit
        If it is not installed.
    """
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.startswith(LIBRARY):
            return path
    raise SystemExit(f"{LIBRARY} is not on this machine; it comes with NVIDIA's driver")


def main(command: list[str]) -> int:
    """Write the folder and run *command* with it; without one, print the folder."""
    folder = Path(tempfile.gettempdir()) / f"opencl_vendors_{os.getuid()}"
    folder.mkdir(exist_ok=True)
    (folder / "nvidia.icd").write_text(library() + "\n")
    if not command:
        print(folder)
        return 0
    return subprocess.run(command, env=os.environ | {"OCL_ICD_VENDORS": str(folder)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
