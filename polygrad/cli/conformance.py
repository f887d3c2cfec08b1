"""Run the conformance suite on a device, and say what is still wrong.

Here: the arguments, and what to install if the suite is absent.
Not here: the suite, which is a package of its own (`polygrad_conformance`) and is imported when it is asked for.

Exit code: 0 if all is well; 1 if tests failed; 2 for a wrong command line; 3 if the driver could not be loaded; 4 if
too little ran; 5 if the driver's expectations are stale.
"""

import argparse
import importlib
import sys
from pathlib import Path

PACKAGE = "polygrad_conformance"
USAGE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take devices, and what to run on them."""
    parser.add_argument(
        "devices",
        nargs="*",
        metavar="DEVICE",
        help="such as acme:0; or: diff BEFORE.json AFTER.json; or: matrix A.json B.json -o PAGE.html",
    )
    parser.add_argument("--all-installed", action="store_true", help="every device that can be opened")
    parser.add_argument(
        "--profile", choices=("quick", "standard", "full"), default="quick", help="how thorough (default: quick)"
    )
    parser.add_argument("--level", default="all", help="a level, a range such as 0-3, or all")
    parser.add_argument("-k", dest="pattern", default="", help="only ids that contain this text or match this pattern")
    parser.add_argument("--seed", type=int, default=0, help="of the random kernels and data")
    parser.add_argument(
        "--time", type=float, default=None, metavar="SECONDS", help="stop after so long (default: by profile)"
    )
    parser.add_argument(
        "--limit", type=float, default=120.0, metavar="SECONDS", help="after which one test counts as hung"
    )
    parser.add_argument(
        "--report", type=Path, default=None, metavar="FOLDER", help="write JSON, JUnit, HTML and badge there"
    )
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the report as JSON there")
    parser.add_argument("-o", "--output", type=Path, default=None, metavar="PAGE.html", help="of matrix")
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="MODULE:NAME", help="register this driver or wrapper first"
    )
    parser.add_argument("--replay", type=Path, default=None, metavar="CASE.json", help="run one saved case only")
    parser.add_argument("--list", action="store_true", help="print the ids that would run")
    parser.add_argument("--self-test", action="store_true", help="prove on a fake driver that each test can fail")
    parser.add_argument("--allow-xpass", action="store_true", help="a test that passes against expectation is no fault")


def run(arguments: argparse.Namespace) -> int:
    """Hand the arguments to the suite."""
    try:
        command = importlib.import_module(f"{PACKAGE}.command")
    except ModuleNotFoundError as error:
        missing = error.name or PACKAGE
        sys.stderr.write(
            f"polygrad conformance: there is no module named {missing!r}; pip install 'polygrad-array[conformance]'\n"
        )
        return USAGE
    return int(command.run(arguments))
