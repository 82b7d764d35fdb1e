"""Between the publish and what follows it: crashes, lost replies, and rivals, seen by readers of both kinds.

Hugging Face's loaders look for an index under a fixed name. Whatever happens, it names the files of one whole
checkpoint, all of which are there; and that is the published one, unless an overwrite died in the instant between.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import flexstore as fs
from flexstore.backends.base import Store
from flexstore.backends.local import LocalStore
from flexstore.core.manifest import MANIFEST_NAME
from flexstore.errors import CheckpointExistsError, ObjectExistsError
from flexstore.retention import collect_garbage
from flexstore.strategies.safetensors import INDEX_NAME
from flexstore.testing import FaultyStore, InjectedFault, RecordingStore
from flexstore.testing.recording import Result, Verb
from tests.stories_kit import STRATEGIES, URL, bits, handing, memory_store, names

pytestmark = pytest.mark.usefixtures("handed")

OLD, NEW, NEXT = 1, 2, 3
KEYS = ("embedding", "head")
EVERYTHING = -3600.0
"""Grace seconds with which also what is written now counts as old."""


def save(store: Store, value: int, strategy: str = "safetensors", *, overwrite: bool = False) -> fs.Checkpoint:
    state = {key: np.full((2, 3), value, np.float32) for key in KEYS}
    return fs.save(state, URL, strategy, overwrite=overwrite, storage_options=handing(store)).result()


def opened(store: Store) -> fs.Checkpoint:
    return fs.open_checkpoint(URL, storage_options=handing(store))


def value_of(checkpoint: fs.Checkpoint) -> int:
    """The value that all of a checkpoint holds, after a proof that it is whole."""
    checkpoint.verify()
    (value,) = {value for tensor in checkpoint.values() for value in tensor.read().ravel().tolist()}
    assert set(checkpoint) == set(KEYS)
    return int(value)


def value_for_hugging_face(store: Store) -> int | None:
    """The value that the safetensors library finds by way of the index; None if there is no index."""
    if INDEX_NAME not in names(store):
        return None
    weights = json.loads(store.get(INDEX_NAME))["weight_map"]
    assert set(weights) == set(KEYS)
    found = {key: safetensors.numpy.load(store.get(file))[key] for key, file in weights.items()}
    (value,) = {value for tensor in found.values() for value in tensor.ravel().tolist()}
    return int(value)


class Interposed(RecordingStore):
    """A store that does something right before, or after, the manifest is put."""

    def __init__(
        self, inner: Store, *, before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(inner)
        self._before, self._after = before, after

    def perform(self, verb: Verb, name: str, action: Callable[[], Result], nbytes: Callable[[Result], int]) -> Result:
        """See `RecordingStore.perform`."""
        publishes = (verb, name) == ("put", MANIFEST_NAME)
        if publishes:
            self._before()
        result = super().perform(verb, name, action, nbytes)
        if publishes:
            self._after()
        return result


class DyingStore(Interposed):
    """A store whose process dies right after it has put the manifest."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner, after=self._die)
        self._is_dead = False

    def perform(self, verb: Verb, name: str, action: Callable[[], Result], nbytes: Callable[[Result], int]) -> Result:
        """See `RecordingStore.perform`."""
        if self._is_dead:
            raise InjectedFault("the process is dead")
        return super().perform(verb, name, action, nbytes)

    def _die(self) -> None:
        self._is_dead = True


# Crashes.


def test_x5_a_first_save_that_dies_before_it_advertises_is_published_without_an_index() -> None:
    store = memory_store()
    with pytest.raises(InjectedFault):
        save(DyingStore(store), NEW)
    assert value_of(opened(store)) == NEW
    assert value_for_hugging_face(store) is None
    save(store, NEXT, overwrite=True)
    assert value_of(opened(store)) == value_for_hugging_face(store) == NEXT


def test_x5_d12_an_overwrite_that_dies_before_it_advertises_leaves_both_checkpoints_whole() -> None:
    """Flexstore reads the new one, Hugging Face the old one, whose files nobody has removed yet."""
    store = memory_store()
    save(store, OLD)
    with pytest.raises(InjectedFault):
        save(DyingStore(store), NEW, overwrite=True)
    assert value_of(opened(store)) == NEW
    assert value_for_hugging_face(store) == OLD
    save(store, NEXT, overwrite=True)
    assert value_of(opened(store)) == value_for_hugging_face(store) == NEXT


def test_x5_collecting_the_garbage_of_such_an_overwrite_brings_the_index_up_to_date() -> None:
    store = memory_store()
    save(store, OLD)
    with pytest.raises(InjectedFault):
        save(DyingStore(store), NEW, overwrite=True)
    assert collect_garbage(URL, grace_seconds=EVERYTHING, storage_options=handing(store))
    assert value_of(opened(store)) == value_for_hugging_face(store) == NEW


@pytest.mark.parametrize("overwrite", [False, True])
def test_x5_d12_a_save_that_dies_anywhere_leaves_no_index_of_files_that_are_not_there(overwrite: bool) -> None:
    for number in count(1):
        store = memory_store()
        if overwrite:
            save(store, OLD)
        faulty = FaultyStore(store, number, dead=True)
        try:
            save(faulty, NEW, overwrite=overwrite)
        except InjectedFault:
            found = value_for_hugging_face(store)
            if MANIFEST_NAME in names(store):
                assert found in (None, OLD, NEW)
                assert value_of(opened(store)) in (OLD, NEW)
            else:
                assert found is None
        if not faulty.has_failed:
            break
    assert value_of(opened(store)) == value_for_hugging_face(store) == NEW


