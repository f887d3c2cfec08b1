"""How a command of ours begins and ends: its arguments read, its exit code, and one sentence if it failed.

Here: what `polygrad`, `polygrad.gpt` and the conformance suite have in common. Not here: their command lines and
commands.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence

INTERRUPTED = 130  # what shells give for a process that SIGINT ended


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments; words that a command does not know are refused with the usage of that command.

    A command's parser is found under the name `parser` among its defaults.
    """
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        getattr(arguments, "parser", parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def of_file(error: Exception) -> str | None:
    """Return what an error says of the file that it names, as a sentence; None of any other error."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"cannot use {os.fspath(error.filename)}: {error.strerror}"
    return None


def ended(name: str, run: Callable[[], int], said: Callable[[Exception], str], *, verbose: bool) -> int:
    """Run a command; return its exit code, 1 if it failed, with what *said* makes of the error on standard error."""
    try:
        code = int(run())
        sys.stdout.flush()
    except BrokenPipeError:  # `polygrad drivers | head`: nobody reads on, and Python would complain when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if verbose:
            traceback.print_exc()
        sys.stderr.write(f"{name}: {said(error)}\n")
        return 1
    return code
