"""A save that fails, or dies, at any of its operations leaves the old or the new checkpoint, whole, or none (X5)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np
import pytest

import flexstore as fs
from flexstore.backends.base import Buffer, PutMode, Store
from flexstore.backends.local import LocalStore
from flexstore.core.manifest import MANIFEST_NAME
from flexstore.errors import CheckpointExistsError, CheckpointNotFoundError, ObjectExistsError
from flexstore.testing import FaultyStore, InjectedFault, RecordingStore
from flexstore.testing.faults import When
from flexstore.testing.recording import Result, Verb
from tests.stories_kit import STRATEGIES, URL, StreamStore, bits, handing, memory_store, names, outcomes

pytestmark = pytest.mark.usefixtures("handed")

RANKS = 3
OLD, NEW, NEXT = 1, 2, 3

KINDS: dict[str, Callable[[], Store]] = {
    "windows": memory_store,
    "streams": lambda: StreamStore(memory_store()),
}


def state(version: int, rank: int) -> dict[str, Any]:
    """Rows over ranks, uneven flattened slices, a replicated tensor, and a plain value; all tell the version."""
    rows = np.full((2, 4), 100 * version + rank, np.float32)
    slices = ((0, 1), (1, 7), (7, 10))[rank]
    flat = np.full(slices[1] - slices[0], version, np.int16)
    return {
        "rows": fs.ShardedTensor("rows", rows, (2, 4), (6, 4), (2 * rank, 0)),
        "flat": fs.ShardedTensor("flat", flat, (2, 5), (2, 5), (0, 0), is_flattened=True, flattened_range=slices),
        "replicated": np.full(5, version, np.uint8),
        "step": version,
    }


def save(store: Store, version: int, strategy: str, *, overwrite: bool = False) -> list[fs.PendingSave | Exception]:
    return outcomes(
        RANKS,
        lambda group: fs.save(
            state(version, group.rank), URL, strategy, group=group, overwrite=overwrite, storage_options=handing(store)
        ),
    )


def version_in(store: Store) -> int | None:
    """The version of the checkpoint in a store, after a proof that all of it is of this version."""
    options = handing(store)
    try:
        checkpoint = fs.open_checkpoint(URL, storage_options=options)
    except CheckpointNotFoundError:
        return None
    checkpoint.verify()
    version = checkpoint.common["step"]
    rows = np.repeat(100 * version + np.arange(RANKS), 2)
    target = {
        "rows": np.zeros((6, 4), np.float32),
        "flat": np.zeros((2, 5), np.int16),
        "replicated": np.zeros(5, np.uint8),
        "step": None,
    }
    fs.load(target, URL, strict="exact", storage_options=options)
    assert bits(target["rows"]) == bits(np.broadcast_to(rows[:, None], (6, 4)).astype(np.float32))
    assert bits(target["flat"]) == bits(np.full((2, 5), version, np.int16))
    assert bits(target["replicated"]) == bits(np.full(5, version, np.uint8))
    assert target["step"] == version
    return int(version)


def succeeded(results: list[fs.PendingSave | Exception]) -> bool:
    """True if the save succeeded on all ranks, False if it failed on all, with errors of flexstore's own."""
    failures = [result for result in results if isinstance(result, Exception)]
    assert all(isinstance(failure, fs.FlexstoreError) for failure in failures)
    assert len(failures) in (0, len(results))
    assert len({type(failure) for failure in failures}) <= 1
    return not failures


def sweep(make: Callable[[], Store], strategy: str, when: When, *, dead: bool, overwrite: bool) -> int:
    """Let a save fail at its first operation, its second, and so on, until one gets through; how many there were."""
    before = OLD if overwrite else None
    for number in count(1):
        store = make()
        if overwrite:
            assert succeeded(save(store, OLD, strategy))
        faulty = FaultyStore(store, number, when=when, dead=dead)
        done = succeeded(save(faulty, NEW, strategy, overwrite=overwrite))
        found = version_in(store)
        # Who died cannot tell what became of the publish; who lives and says that it failed has published nothing.
        assert found == NEW if done else found in ((before, NEW) if dead else (before,)), f"operation {number}"
        assert succeeded(save(store, NEXT, strategy, overwrite=found is not None)), "what is left behind is in the way"
        assert version_in(store) == NEXT
        for name in names(store):
            store.delete(name)
        if not faulty.has_failed:
            break
    assert done
    return number - 1


