"""The documents are true: their Python runs, their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
WITH_PYTHON = [path for path in DOCUMENTS if BLOCK.search(path.read_text())]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """The fragments that a Markdown viewer makes of the headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@pytest.mark.parametrize("path", WITH_PYTHON, ids=name_of)
def test_python_blocks_run_in_order(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = path.read_text()
    scope: dict[str, object] = {"__name__": "__document__"}
    for match in BLOCK.finditer(text):
        # Blank lines in front, so that a traceback shows the line of the document.
        source = "\n" * (text[: match.start()].count("\n") + 1) + match[1]
        exec(compile(source, str(path), "exec"), scope)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_relative_links_lead_somewhere(path):
    for link in LINK.findall(path.read_text()):
        if "://" in link:
            continue
        target, _, fragment = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{link} in {name_of(path)}"
        assert not fragment or fragment in anchors(file.read_text()), f"{link} in {name_of(path)}"


def test_the_readme_shows_an_example():
    assert ROOT / "README.md" in WITH_PYTHON
