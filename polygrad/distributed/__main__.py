"""``python -m polygrad.distributed run -n 2 -- script.py``: a job of processes on this machine.

Here: reading the command line.
Not here: starting (`launcher.py`).
"""

import argparse
import sys
from collections.abc import Sequence

from polygrad.commands import parsed
from polygrad.distributed.launcher import run
from polygrad.errors import DistributedError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m polygrad.distributed", description="Jobs of several processes.")
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("run", help="start processes on this machine, and end all when one fails")
    start.add_argument("-n", type=int, required=True, metavar="N", help="how many")
    start.add_argument("what", nargs=argparse.REMAINDER, metavar="-- script.py | -m module ...", help="what they run")
    start.set_defaults(parser=start)
    given = parsed(parser, arguments)
    what = given.what[1:] if given.what[:1] == ["--"] else given.what
    try:
        return run(given.n, what)
    except DistributedError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
