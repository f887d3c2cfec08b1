"""Build the documentation: first the pages that are made from the code, then the site.

Here: the page of ops. Not here: the pages of reference for drivers (`reference.py`), any text that a person writes.
"""

import argparse
import inspect
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import reference

import polygrad as pg
from polygrad.array.functions import FUNCTIONS, NAMESPACES
from polygrad.ops.table import TABLE

HERE = Path(__file__).resolve().parent
HEAD = """# Ops

Every function that the op table declares, {count} of them, by family. This page is made from the table by
`docs/build.py`. Those without another name before them are in `pg`, and most of these are methods of arrays too; `/`
ends the arguments that go by position alone.
"""

# Every op once, under the name that follows ``pg.``; what is in `pg` itself is called so.
NAMES = {name: name for name in FUNCTIONS}
CALLS = dict(FUNCTIONS)
for place, functions in NAMESPACES.items():
    for name, function in functions.items():
        op_name = f"{place}_{name}" if f"{place}_{name}" in TABLE else name
        NAMES.setdefault(op_name, f"{place}.{name}")
        CALLS.setdefault(op_name, function)


def family(name: str) -> str:
    """Return the family of an op: the first line of the docstring of the module that declares it."""
    module = sys.modules[TABLE[name].body.__module__]
    return (module.__doc__ or module.__name__).splitlines()[0].rstrip(".")


def signature(name: str) -> str:
    """Return how an op is called, bars escaped for a table."""
    whole = inspect.signature(CALLS[name])
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in whole.parameters.values()]
    shown = whole.replace(parameters=bare, return_annotation=inspect.Signature.empty)
    return f"{NAMES[name]}{shown}".replace("|", "\\|")


def ops_page() -> str:
    """Return the page of ops as Markdown."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in NAMES:
        families[family(name)].append(name)
    parts = [HEAD.format(count=len(NAMES))]
    for title, names in families.items():
        parts.append(f"\n## {title}\n\n| op | what it is | dtypes |\n|---|---|---|")
        for name in sorted(names):
            op = TABLE[name]
            what = op.doc.replace("|", "\\|")
            parts.append(f"| `{signature(name)}` | {what} | {(op.dtypes or 'any').replace(' ', ', ')} |")
    return "\n".join(parts) + "\n"


def main() -> int:
    """Write the pages and run mkdocs; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strict", action="store_true", help="a warning is an error")
    parser.add_argument("--serve", action="store_true", help="serve the site while it is edited")
    arguments = parser.parse_args()
    (HERE / "ops.md").write_text(ops_page())
    reference.write()
    print(f"polygrad {pg.__version__}: {len(NAMES)} ops", flush=True)
    command = [sys.executable, "-m", "mkdocs", "serve" if arguments.serve else "build"]
    if arguments.strict:
        command.append("--strict")
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # a notice about the future of mkdocs, not about this site
    return subprocess.run(command, cwd=HERE.parent, check=False, env=quiet).returncode


if __name__ == "__main__":
    sys.exit(main())
