"""One state in real Paddle jobs: saved by 2 ranks, loaded by 4, saved again, loaded by 3 and by 1, bit for bit.

One launch per number of ranks, one test per promise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import flexstore as fs
from tests.distributed.launch import launch_paddle
from tests.layout_kit import inverted, layout
from tests.stories_kit import bits

pytestmark = pytest.mark.distributed

Outcomes: TypeAlias = list[dict[str, Any]]
"""What each rank of a job wrote down."""

SCRIPT = Path(__file__).parent / "scripts" / "reshape.py"
TENSORS = len(layout(1, 0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reshape")


def run(folder: Path, world: int) -> Outcomes:
    launch_paddle(SCRIPT, world, [folder])
    return [json.loads((folder / f"{world}-{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def two(folder: Path) -> Outcomes:
    return run(folder, 2)


@pytest.fixture(scope="module")
def four(folder: Path, two: Outcomes) -> Outcomes:
    return run(folder, 4)


@pytest.fixture(scope="module")
def three(folder: Path, four: Outcomes) -> Outcomes:
    return run(folder, 3)