@pytest.mark.parametrize(
    "removal", [lambda store: save(store, NEW, "distcp", overwrite=True), lambda store: opened(store).delete()]
)
def test_d12_what_is_removed_is_never_found_in_part(removal: Callable[[Store], object]) -> None:
    """Whichever removal is the last before the process dies: the index goes before the files that it names."""
    for number in count(1):
        store = memory_store()
        old = save(store, OLD)
        faulty = FaultyStore(store, number, verbs=("delete",), dead=True)
        with suppress(InjectedFault):
            removal(faulty)
        assert value_for_hugging_face(store) in (None, OLD)
        if not faulty.has_failed:
            break
    assert not names(store) & {info.name for info in old.manifest.files}


@pytest.mark.parametrize("verb", ["commit", "put"])
def test_x5_an_overwrite_that_fails_leaves_the_index_of_the_old_checkpoint(verb: Verb) -> None:
    """Its data cannot be written, or its manifest cannot be put."""
    store = memory_store()
    save(store, OLD)
    index = store.get(INDEX_NAME)
    with pytest.raises(InjectedFault):
        save(FaultyStore(store, 1, verbs=(verb,)), NEW, overwrite=True)
    assert store.get(INDEX_NAME) == index
    assert value_of(opened(store)) == value_for_hugging_face(store) == OLD


# Rivals.


def test_the_loser_of_two_first_saves_leaves_the_index_of_the_winner() -> None:
    """The winner has done everything when the loser is about to publish."""
    store = memory_store()
    with pytest.raises(CheckpointExistsError):
        save(Interposed(store, before=lambda: save(store, OLD)), NEW)
    assert value_of(opened(store)) == value_for_hugging_face(store) == OLD
    assert names(store) == {MANIFEST_NAME, *(info.name for info in opened(store).manifest.files)}


def test_the_loser_of_two_first_saves_cannot_disturb_a_winner_that_has_yet_to_advertise() -> None:
    store = memory_store()
    losses: list[Exception] = []

    def rival() -> None:
        """Has written all its data, and comes to publish a moment too late."""
        with pytest.raises(CheckpointExistsError) as error:
            save(late, NEW)
        losses.append(error.value)

    at_the_door, may_enter = threading.Event(), threading.Event()

    def wait() -> None:
        at_the_door.set()
        assert may_enter.wait(60)

    late = Interposed(store, before=wait)
    thread = threading.Thread(target=rival)
    thread.start()
    assert at_the_door.wait(60)

    def let_in() -> None:
        may_enter.set()
        thread.join()

    save(Interposed(store, after=let_in), OLD)
    assert len(losses) == 1
    assert value_of(opened(store)) == value_for_hugging_face(store) == OLD
    assert names(store) == {MANIFEST_NAME, *(info.name for info in opened(store).manifest.files)}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_x5_an_overwrite_removes_nothing_of_a_rival_that_published_meanwhile(strategy: str) -> None:
    """The rival has replaced what was just published, before its saver got to clean up."""
    store = memory_store()
    save(store, OLD, strategy)
    save(Interposed(store, after=lambda: save(store, NEXT, strategy, overwrite=True)), NEW, strategy, overwrite=True)
    assert value_of(opened(store)) == NEXT
    kept = names(store)
    collect_garbage(URL, grace_seconds=EVERYTHING, storage_options=handing(store))
    assert value_of(opened(store)) == NEXT
    assert names(store) <= kept


# Lost replies.


def lose(error: type[Exception]) -> Callable[[], None]:
    def raise_it() -> None:
        raise error("the reply was lost")

    return raise_it


@pytest.mark.parametrize("error", [InjectedFault, ObjectExistsError])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_x5_what_was_replaced_is_kept_if_the_reply_to_the_publish_was_lost(
    strategy: str, error: type[Exception], tmp_path: Path
) -> None:
    """Nobody knows whether the new manifest is durable: the old one may come back after a power failure."""
    store = LocalStore(tmp_path)
    old = save(store, OLD, strategy)
    data = {info.name for info in old.manifest.files} - {INDEX_NAME}
    manifest = store.get(MANIFEST_NAME)
    checkpoint = save(Interposed(store, after=lose(error)), NEW, strategy, overwrite=True)
    assert value_of(checkpoint) == NEW
    assert data < names(store)
    new = store.get(MANIFEST_NAME)
    store.put(MANIFEST_NAME, [manifest])  # the power fails
    assert value_of(opened(store)) == OLD
    store.put(MANIFEST_NAME, [new])
    assert set(collect_garbage(tmp_path, grace_seconds=EVERYTHING)) == data
    assert names(store) == {MANIFEST_NAME, *(info.name for info in checkpoint.manifest.files)}
    assert value_of(opened(store)) == NEW
    if strategy == "safetensors":
        assert value_for_hugging_face(store) == NEW


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_x5_a_first_save_survives_the_loss_of_the_reply(strategy: str) -> None:
    store = memory_store()
    state: dict[str, Any] = {key: np.zeros((2, 3), np.float32) for key in KEYS}
    save(Interposed(store, after=lose(ObjectExistsError)), NEW, strategy)
    fs.load(state, URL, storage_options=handing(store))
    assert all(bits(values) == bits(np.full((2, 3), NEW, np.float32)) for values in state.values())
    assert collect_garbage(URL, grace_seconds=EVERYTHING, storage_options=handing(store)) == ()
    assert value_of(opened(store)) == NEW
