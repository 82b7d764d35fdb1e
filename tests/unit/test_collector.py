"""Python's garbage collector is paused while a story runs, and left as it was found."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import flexstore as fs
from flexstore.backends.local import LocalStore
from flexstore.collector import collector_paused
from tests.stories_kit import names


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was_found(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with collector_paused(), collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        with pytest.raises(KeyError), collector_paused():
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_the_collector_stays_paused_until_the_last_thread_is_done() -> None:
    """Whichever thread leaves first."""
    assert gc.isenabled()
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with collector_paused():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    with collector_paused():
        thread.start()
        assert inside.wait(60)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_the_collector_runs_again_after_stories_that_fail(tmp_path: Any) -> None:
    for call in (
        lambda: fs.save({"w": object()}, tmp_path),
        lambda: fs.load({}, tmp_path),
        lambda: fs.reshard({}, {"w": np.zeros(1)}),
        lambda: fs.open_checkpoint(tmp_path),
    ):
        with pytest.raises(fs.FlexstoreError):
            call()
        assert gc.isenabled()
    assert names(LocalStore(tmp_path)) == set()
