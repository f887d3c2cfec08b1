"""Starting the processes of a job on this machine, and ending all when one fails.

Here: `run`, which gives each process its rank, waits, and says which one ended how.
Not here: several machines, for which there is MPI's mpiexec; what the processes do with their ranks (`starting.py`).

Such processes move arrays by their devices' own library. Those of host and OpenCL devices need an MPI, and its mpiexec.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from polygrad.distributed.starting import TOKEN
from polygrad.errors import DistributedError

GRACE = 5.0  # seconds that processes have to end by themselves, and after a first signal


def run(count: int, command: Sequence[str], *, grace: float = GRACE) -> int:
    """Run *command* by this Python in *count* processes; return 0 if all of them do well, else the code of the first.

    Parameters
    ----------
    count : int
        How many.
    command : sequence of str
        A script or ``-m`` and a module, and what follows.
    grace : float
        Seconds that the others have once one has failed.

    Raises
    ------
    DistributedError
        If there is nothing to run, or no process.
    """
    if count < 1:
        raise DistributedError(f"cannot start {count} processes: it must be at least 1")
    if not command:
        raise DistributedError("there is nothing to run: give a script, or -m and a module")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # free now; rank 0 opens it again
    job = {
        **os.environ, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), TOKEN: secrets.token_hex(16),
    }  # fmt: skip
    processes = [
        subprocess.Popen(  # noqa: S603  what the user wants to run
            [sys.executable, *command], env={**job, "RANK": str(r), "LOCAL_RANK": str(r)}
        )
        for r in range(count)
    ]
    try:
        return _wait(processes, grace)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _wait(processes: Sequence["subprocess.Popen[bytes]"], grace: float) -> int:
    while True:
        codes = [process.poll() for process in processes]
        for r, code in enumerate(codes):
            if code:
                sys.stderr.write(f"polygrad: rank {r} of {len(codes)} {_ended(code)}; the others are ended\n")
                sys.stderr.flush()
                _end(processes, grace)
                return code if code > 0 else 128 - code
        if all(code == 0 for code in codes):
            return 0
        try:
            time.sleep(0.05)
        except KeyboardInterrupt:  # the terminal has sent it to every process: each ends in its own way
            continue


def _ended(code: int) -> str:
    if code > 0:
        return f"has ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}" + (" (for want of memory, perhaps)" if name == "SIGKILL" else "")


def _end(processes: Sequence["subprocess.Popen[bytes]"], grace: float) -> None:
    """Let processes end by themselves, then ask, then insist."""
    for ask in (None, signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if ask is not None and process.poll() is None:
                process.send_signal(ask)
        end = time.monotonic() + grace
        while time.monotonic() < end and any(process.poll() is None for process in processes):
            time.sleep(0.05)
