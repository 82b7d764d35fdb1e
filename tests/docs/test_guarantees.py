"""docs/guarantees.md names, for every numbered promise, the test files that prove it.

A test proves a promise if its name begins with the number (``test_d15_bit_flip_is_detected``) or its docstring has it.
Run as a program, this file brings the last column of the document up to date.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "guarantees.md"
ROW = re.compile(r"^\| (?P<number>[A-Z]\d+) \| (?P<promise>.+?) \| (?P<proof>.*?) \|$", re.MULTILINE)
NUMBER = re.compile(r"\b[A-Z]\d{1,2}\b")


def numbers_of(test: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    """The numbers that one test claims."""
    for piece in test.name.lower().removeprefix("test").strip("_").split("_"):
        if not re.fullmatch(r"[a-z]\d{1,2}", piece):
            break
        yield piece.upper()
    yield from NUMBER.findall(ast.get_docstring(test) or "")


def proofs() -> dict[str, set[Path]]:
    """Number → the test files that claim to prove it."""
    found: dict[str, set[Path]] = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower().startswith("test"):
                for number in numbers_of(node):
                    found[number].add(path)
    return found


def with_proofs(text: str) -> str:
    """The document with its last column as it should be."""
    found = proofs()

    def row(match: re.Match[str]) -> str:
        files = sorted(found[match["number"]])
        links = [f"[{path.stem.removeprefix('test_')}](../{path.relative_to(ROOT)})" for path in files]
        return f"| {match['number']} | {match['promise']} | {', '.join(links) or 'upcoming'} |"

    return ROW.sub(row, text)


def test_the_document_names_the_tests_that_prove_each_promise():
    text = DOCUMENT.read_text()
    assert text == with_proofs(text), "run `make guarantees`"


def test_every_promise_is_listed_once():
    numbers = [match["number"] for match in ROW.finditer(DOCUMENT.read_text())]
    assert len(numbers) == len(set(numbers))
    for letter, last in {"R": 9, "Z": 8, "F": 4, "M": 10, "D": 30, "X": 9}.items():
        listed = {int(number[1:]) for number in numbers if number[0] == letter}
        assert listed == set(range(1, last + 1)), letter


def test_numbers_are_read_from_names_and_docstrings():
    source = "def test_d1_d3_all_filled(): 'Also E13.'\ndef test_reads_f4(): pass\n"
    tests = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert [list(numbers_of(test)) for test in tests] == [["D1", "D3", "E13"], []]


if __name__ == "__main__":
    DOCUMENT.write_text(with_proofs(DOCUMENT.read_text()))
