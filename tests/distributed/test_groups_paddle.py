"""The promises of `PaddleGroup`, in a real job over gloo: one launch per number of ranks, one test per promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flexstore.errors import GroupError
from tests.distributed.group_checks import CHECKS, outcomes_of

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module", params=[2, 3], ids="{} ranks".format)
def outcomes(
    request: pytest.FixtureRequest, paddle_launch: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    return outcomes_of(paddle_launch, "paddle", request.param, tmp_path_factory.mktemp("group"))


@pytest.mark.parametrize("promise", CHECKS)
def test_group_of_paddle(promise: str, outcomes: list[dict[str, Any]]) -> None:
    """L5 and D24 among others: see the name of each check."""
    CHECKS[promise](outcomes)


def test_l4_no_fleet_is_needed(outcomes: list[dict[str, Any]]) -> None:
    assert not any(outcome["fleet"] for outcome in outcomes)


def test_a_group_before_paddle_is_initialised_says_what_to_call() -> None:
    from flexstore.groups.paddle import PaddleGroup

    with pytest.raises(GroupError, match="init_parallel_env"):
        PaddleGroup()
