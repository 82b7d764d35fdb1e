"""One state in real Paddle jobs: saved by 2 ranks, loaded by 4, saved again, loaded by 3 and by 1, bit for bit.

One launch per number of ranks, one test per promise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt
import pytest

import flexstore as fs
from flexstore.testing import Cut, expected
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


@pytest.fixture(scope="module")
def one(folder: Path, four: Outcomes) -> Callable[[str, int], list[str]]:
    """Loads a checkpoint in this process, which is no job at all; the names that came out wrong."""
    from tests.paddle_kit import state_of, wrong

    def load(name: str, turn: int) -> list[str]:
        state = state_of(layout(1, turn), 0, inverted)
        fs.load(state, folder / name)
        return wrong(state, layout(1, turn), 0)

    return load


def test_r3_r9_d28_two_ranks_save_and_four_load_under_another_layout(two: Outcomes, four: Outcomes) -> None:
    """Rows, columns, uneven, empty and one-element slices (D29), names of one rank only (R7), strided and padded memory
    (Z2), parameters; 14 dtypes.
    """
    assert [outcome["save"] for outcome in two] == [[TENSORS, 2]] * 2
    for outcome in four:
        assert outcome["load"]["right before"] == []
        assert outcome["load"]["wrong"] == []
        assert outcome["load"]["lists"] == []


def test_e4_e7_d27_nested_plain_values_and_none_come_back_on_every_rank(four: Outcomes, three: Outcomes) -> None:
    assert all(outcome["load"]["plain"] for outcome in (*four, *three))


@pytest.mark.parametrize("source", ["load", "load from two"])
def test_r3_r9_e14_what_two_and_four_ranks_saved_is_loaded_by_three(
    source: str, four: Outcomes, three: Outcomes
) -> None:
    """What was replicated is loaded as padded, flattened ranges (E14), among all other changes of the cut."""
    assert [outcome["save"] for outcome in four] == [[TENSORS, 4]] * 4
    for outcome in three:
        assert outcome[source]["right before"] == []
        assert outcome[source]["wrong"] == []


@pytest.mark.parametrize(("name", "turn"), [("two", 5), ("four", 3)])
def test_r3_r9_d27_what_several_ranks_saved_is_loaded_by_one(
    name: str, turn: int, one: Callable[[str, int], list[str]]
) -> None:
    assert one(name, turn) == []


@pytest.mark.parametrize("name", ["two", "four"])
def test_x7_what_several_ranks_saved_is_read_as_numpy_arrays(name: str, folder: Path, four: Outcomes) -> None:
    checkpoint = fs.open_checkpoint(folder / name)
    assert [cut.key for cut in layout(1, 0) if bits(checkpoint[cut.key].read()) != bits(_whole(cut))] == []
    assert checkpoint.common["optimizer.group.step"] == 7
    checkpoint.verify()


@pytest.mark.parametrize("direction", ["reshard", "reshard back"])
def test_r1_three_ranks_reshard_from_memory_to_memory(direction: str, three: Outcomes) -> None:
    for outcome in three:
        assert outcome[direction] == {"right before": [], "wrong": [], "step": 7}


def test_l4_f3_data_parallel_models_need_no_fleet_and_are_stored_once(two: Outcomes, four: Outcomes) -> None:
    for outcome in two:
        assert outcome["save data parallel"]["tensors"] == outcome["save data parallel"]["chunks"] > 0
    assert not any(outcome["fleet"] for outcome in (*two, *four))


def test_l3_d30_training_goes_on_bit_for_bit_under_every_optimizer(four: Outcomes) -> None:
    for outcome in four:
        assert outcome["load data parallel"] == {"right before": [], "wrong": []}


def test_r4_dist_tensors_are_saved_as_blocks_and_loaded_as_plain_ones_and_under_another_mesh(
    two: Outcomes, four: Outcomes
) -> None:
    assert all(outcome["save DistTensors"] == ["[0:7, 0:3]", "[0:7, 3:6]"] for outcome in two)
    assert all(outcome["load DistTensors"] == {"plain": [True] * 3, "cut": [True] * 3} for outcome in four)


def test_l5_d24_a_save_that_only_rank_0_calls_names_the_absent_and_spoils_nothing(two: Outcomes) -> None:
    error = two[0]["only rank 0"]
    assert (error["type"], error["rank"], error["absent"]) == ("GroupTimeoutError", 0, [1])
    assert [outcome["only rank 0"]["after"] for outcome in two] == [1, 1]


def test_r4_a_rank_that_cannot_describe_its_state_ends_the_save_on_all(two: Outcomes) -> None:
    for outcome in two:
        error = outcome["cannot describe"]
        assert (error["type"], error["rank"], error["step"]) == ("UnsupportedValueError", 1, "describe")
        assert error["key"] == "layer.w"


def test_x5_a_rank_that_cannot_write_ends_the_save_on_all_and_nothing_is_published(two: Outcomes) -> None:
    for outcome in two:
        error = outcome["cannot write"]
        assert (error["type"], error["rank"], error["step"]) == ("InjectedFault", 1, "write")
        assert error["after"] == "CheckpointNotFoundError"


def test_e13_replicas_that_differ_between_ranks_are_refused_on_all(two: Outcomes) -> None:
    for outcome in two:
        error = outcome["replicas differ"]
        assert (error["type"], error["key"]) == ("ReplicaMismatchError", "expert.0")


def test_some_ranks_of_a_job_save_through_a_group_of_their_own(four: Outcomes) -> None:
    assert [outcome["some ranks"] for outcome in four] == [None, [2, sum(range(42))], None, [2, sum(range(42))]]


def _whole(cut: Cut) -> npt.NDArray[Any]:
    return expected(cut.key, cut.shape, cut.dtype)