@pytest.mark.parametrize("dead", [False, True], ids=["fails once", "dies"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_x5_a_first_save_leaves_a_whole_checkpoint_or_none(strategy: str, kind: str, when: When, dead: bool) -> None:
    assert sweep(KINDS[kind], strategy, when, dead=dead, overwrite=False) >= 2 + RANKS


@pytest.mark.parametrize("dead", [False, True], ids=["fails once", "dies"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_x5_d12_an_overwrite_leaves_the_old_or_the_new_checkpoint(
    strategy: str, kind: str, when: When, dead: bool
) -> None:
    assert sweep(KINDS[kind], strategy, when, dead=dead, overwrite=True) >= 2 + 2 * RANKS


def test_x5_d12_an_overwrite_leaves_the_old_or_the_new_checkpoint_on_a_disk(tmp_path: Any) -> None:
    folders = iter(range(1000))
    sweep(lambda: LocalStore(tmp_path / str(next(folders))), "distcp", "before", dead=True, overwrite=True)
    assert not list(tmp_path.rglob(".flexstore-*"))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("dead", [False, True], ids=["fails once", "dies"])
def test_x5_d12_an_overwrite_of_a_hugging_face_directory_leaves_one_of_both_whole(when: When, dead: bool) -> None:
    """Its index has one name for all saves. It is written after the publish, so it may fail when all else is done."""
    new = {"w": np.full(3, NEW), "more": np.full(2, NEW)}
    values = {"w": {NEW}, "more": {NEW}}
    for number in count(1):
        store = memory_store()
        fs.save({"w": np.full(3, OLD)}, URL, "safetensors", storage_options=handing(store))
        faulty = FaultyStore(store, number, when=when, dead=dead)
        try:
            fs.save(new, URL, "safetensors", overwrite=True, storage_options=handing(faulty))
            possible = [values]
        except InjectedFault:
            possible = [{"w": {OLD}}, values]
        checkpoint = fs.open_checkpoint(URL, storage_options=handing(store))
        checkpoint.verify()
        assert {key: set(tensor.read().tolist()) for key, tensor in checkpoint.items()} in possible
        if not faulty.has_failed:
            break
    assert json.loads(store.get("model.safetensors.index.json"))["weight_map"].keys() == new.keys()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_x5_a_save_that_cannot_write_removes_what_it_has_written(strategy: str, overwrite: bool) -> None:
    store = memory_store()
    if overwrite:
        save(store, OLD, strategy)
    before = names(store)
    assert not succeeded(save(FaultyStore(store, 2, verbs=("commit",)), NEW, strategy, overwrite=overwrite))
    assert names(store) == before


class LosesReply(RecordingStore):
    """A store that does publish the manifest, and then says that it did not."""

    def __init__(self, inner: Store, error: type[Exception]) -> None:
        super().__init__(inner)
        self._error = error

    def perform(self, verb: Verb, name: str, action: Callable[[], Result], nbytes: Callable[[Result], int]) -> Result:
        """See `RecordingStore.perform`."""
        result = super().perform(verb, name, action, nbytes)
        if (verb, name) == ("put", MANIFEST_NAME):
            raise self._error("the reply was lost")
        return result


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("error", [InjectedFault, ObjectExistsError])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_lost_reply_to_the_publish_is_recognised(strategy: str, error: type[Exception], overwrite: bool) -> None:
    """A client that retried by itself finds the object that it has created: that is no collision."""
    store = memory_store()
    if overwrite:
        save(store, OLD, strategy)
    assert succeeded(save(LosesReply(store, error), NEW, strategy, overwrite=overwrite))
    assert version_in(store) == NEW


class LateStore(RecordingStore):
    """A store whose answer to the publish never comes; `land` lets the request arrive after all."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.land: Callable[[], object] = lambda: None

    def put(self, name: str, parts: Iterable[Buffer], mode: PutMode = "overwrite") -> None:
        """See `Store.put`."""
        if name != MANIFEST_NAME:
            super().put(name, parts, mode)
            return
        content = b"".join(map(bytes, parts))
        self.land = lambda: self.inner.put(name, [content], mode)
        raise InjectedFault("no answer")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_x5_a_publish_that_arrives_after_its_sender_gave_up_finds_its_files(strategy: str, overwrite: bool) -> None:
    store = memory_store()
    if overwrite:
        save(store, OLD, strategy)
    late = LateStore(store)
    assert not succeeded(save(late, NEW, strategy, overwrite=overwrite))
    assert version_in(store) == (OLD if overwrite else None)
    late.land()
    assert version_in(store) == NEW


class MeetingStore(RecordingStore):
    """Stores that wait for each other before they publish."""

    def __init__(self, inner: Store, barrier: threading.Barrier) -> None:
        super().__init__(inner)
        self._barrier = barrier

    def perform(self, verb: Verb, name: str, action: Callable[[], Result], nbytes: Callable[[Result], int]) -> Result:
        """See `RecordingStore.perform`."""
        if (verb, name) == ("put", MANIFEST_NAME):
            self._barrier.wait(timeout=60)
        return super().perform(verb, name, action, nbytes)


def race(store: Store, strategy: str, *, overwrite: bool) -> list[list[fs.PendingSave | Exception]]:
    """Two groups of three ranks save under one URL and publish at the same moment; what became of them."""
    barrier = threading.Barrier(2)
    results: dict[int, list[fs.PendingSave | Exception]] = {}

    def saver(version: int) -> None:
        results[version] = save(MeetingStore(store, barrier), version, strategy, overwrite=overwrite)

    threads = [threading.Thread(target=saver, args=(version,)) for version in (OLD, NEW)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[OLD], results[NEW]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_of_two_racing_savers_exactly_one_wins(strategy: str) -> None:
    store = memory_store()
    results = race(store, strategy, overwrite=False)
    won = [succeeded(result) for result in results]
    assert sorted(won) == [False, True]
    assert all(isinstance(error, CheckpointExistsError) for error in results[won.index(False)])
    assert version_in(store) == (OLD, NEW)[won.index(True)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_of_two_racing_overwrites_one_is_found_whole(strategy: str) -> None:
    store = memory_store()
    save(store, NEXT, strategy)
    assert all(succeeded(result) for result in race(store, strategy, overwrite=True))
    assert version_in(store) in (OLD, NEW)
