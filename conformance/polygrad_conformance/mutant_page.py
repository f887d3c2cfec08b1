"""The two-way matrix of mutants and tests, as text for a terminal and as a page of the documentation.

Here: words and order. Not here: the trials (`selftest.py`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polygrad_conformance.checks import LEVELS, all_checks

if TYPE_CHECKING:
    from polygrad_conformance.selftest import Kill

INTRODUCTION = """\
# The proof that the suite bites

*Written by `python -m polygrad conformance --self-test --report FOLDER`, which makes `mutants.md`; a test keeps it
current.*

A test that cannot fail shows nothing. So there is a driver that is right by definition (`strict`, which runs every
kernel by the oracle), and there are {mutants} *mutants*: plugins that make it wrong in one way. `--self-test` runs each
mutant against the tests that are named for it, and demands that

- each of these tests fails, by an assertion, not by a crash of its own;
- each of these tests passes on the same device without the mutant;
- each of the {functions} test functions of the suite finds at least one mutant.

"""


def text(kills: Sequence["Kill"]) -> str:
    """Return the matrix as text: for each mutant who finds it, for each test what it finds."""
    lines = ["mutant -> tests that find it", ""]
    for (group, name), mine in _by_mutant(kills).items():
        lines.append(f"  {group:12} {name:44} {', '.join(mine) or 'nobody'}")
    lines += ["", "test -> mutants that it finds", ""]
    for function, names in _by_function(kills).items():
        lines.append(f"  {function:44} {', '.join(names) or 'none'}")
    return "\n".join(lines) + "\n"


def markdown(kills: Sequence["Kill"]) -> str:
    """Return the matrix as a page of the documentation; the same for the same mutants, whatever the machine."""
    by_mutant, by_function = _by_mutant(kills), _by_function(kills)
    parts = [INTRODUCTION.format(mutants=len(by_mutant), functions=sum(bool(names) for names in by_function.values()))]
    parts.append("## Mutants, and the tests that find them\n")
    for group in dict.fromkeys(group for group, _ in by_mutant):
        parts.append(f"\n### {group}\n\n| mutant | found by |\n|---|---|\n")
        for (of, name), mine in by_mutant.items():
            if of == group:
                parts.append(f"| {name} | {', '.join(f'`{k}`' for k in mine) or '**nobody**'} |\n")
    parts.append("\n## Tests, and the mutants that they find\n")
    docs = {c.function: (c.level, c.doc) for c in all_checks().values()}
    for level, title in LEVELS.items():
        parts.append(f"\n### Level {level}, {title}\n\n| test | what it checks | mutants |\n|---|---|---|\n")
        for function, names in by_function.items():
            if docs[function][0] == level:
                what = " ".join(docs[function][1].split()).replace("|", "\\|")
                parts.append(f"| `{function.partition('.')[2]}` | {what} | {'; '.join(names) or '**none**'} |\n")
    return "".join(parts)


def _by_mutant(kills: Sequence["Kill"]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for kill in kills:
        mine = found.setdefault((kill.group, kill.mutant), [])
        if kill.end == "killed":
            mine.append(kill.check)
    return found


def _by_function(kills: Sequence["Kill"]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {c.function: [] for c in all_checks().values()}
    for kill in kills:
        if kill.end == "killed" and kill.mutant not in found[kill.function]:
            found[kill.function].append(kill.mutant)
    return found
