"""The programs in README and in the guides run, on every device.

Here: the code blocks of Markdown pages. Not here: examples in docstrings, which doctest runs.
"""

import os
import re
from pathlib import Path

import pytest

import polygrad as pg

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in DOCS.rglob("*.md") if p.parent.name != "adr")]


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)])
def test_the_programs_of_a_page_run_in_order(page, device, capsys):
    given = {
        "pg": pg,
        "x": pg.asarray([1.0, 2.0, 3.0]),
        "images": pg.ones((4, 64), dtype=pg.float32),
        "labels": pg.asarray([1, 2, 3, 4]),
    }
    try:
        for block in blocks(page):
            exec(compile(block.replace("opencl:0", device), page, "exec"), given)
    finally:
        pg.set_device(os.environ.get("POLYGRAD_DEVICE", "cpu:0"))  # as a process starts
    assert "Traceback" not in capsys.readouterr().out


def test_every_local_link_leads_somewhere():
    broken = []
    for page in [*PAGES, *(str(p.relative_to(ROOT)) for p in (ROOT / "docs" / "adr").glob("*.md")), "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text()):
            here = (ROOT / page).parent / target
            if not here.exists() and target != "ops.md":  # the page of ops is made when the documentation is built
                broken.append(f"{page} -> {target}")
    assert broken == []
