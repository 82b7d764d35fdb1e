"""The promises of `TorchGroup`, in a real job over gloo: one launch per number of ranks, one test per promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flexstore.errors import GroupError
from tests.distributed.group_checks import CHECKS, outcomes_of

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module", params=[3], ids="{} ranks".format)
def outcomes(
    request: pytest.FixtureRequest, torch_launch: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    return outcomes_of(torch_launch, "torch", request.param, tmp_path_factory.mktemp("group"))


@pytest.mark.parametrize("promise", CHECKS)
def test_group_of_torch(promise: str, outcomes: list[dict[str, Any]]) -> None:
    """L5 and D24 among others: see the name of each check."""
    CHECKS[promise](outcomes)


def test_a_group_before_torch_is_initialised_says_what_to_call() -> None:
    from flexstore.groups.torch import TorchGroup

    with pytest.raises(GroupError, match="init_process_group"):
        TorchGroup()
