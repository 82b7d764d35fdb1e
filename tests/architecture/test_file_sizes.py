"""Files and functions stay small enough to be read at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("flexstore", "examples", "benchmarks")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_MEDIAN_LINES = 6
DUMPING_GROUNDS = ("utils", "util", "helpers", "helper", "manager", "misc", "common", "_part2")


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and length in lines of every function; the docstring does not count."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            first = node.body[0]
            documented = ast.get_docstring(node) is not None and first.end_lineno is not None
            docstring = first.end_lineno - first.lineno + 1 if documented else 0
            yield node.name, node.end_lineno - node.lineno + 1 - docstring


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_is_small(path):
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_FILE_LINES, f"{lines} lines; split it by noun"
    too_long = {name: length for name, length in functions(path) if length > MAX_FUNCTION_LINES}
    assert not too_long
    assert not path.stem.endswith(DUMPING_GROUNDS), "name the file after the thing it holds"


def test_most_functions_are_very_small():
    lengths = [length for path in SOURCES if path.is_relative_to(ROOT / "flexstore") for _, length in functions(path)]
    assert median(lengths) <= MAX_MEDIAN_LINES


def test_test_files_have_unique_names():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
