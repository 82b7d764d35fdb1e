"""The errors of a step, worded in one place for every kind of group.

Promises: every rank that sees one failed step raises an error of the same class with the same ranks in it. Pure values:
nothing here waits or communicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from flexstore.errors import FlexstoreError, GroupError, GroupTimeoutError

E = TypeVar("E", bound=BaseException)


def absence(step: str, rank: int, timeout: float, absent: Sequence[int]) -> GroupTimeoutError:
    """The error of a rank that waited in vain.

    Args:
        rank: the rank that waited.
        timeout: seconds after which the group gives up.
        absent: ranks that never arrived; empty if they came just after the step was given up.
    """
    who = f"{_ranks(absent)} never arrived" if absent else "its last ranks came too late"
    return GroupTimeoutError(
        f"{who} (timeout of the group: {timeout:g} s)",
        absent=tuple(absent),
        rank=rank,
        step=step,
        hint="every rank of the group must make the same call; give the group a longer timeout if the others are slow",
    )


def mismatch(steps: Sequence[str], rank: int) -> GroupError:
    """The error of a group whose ranks met in different steps; ``steps[r]`` is what rank ``r`` called."""
    callers = {step: [r for r, name in enumerate(steps) if name == step] for step in steps}
    listed = ", ".join(f"{step!r} on {_ranks(ranks)}" for step, ranks in callers.items())
    return GroupError(
        f"the ranks called different steps: {listed}",
        rank=rank,
        step=steps[rank],
        hint="every rank of the group must make the same calls in the same order",
    )


def first_failure(failures: Mapping[int, E]) -> E:
    """The error to raise of those that ended one step, the others noted on it.

    It is the lowest rank's, but a timeout comes after every other error: a rank that failed is absent to the rest, so
    its error is the cause and their timeouts are the consequence.

    Args:
        failures: the error of each rank that has one; at least one.
    """
    first = min(failures, key=lambda rank: (isinstance(failures[rank], GroupTimeoutError), rank))
    same: dict[str, list[int]] = {}
    for rank in sorted(failures.keys() - {first}):
        same.setdefault(summary(failures[rank]), []).append(rank)
    for text, ranks in same.items():
        failures[first].add_note(f"also on {_ranks(ranks)}: {text}")
    return failures[first]


def summary(error: BaseException) -> str:
    """The error's class and message, without the places that differ between ranks."""
    return f"{type(error).__name__}: {error.message if isinstance(error, FlexstoreError) else error}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
