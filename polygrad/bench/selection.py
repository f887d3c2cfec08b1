"""Who and what takes part, as the command line names it, and refusals that name what was likely meant.

Here: work, groups, peers and devices by names and patterns.
Not here: argparse (`polygrad/cli/bench.py`).
"""

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence

from polygrad.bench.peers import OWN, PEERS, Place
from polygrad.bench.process import Contender
from polygrad.bench.work import Work
from polygrad.errors import PolygradError

NONE, ALL = "none", "all"


class ChoiceError(PolygradError, ValueError):
    """A name on the command line that stands for nothing."""


def refuse(sentence: str) -> ChoiceError:
    """Return the refusal that says *sentence*."""
    return ChoiceError(sentence)


def unknown(kind: str, word: str, known: Sequence[str]) -> ChoiceError:
    """Return a refusal that names what comes nearest, or all that there is if nothing does.

    >>> print(unknown("peer", "toch", ["torch", "jax.jit"]))
    there is no peer 'toch'; did you mean 'torch'?
    """
    near = difflib.get_close_matches(word, known, n=3)
    if near:
        return ChoiceError(f"there is no {kind} {word!r}; did you mean {' or '.join(map(repr, near))}?")
    return ChoiceError(f"there is no {kind} {word!r}; there are {', '.join(known) or 'none'}")


def split(words: Iterable[str]) -> list[str]:
    """Return what lists with commas and lists of arguments name, in order and once.

    >>> split(["a,b", "c", "a"])
    ['a', 'b', 'c']
    """
    return list(dict.fromkeys(part.strip() for word in words for part in word.split(",") if part.strip()))


def works(table: Mapping[str, Work], patterns: Sequence[str], groups: Sequence[str]) -> list[Work]:
    """Return the work that patterns and groups name together, or all if there are none of both."""
    known_groups = list(dict.fromkeys(work.group for work in table.values()))
    for group in groups:
        if group not in known_groups:
            raise unknown("group", group, known_groups)
    chosen = set()
    for pattern in patterns:
        found = fnmatch.filter(table, pattern)
        if not found:
            raise unknown("work", pattern, list(table))
        chosen |= set(found)
    return [work for name, work in table.items() if name in chosen or work.group in groups or not (patterns or groups)]


def peers(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of the peers that take part, and of those wanted that are not installed.

    No names: the usual ones. "all" and "none" stand for themselves.
    """
    wanted = []
    for name in names:
        if name == ALL:
            wanted += list(PEERS)
        elif name != NONE:
            found = fnmatch.filter(PEERS, name)
            if not found:
                raise unknown("peer", name, [*PEERS, ALL, NONE])
            wanted += found
    if not names:
        wanted = [name for name, peer in PEERS.items() if peer.usual]
    wanted = list(dict.fromkeys(wanted))
    return [n for n in wanted if PEERS[n].found()], [n for n in wanted if not PEERS[n].found()]


def contenders(devices: Mapping[str, Place], names: Sequence[str], modes: Sequence[str]) -> list[Contender]:
    """Return polygrad in its modes on its devices, and each peer wherever these devices' hardware is."""
    own = [Contender(OWN[mode], device, place) for device, place in devices.items() for mode in modes]
    places = list(dict.fromkeys(devices.values()))
    others = [Contender(PEERS[n], place, place) for place in places for n in names if place in PEERS[n].places]
    return own + others
