"""What a report must not tell of the machine that made it: paths, the host's name, the user's.

Here: `cleaned`, which takes them out of texts.
Not here: what else is in a report (`outcome.py`).
"""

import contextlib
import functools
import getpass
import platform
import re
from pathlib import Path
from typing import Any

KEPT = frozenset({"case"})  # of an answer: arrays as text, which have no words in them
# Two or more folders from a root, which is not part of an address on the web or of a longer word.
_PATH = re.compile(
    r"(?<![\w:/.*<])(?:/[\w.+@~-]+){2,}/?"  # as Unix has them
    r"|(?<!\w)[A-Za-z]:(?:[/\\][\w.+@~ -]+)+"  # as Windows has them
    r"|(?<=file:)//[^\s'\"]+"
)
SHORTEST = 3  # letters of a name that is looked for


def cleaned(value: Any) -> Any:
    """Return *value*, data as JSON has it, with paths as their last part alone and names of host and user as words.

    >>> cleaned({"message": 'File "/srv/someone/lib/driver.py", line 3, see https://example.org/a/b'})
    {'message': 'File ".../driver.py", line 3, see https://example.org/a/b'}
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {k: v if k in KEPT else cleaned(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(v) for v in value]
    return value


def _text(text: str) -> str:
    for name, word in _names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", word, text)
    return _PATH.sub(lambda found: ".../" + re.split(r"[/\\]", found[0].rstrip("/\\"))[-1], text)


@functools.cache
def _names() -> tuple[tuple[str, str], ...]:
    """Return what names this machine and its user, longest first, with the word for each."""
    node = platform.node()
    found = {node: "HOST", node.partition(".")[0]: "HOST", str(Path.home()): "HOME"}
    with contextlib.suppress(KeyError, OSError, ImportError):  # a user without a name needs no hiding
        found[getpass.getuser()] = "USER"
    names = [(n, w) for n, w in found.items() if len(n) >= SHORTEST and n not in ("root", "localhost", "user")]
    return tuple(sorted(names, key=lambda pair: -len(pair[0])))
