"""How a command of ours ends: its exit code, and one sentence if it failed.

Here: what `polygrad` and `polygrad.gpt` have in common. Not here: their command lines and commands.
"""

import os
import sys
import traceback
from collections.abc import Callable

INTERRUPTED = 130  # what shells give for a process that SIGINT ended


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
