"""Any sequence of operations leaves a store as it leaves a dictionary."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flexstore.backends.base import PutMode, SupportsUpload, Upload
from flexstore.backends.local import LocalStore
from flexstore.backends.memory import MemoryStore
from flexstore.errors import ObjectExistsError, ObjectNotFoundError

NAMES = st.sampled_from(["x", "a/x", "a/y", "a/b/x", ".z"])
MODES: st.SearchStrategy[PutMode] = st.sampled_from(["overwrite", "create"])
PARTS = st.lists(st.binary(max_size=8), max_size=4)


class StoreModel(RuleBasedStateMachine):
    """The same operations on a store, and on a dictionary of what it must hold."""

    store: LocalStore | MemoryStore

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, bytes] = {}
        self.uploads: list[tuple[str, bytes, PutMode, Upload]] = []

    @rule(name=NAMES, parts=PARTS, mode=MODES)
    def put(self, name: str, parts: list[bytes], mode: PutMode) -> None:
        if mode == "create" and name in self.model:
            with pytest.raises(ObjectExistsError):
                self.store.put(name, parts, mode)
        else:
            self.store.put(name, parts, mode)
            self.model[name] = b"".join(parts)

    @rule(name=NAMES, data=st.binary(max_size=32), mode=MODES)
    def begin(self, name: str, data: bytes, mode: PutMode) -> None:
        assert isinstance(self.store, SupportsUpload)
        upload = self.store.upload(name, len(data), mode)
        upload.write(0, np.frombuffer(data, np.uint8))
        self.uploads.append((name, data, mode, upload))

    @rule(last=st.booleans())
    def commit(self, last: bool) -> None:
        if not self.uploads:
            return
        name, data, mode, upload = self.uploads.pop(-1 if last else 0)
        if mode == "create" and name in self.model:
            with pytest.raises(ObjectExistsError):
                upload.commit()
        else:
            upload.commit()
            self.model[name] = data

    @rule()
    def abort(self) -> None:
        if self.uploads:
            self.uploads.pop()[3].abort()

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.store.delete(name)
        self.model.pop(name, None)

    @rule(name=NAMES, data=st.data())
    def read(self, name: str, data: st.DataObject) -> None:
        if name not in self.model:
            with pytest.raises(ObjectNotFoundError):
                self.store.get(name)
            return
        held = self.model[name]
        start = data.draw(st.integers(0, len(held)))
        stop = data.draw(st.integers(start, len(held)))
        target = np.zeros(stop - start, np.uint8)
        self.store.get_into(name, start, [target])
        assert self.store.get(name, start, stop) == target.tobytes() == held[start:stop]

    @invariant()
    def lists_what_it_holds(self) -> None:
        listed = [(info.name, info.nbytes) for info in self.store.list()]
        assert listed == [(name, len(self.model[name])) for name in sorted(self.model)]

    def teardown(self) -> None:
        for *_, upload in self.uploads:
            upload.abort()
        for name in list(self.model):
            self.store.delete(name)
        assert list(self.store.list()) == []
        self.store.close()


class MemoryModel(StoreModel):
    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(f"stateful/{uuid4()}")


class LocalModel(StoreModel):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="flexstore-test-", dir="/dev/shm"))
        self.store = LocalStore(self.root)

    def teardown(self) -> None:
        super().teardown()
        left = list(self.root.iterdir())
        shutil.rmtree(self.root)
        assert left == [], "no draft and no empty folder stays behind"


TestMemoryStoreModel = MemoryModel.TestCase
TestLocalStoreModel = LocalModel.TestCase
TestMemoryStoreModel.settings = TestLocalStoreModel.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None
)
