"""What must have come out of `group_scenarios`, for every framework alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCENARIOS = Path(__file__).with_name("group_scenarios.py")


def outcomes_of(launch: Callable[..., list[str]], framework: str, nproc: int, folder: Path) -> list[dict[str, Any]]:
    """Run the scenarios; what each rank wrote down."""
    launch(SCENARIOS, nproc, [framework, folder])
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(nproc)]


def each_value_reaches_each_rank_in_rank_order(outcomes: list[dict[str, Any]]) -> None:
    everyone = list(range(len(outcomes)))
    for rank, outcome in enumerate(outcomes):
        assert outcome["rank"] == [rank, len(outcomes)]
        assert outcome["gather"] == [{"rank": r, "padding": "x" * 1000 * r} for r in everyone]
        assert outcome["coordinator"] == ["from", 0]


def group_objects_over_the_same_ranks_can_take_turns(outcomes: list[dict[str, Any]]) -> None:
    assert all(outcome["interleaved"] == [list(range(len(outcomes)))] * 3 for outcome in outcomes)


def bytes_go_between_all_pairs_and_between_one(outcomes: list[dict[str, Any]]) -> None:
    assert all(outcome["swap"] for outcome in outcomes)
    assert [outcome["one way"] for outcome in outcomes] == [[0]] * (len(outcomes) - 1) + [[sum(range(200))]]
    assert all(outcome["no peer"]["type"] == "GroupError" for outcome in outcomes)


def l5_d24_a_rank_left_alone_raises_and_names_the_absent(outcomes: list[dict[str, Any]]) -> None:
    alone = outcomes[0]["alone"]
    assert alone["type"] == "GroupTimeoutError"
    assert alone["absent"] == list(range(1, len(outcomes)))
    assert (alone["rank"], alone["step"]) == (0, "save")
    assert "never arrived" in alone["text"]


def a_step_that_was_given_up_does_not_harm_the_next(outcomes: list[dict[str, Any]]) -> None:
    assert all(outcome["alone"]["after"] == list(range(len(outcomes))) for outcome in outcomes)


def ranks_in_different_steps_are_told_all_names(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        assert outcome["other names"]["type"] == "GroupError"
        assert "'a' on rank 0, 'b' on rank" in outcome["other names"]["text"]


def an_error_of_one_rank_is_raised_on_all(outcomes: list[dict[str, Any]]) -> None:
    last = len(outcomes) - 1
    for outcome in outcomes:
        error = outcome["error on last"]
        assert (error["type"], error["rank"], error["step"]) == ("KeyCollisionError", last, "plan")
        assert outcome["unpicklable"]["type"] == "RankFailedError"
        assert outcome["unpicklable"]["rank"] == last


def of_several_errors_the_lowest_ranks_is_raised_on_all(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        error = outcome["errors"]
        assert (error["type"], error["rank"]) == ("RankFailedError", 0)
        assert error["text"].startswith("ZeroDivisionError: no number")
        assert "ZeroDivisionError: no number" in error["notes"][0]
        assert error["notes"][1].startswith("also on rank")


def a_native_group_of_some_ranks_numbers_them_from_0(outcomes: list[dict[str, Any]]) -> None:
    members = [rank for rank in range(len(outcomes)) if rank != 1] if len(outcomes) > 2 else [0, 1]
    for rank, outcome in enumerate(outcomes):
        if rank in members:
            assert outcome["subgroup"] == [members.index(rank), len(members), members, True]
        else:
            assert outcome["subgroup"]["type"] == "GroupError"
    assert [outcome["of one"] for outcome in outcomes] == [[]] * (len(outcomes) - 1) + [[[len(outcomes) - 1]]]


def only_the_framework_in_use_is_imported(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        assert outcome["class"] == f"{outcome['modules'][0].capitalize()}Group"
        assert len(outcome["modules"]) == 1


CHECKS = {
    check.__name__: check
    for check in (
        each_value_reaches_each_rank_in_rank_order,
        group_objects_over_the_same_ranks_can_take_turns,
        bytes_go_between_all_pairs_and_between_one,
        l5_d24_a_rank_left_alone_raises_and_names_the_absent,
        a_step_that_was_given_up_does_not_harm_the_next,
        ranks_in_different_steps_are_told_all_names,
        an_error_of_one_rank_is_raised_on_all,
        of_several_errors_the_lowest_ranks_is_raised_on_all,
        a_native_group_of_some_ranks_numbers_them_from_0,
        only_the_framework_in_use_is_imported,
    )
}
