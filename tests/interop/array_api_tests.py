"""Run the standard's own test suite on polygrad: python tests/interop/array_api_tests.py CHECKOUT [--device opencl:0]

CHECKOUT is a clone of the public repository data-apis/array-api-tests in whose folder `array-api` lies a checkout of the
standard (data-apis/array-api), as its own README says. The suite uses the default device, which is set here.

Here: the command line, a fresh example database, the table for the docs.
Not here: the suite; nothing is skipped and no failure is expected.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SPECIAL = "array_api_tests/test_special_cases.py"


def command(arguments: argparse.Namespace, examples: int, what: list[str]) -> list[str]:
    """Return the pytest command line."""
    return [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:polygrad_conformance", "-p", "no_shrinking",
        f"--max-examples={examples}", "--disable-deadline", "--derandomize", "-rfE", "--tb=short", *what, *arguments.rest,
    ]  # fmt: skip


def run(arguments: argparse.Namespace, examples: int, what: list[str]) -> tuple[str, list[str], int]:
    """Return the summary line, the failing ids and the exit status."""
    module = f"exec('import polygrad; polygrad.set_device(\"{arguments.device}\"); xp = polygrad')"
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ, "ARRAY_API_TESTS_MODULE": module, "ARRAY_API_TESTS_VERSION": arguments.version,
            "HYPOTHESIS_STORAGE_DIRECTORY": folder,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
        }  # fmt: skip
        done = subprocess.run(
            command(arguments, examples, what), cwd=arguments.checkout, env=environment, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
    if arguments.verbose:
        print(done.stdout[-200_000:], done.stderr[-5_000:])
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+.*)$", done.stdout, flags=re.MULTILINE)
    summary = (done.stdout.strip().splitlines() or [done.stderr.strip()[-500:]])[-1]
    return summary.strip("= "), failed, done.returncode


def main() -> int:
    """Run what the command line says; return pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--device", default="cpu:0")
    parser.add_argument("--examples", type=int, default=20)
    parser.add_argument("--special-examples", type=int, default=0, help="run the special cases apart, with so many")
    parser.add_argument("--version", default="2025.12")
    parser.add_argument("--only", nargs="*", default=["array_api_tests/"])
    parser.add_argument("--verbose", action="store_true")
    arguments, rest = parser.parse_known_args()
    arguments.rest = rest  # options of pytest
    if not (arguments.checkout / "array_api_tests").is_dir():
        parser.error(f"{arguments.checkout} is no checkout of array-api-tests: it has no folder array_api_tests")
    runs = [(arguments.examples, arguments.only)]
    if arguments.special_examples:
        runs = [
            (arguments.examples, [*arguments.only, f"--ignore={SPECIAL}"]),
            (arguments.special_examples, [SPECIAL]),
        ]
    worst = 0
    for examples, what in runs:
        summary, failed, status = run(arguments, examples, what)
        print(f"{arguments.device}, {examples} examples, {what[0]}: {summary}", flush=True)
        for line in failed:
            print("  " + line[:260])
        worst = max(worst, status)
    return worst


if __name__ == "__main__":
    raise SystemExit(main())
