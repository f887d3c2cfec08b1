"""Run a sample of the suite's kernels under NVIDIA's compute-sanitizer: accesses out of bounds, and races.

    python conformance/checkers/sanitizer.py                          200 kernels of levels 2 to 5 on cuda:0
    python conformance/checkers/sanitizer.py --dry --device opencl:0  the same without the tool, on any device

The device must allocate each buffer for itself, as polygrad's drivers do, so that a buffer ends where its memory does.
First all kernels are compiled, in several processes, into the driver's cache on disk; then `memcheck` and `racecheck`
run beside each other, and beside them both tools on a kernel that is wrong on purpose: if that is not found, silence
about the others means nothing. Without compute-sanitizer, or on a machine that it refuses, the script says "not run".

Here: the phases, what the tool says, a summary line. Not here: which kernels (`sample.py`).
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import sample

TOOLS = ("memcheck", "racecheck")
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
REFUSED = ("Device not supported", "not supported on this system", "Unable to find injection library")
LIMIT = 420.0  # seconds for a process
SHOWN = 30  # lines of a report
WRONG = {
    "memcheck": 'extern "C" __global__ void wrong(int* a) { a[threadIdx.x + 1] = 1; }',
    "racecheck": 'extern "C" __global__ void wrong(int* a) { __shared__ int s[64]; '
    "s[threadIdx.x] = a[threadIdx.x]; a[threadIdx.x] = s[63 - threadIdx.x]; }",
}


class Ended(NamedTuple):
    """What became of a process: its name, its output, how many launches it made, what it or the tool complained of."""

    name: str
    output: str
    ran: int
    faults: list[str]
    reported: int | None  # by the tool; None without one or without its summary


def ended(name: str, output: str, code: int | None) -> Ended:
    r"""Return what the output of a process says.

    >>> end = ended("memcheck", "RAN 3\n========= ERROR SUMMARY: 2 errors\n", 0)
    >>> end.ran, end.reported, end.faults
    (3, 2, [])
    """
    ran = re.search(r"^RAN (\d+)", output, re.MULTILINE)
    faults = re.findall(r"^FAULT (.*)", output, re.MULTILINE)
    if code is None:
        faults.append(f"{name} took more than {LIMIT:.0f} s")
    elif ran is None and not any(text in output for text in REFUSED):
        faults.append(f"{name} ended with code {code}: {' | '.join(output.strip().splitlines()[-5:])}")
    told = SUMMARY.findall(output)
    return Ended(name, output, int(ran[1]) if ran else 0, faults, sum(map(int, told)) if told else None)


def together(commands: dict[str, list[str]]) -> list[Ended]:
    """Run commands at once and return what became of them."""
    files = {name: tempfile.TemporaryFile() for name in commands}  # noqa: SIM115  closed below, each after its process
    started = {
        name: subprocess.Popen(command, stdout=files[name], stderr=subprocess.STDOUT)
        for name, command in commands.items()
    }
    found, deadline = [], time.monotonic() + LIMIT
    for name, process in started.items():
        try:
            code: int | None = process.wait(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        files[name].seek(0)
        found.append(ended(name, files[name].read().decode(errors="replace"), code))
        files[name].close()
    return found


def launches(cases: Path, device: str, parts: int) -> dict[str, list[str]]:
    """Return the commands that launch every case between them."""
    start = [sys.executable, str(Path(__file__).with_name("sample.py")), "--run", str(cases), "--device", device]
    return {str(k): [*start, "--part", str(k), "--parts", str(parts)] for k in range(parts)}


def checked(tool: str, program: str, command: list[str]) -> list[str]:
    """Return *command* under a tool of compute-sanitizer."""
    # Calls of CUDA that fail are errors of other libraries' probing, not of kernels.
    own = ["--report-api-errors", "no"] if tool == "memcheck" else []
    return [program, "--tool", tool, *own, "--print-limit", "20", *command]


def wrong(tool: str) -> list[str]:
    """Return the command that launches the kernel that *tool* must find."""
    code = (
        "import cupy\n"
        f"kernel = cupy.RawKernel({WRONG[tool]!r}, 'wrong')\n"
        "memory = cupy.cuda.Memory(256)\n"
        "kernel((1,), (64,), (memory.ptr,))\n"
        "print('RAN 1', flush=True)\n"
        "cupy.cuda.runtime.deviceSynchronize()\n"
    )
    return [sys.executable, "-c", code]


def main(arguments: list[str] | None = None) -> int:
    """Run the phases; return 1 if anything was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--count", type=int, default=200, help="kernels")
    parser.add_argument("--parts", type=int, default=6, help="processes that share the kernels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="without compute-sanitizer")
    asked = parser.parse_args(arguments)
    program = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if program is None and not asked.dry:
        sys.stdout.write("not run: needs compute-sanitizer, which comes with the CUDA toolkit\n")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="polygrad-sanitizer-") as name:
        cases = Path(name, "cases.json")
        drawn = sample.collect(asked.count, asked.seed)
        cases.write_text(json.dumps(drawn), encoding="utf-8")
        levels = ", ".join(f"{sum(c['check'].startswith(f'L{n}') for c in drawn)} of level {n}" for n in sample.LEVELS)
        plain = together(launches(cases, asked.device, asked.parts))
        found = list(plain)
        if program is not None and not asked.dry:
            commands = {
                f"{tool} {key}": checked(tool, program, command)
                for tool in TOOLS
                for key, command in launches(cases, asked.device, asked.parts).items()
            }
            commands |= {f"{tool} wrong": checked(tool, program, wrong(tool)) for tool in TOOLS}
            found += together(commands)
    return told(found, levels, time.monotonic() - began, dry=asked.dry)


def told(found: list[Ended], levels: str, seconds: float, *, dry: bool) -> int:
    """Write what was found, a summary line last, and return the exit code."""
    write = sys.stdout.write
    if any(text in end.output for end in found for text in REFUSED):
        write("not run: compute-sanitizer refuses this machine's device\n")
        return 0
    bad = 0
    for end in found:
        control = end.name.endswith(" wrong")
        for fault in [] if control else end.faults:
            bad += 1
            write(f"{end.name}: {fault}\n")
        if " " in end.name and end.reported is None:
            bad += 1
            write(f"{end.name}: no summary by compute-sanitizer:\n{_tail(end.output)}\n")
        elif control and end.reported == 0:
            bad += 1
            write(f"{end.name}: it does not see a kernel that is wrong, so its silence means nothing\n")
        elif not control and end.reported:
            bad += 1
            write(f"{end.name}: {end.reported} reports:\n{_tail(end.output)}\n")
    counts = ", ".join(
        f"{sum(e.reported or 0 for e in found if e.name.startswith(t) and not e.name.endswith(' wrong'))} by {t}"
        for t in TOOLS
    )
    ran = sum(end.ran for end in found if " " not in end.name)
    write(
        f"compute-sanitizer: {ran} kernels ({levels}): {'dry run' if dry else counts}, {bad} faults, {seconds:.0f} s\n"
    )
    return 1 if bad or not ran else 0


def _tail(output: str) -> str:
    lines = [line for line in output.splitlines() if line.startswith("=========")] or output.splitlines()
    return "\n".join(f"    {line}" for line in lines[:SHOWN])


if __name__ == "__main__":
    sys.exit(main())
