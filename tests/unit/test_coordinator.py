"""Steps succeed on all ranks or fail on all ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from flexstore.errors import FlexstoreError, GroupTimeoutError, KeyCollisionError, RankFailedError
from flexstore.groups.coordinator import Coordinator
from flexstore.groups.threads import ThreadGroup, run


def errors(size: int, story: Callable[[Coordinator], object]) -> list[BaseException]:
    """What the story raises on each rank; it must raise on all."""

    def caught(group: ThreadGroup) -> BaseException:
        with pytest.raises(BaseException) as info:  # noqa: PT011
            story(Coordinator(group))
        return info.value

    return run(size, caught)


def raising(error: BaseException) -> Any:
    raise error


def test_a_step_gives_every_rank_all_results() -> None:
    def story(group: ThreadGroup) -> list[str]:
        ranks = Coordinator(group)
        return ranks.step("describe", lambda: f"{ranks.rank} of {ranks.size}")

    assert run(3, story) == [["0 of 3", "1 of 3", "2 of 3"]] * 3


def test_on_coordinator_runs_on_rank_0_only() -> None:
    called: list[int] = []

    def story(group: ThreadGroup) -> int:
        return Coordinator(group).on_coordinator("publish", lambda: called.append(group.rank) or 42)

    assert run(3, story) == [42] * 3
    assert called == [0]


def test_local_results_do_not_travel() -> None:
    def story(group: ThreadGroup) -> bool:
        lock = threading.Lock()  # cannot be pickled
        return Coordinator(group).local("open", lambda: lock) is lock

    assert run(2, story) == [True, True]


@pytest.mark.parametrize("how", ["step", "local"])
def test_an_error_of_one_rank_is_raised_on_all_with_its_class_and_place(how: str) -> None:
    def story(ranks: Coordinator) -> None:
        getattr(ranks, how)(
            "plan", lambda: raising(KeyCollisionError("two values", key="w", hint="rename")) if ranks.rank == 1 else 0
        )

    for error in errors(3, story):
        assert isinstance(error, KeyCollisionError)
        assert (error.key, error.rank, error.step, error.hint) == ("w", 1, "plan", "rename")


def test_an_error_of_the_coordinator_is_raised_on_all() -> None:
    found = errors(3, lambda ranks: ranks.on_coordinator("publish", lambda: raising(FlexstoreError("full"))))
    assert [(type(e), e.rank) for e in found if isinstance(e, FlexstoreError)] == [(FlexstoreError, 0)] * 3


def test_a_foreign_error_names_its_type_rank_and_step_and_keeps_its_traceback() -> None:
    found = errors(3, lambda ranks: ranks.step("plan", lambda: {0: 1}[ranks.rank // 2]))
    for error in found:
        assert isinstance(error, RankFailedError)
        assert (error.message, error.rank, error.step) == ("KeyError: 1", 2, "plan")
        assert "Traceback" in error.__notes__[0]
    assert isinstance(found[2].__cause__, KeyError)


def test_of_several_errors_all_ranks_raise_the_lowest_ranks_and_note_the_others() -> None:
    def story(ranks: Coordinator) -> None:
        ranks.step("plan", lambda: raising(FlexstoreError("low" if ranks.rank == 1 else "high")) if ranks.rank else 0)

    for error in errors(4, story):
        assert isinstance(error, FlexstoreError)
        assert (error.message, error.rank) == ("low", 1)
        assert error.__notes__ == ["also on ranks 2, 3: FlexstoreError: high"]


def test_what_cannot_be_pickled_does_not_hang_the_others() -> None:
    for error in errors(2, lambda ranks: ranks.step("plan", threading.Lock if ranks.rank else int)):
        assert isinstance(error, RankFailedError)
        assert error.rank == 1
        assert "pickle" in error.message


class Unreadable:
    """Can be pickled but not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (raising, (ValueError("not here"),))


def test_a_result_that_cannot_be_unpickled_fails_on_all() -> None:
    for error in errors(2, lambda ranks: ranks.step("plan", Unreadable if ranks.rank else int)):
        assert isinstance(error, RankFailedError)
        assert (error.message, error.rank) == ("its result cannot be unpickled: ValueError: not here", 1)


@pytest.mark.parametrize("content", [threading.Lock(), Unreadable()], ids=["dumps", "loads"])
def test_the_words_of_an_error_travel_even_if_its_content_cannot(content: object) -> None:
    def fail() -> None:
        raise FlexstoreError("strange", box=content)

    low, high = errors(2, lambda ranks: ranks.step("plan", fail if ranks.rank else int))
    assert isinstance(low, RankFailedError)
    assert (low.message, low.rank, low.step) == ("FlexstoreError: strange", 1, "plan")
    assert type(high) is FlexstoreError


def test_an_interrupt_goes_on_where_it_happened_and_is_told_to_the_others() -> None:
    def story(ranks: Coordinator) -> None:
        ranks.step("write", lambda: raising(KeyboardInterrupt()) if ranks.rank == 0 else None)

    interrupted, told = errors(2, story)
    assert isinstance(interrupted, KeyboardInterrupt)
    assert isinstance(told, RankFailedError)
    assert (told.message, told.rank) == ("KeyboardInterrupt: ", 0)


def test_l5_a_rank_that_never_calls_is_named() -> None:
    with pytest.raises(GroupTimeoutError) as caught:
        run(3, lambda group: None if group.rank == 2 else Coordinator(group).step("save", int))
    assert caught.value.absent == (2,)


def test_steps_go_on_after_a_failure() -> None:
    def story(group: ThreadGroup) -> list[int]:
        ranks = Coordinator(group)
        with pytest.raises(RankFailedError):
            ranks.step("first", lambda: 1 // ranks.rank)
        return ranks.step("second", lambda: ranks.rank)

    assert run(2, story) == [[0, 1]] * 2
