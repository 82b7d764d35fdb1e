"""Ranks that meet at a key-value store agree whether a step takes place, whatever the moment of a timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from flexstore.errors import GroupError, GroupTimeoutError
from flexstore.groups import arrival
from flexstore.groups.arrival import Arrivals

NEVER = 300.0


class MemoryStore:
    """A store of the kind that frameworks have; ``before`` is called before each request."""

    def __init__(self) -> None:
        self.before: Callable[[str, int], None] = lambda key, amount: None
        self._values: dict[str, str] = {}
        self._changed = threading.Condition(threading.RLock())

    def set(self, key: str, value: str, /) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, /) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values)
            return self._values[key].encode()

    def add(self, key: str, amount: int, /) -> int:
        self.before(key, amount)
        with self._changed:
            self.set(key, str(int(self._values.get(key, "0")) + amount))
            return int(self._values[key])

    def keys(self) -> set[str]:
        return set(self._values)


def everywhere(size: int, call: Callable[[int], object]) -> list[object]:
    """Call on ``size`` threads at once; each result, or the error it raised."""

    def caught(rank: int) -> object:
        try:
            return call(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(caught, range(size)))


def arrivals(store: MemoryStore, size: int, timeout: float = NEVER) -> list[Arrivals]:
    return [Arrivals(store, range(size), rank, timeout) for rank in range(size)]


def test_all_ranks_go_on_when_the_last_has_arrived() -> None:
    store = MemoryStore()
    gone_on: list[int] = []
    ranks = arrivals(store, 3)

    def arrive(rank: int) -> None:
        if rank == 2:
            assert gone_on == []
        ranks[rank].arrive("plan")
        gone_on.append(rank)

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(arrive, rank) for rank in (0, 1)]
        assert not any(future.done() for future in waiting)
        arrive(2)
        for future in waiting:
            future.result()
    assert sorted(gone_on) == [0, 1, 2]


def test_objects_over_the_same_ranks_share_one_sequence() -> None:
    store = MemoryStore()
    first, second = arrivals(store, 2), arrivals(store, 2)
    assert (
        everywhere(2, lambda r: [a[r].arrive(s) for a, s in ((first, "a"), (second, "b"), (first, "c"))])
        == [[None] * 3] * 2
    )


def test_groups_of_other_ranks_do_not_meet() -> None:
    store = MemoryStore()
    Arrivals(store, [3], 0, NEVER).arrive("alone")
    with pytest.raises(GroupTimeoutError):
        Arrivals(store, [3, 4], 0, 0.0).arrive("alone")


def test_a_new_store_starts_a_new_sequence() -> None:
    for store in (MemoryStore(), MemoryStore()):
        ranks = arrivals(store, 2)
        assert everywhere(2, lambda rank, ranks=ranks: ranks[rank].arrive("a")) == [None, None]


def test_what_the_store_keeps_per_step_does_not_depend_on_the_number_of_ranks() -> None:
    store = MemoryStore()
    ranks = arrivals(store, 4)

    def steps(rank: int) -> int:
        for number in range(3):
            ranks[rank].arrive(f"step {number}")
        return len(store.keys())

    everywhere(4, steps)
    before = len(store.keys())
    everywhere(4, steps)
    assert len(store.keys()) == before + 3


def test_l5_d24_all_that_wait_raise_and_name_the_absent() -> None:
    ranks = arrivals(MemoryStore(), 5, timeout=0.05)
    found = everywhere(5, lambda rank: ranks[rank].arrive("save") if rank in (0, 2, 4) else None)
    for rank in (0, 2, 4):
        error = found[rank]
        assert isinstance(error, GroupTimeoutError)
        assert (error.absent, error.rank, error.step) == ((1, 3), rank, "save")


def test_one_impatient_rank_ends_the_step_for_all() -> None:
    store = MemoryStore()
    ranks = [Arrivals(store, range(3), rank, 0.05 if rank == 0 else NEVER) for rank in range(3)]
    found = everywhere(3, lambda rank: ranks[rank].arrive("save") if rank < 2 else None)
    assert [error.absent for error in found if isinstance(error, GroupTimeoutError)] == [(2,), (2,)]


def test_a_step_that_was_given_up_does_not_harm_the_next() -> None:
    store = MemoryStore()
    impatient, patient = arrivals(store, 2, timeout=0.0), arrivals(store, 2)
    for _ in range(3):
        with pytest.raises(GroupTimeoutError):
            impatient[0].arrive("alone")
    assert everywhere(2, lambda rank: patient[rank].arrive("together")) == [None, None]


def test_ranks_in_different_steps_are_told_all_names() -> None:
    ranks = arrivals(MemoryStore(), 3)
    for error in everywhere(3, lambda rank: ranks[rank].arrive("write" if rank == 1 else "plan")):
        assert isinstance(error, GroupError)
        assert "'plan' on ranks 0, 2, 'write' on rank 1" in str(error)


VERDICT = 1 << 60


@pytest.mark.parametrize(
    ("moment", "takes_place"),
    [
        (lambda key, amount: key.endswith("/judges"), True),
        (lambda key, amount: amount == VERDICT, True),
        (lambda key, amount: "/rank/" in key, False),
    ],
    ids=["before a judge is chosen", "before the doubt", "while the absent are looked for"],
)
def test_ranks_agree_when_the_last_arrives_while_another_gives_up(
    moment: Callable[[str, int], bool], takes_place: bool
) -> None:
    store = MemoryStore()
    impatient, late = Arrivals(store, range(2), 0, 0.0), Arrivals(store, range(2), 1, NEVER)
    come, arrived = threading.Event(), threading.Event()

    def interfere(key: str, amount: int) -> None:
        """At that moment of the first rank's decision, let the last rank arrive."""
        if threading.current_thread() is threading.main_thread():
            if moment(key, amount) and not come.is_set():
                come.set()
                arrived.wait()
        elif amount == 0:
            arrived.set()

    store.before = interfere

    def last() -> None:
        come.wait()
        try:
            late.arrive("save")
        finally:
            arrived.set()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(last)
        if takes_place:
            impatient.arrive("save")
        else:
            with pytest.raises(GroupTimeoutError):
                impatient.arrive("save")
            Arrivals(store, range(2), 0, NEVER).arrive("save")
        future.result()


def test_the_death_of_the_rank_that_gives_up_leaves_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "_GRACE", 0.05)
    store = MemoryStore()

    def die(key: str, amount: int) -> None:
        if amount == VERDICT:
            raise SystemExit

    dying, waiting = Arrivals(store, range(3), 0, 0.0), Arrivals(store, range(3), 1, 0.05)
    store.before = die
    with pytest.raises(SystemExit):
        dying.arrive("save")
    store.before = lambda key, amount: None
    with pytest.raises(GroupTimeoutError):
        waiting.arrive("save")


def test_a_store_that_does_not_answer_is_a_group_error() -> None:
    store = MemoryStore()

    def broken(key: str, amount: int) -> None:
        raise ValueError("connection reset")

    store.before = broken
    with pytest.raises(GroupError, match="does not answer") as caught:
        Arrivals(store, range(2), 0, NEVER).arrive("save")
    assert (caught.value.step, str(caught.value.__cause__)) == ("save", "connection reset")
