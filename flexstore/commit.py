"""The commit protocol: one attempt, one receipt per rank, one publish. The same code for every format and storage.

An attempt's files carry its id and are never reused. The manifest is written last and makes the checkpoint exist:
create-only for a first save, by atomic replace with ``overwrite``. What an overwrite supersedes is removed only after
the new manifest is in place, so a crash at any instant leaves the old or the new checkpoint, whole. Nothing here is a
collective: receipts arrive through a `gather` that the caller gives.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flexstore.backends.base import Store
from flexstore.core.checksum import digest_of
from flexstore.core.manifest import MANIFEST_NAME, FileInfo, Manifest
from flexstore.core.manifest_json import decode, encode
from flexstore.errors import (
    CheckpointExistsError,
    CorruptCheckpointError,
    FlexstoreError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)
from flexstore.planning.receipts import Receipt, check_replicas, manifest_of
from flexstore.planning.save import SavePlan


def new_attempt_id() -> str:
    """A fresh id: 22 decimal digits, microseconds since 1970 and six random ones, so that later ids are larger."""
    return f"{time.time_ns() // 1000:016d}{secrets.randbelow(10**6):06d}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at saving.

    Attributes:
        id: see `new_attempt_id`.
        store: the checkpoint's root.
        strategy: name of the format.
        overwrite: whether a published checkpoint may be replaced.
        library: name and version of the writer.
    """

    id: str
    store: Store
    strategy: str
    overwrite: bool
    library: str

    def publish(
        self,
        plan: SavePlan,
        receipts: Sequence[Receipt],
        finalize: Callable[[Manifest], Sequence[FileInfo]],
    ) -> Manifest:
        """Make the attempt the checkpoint. The coordinator calls it when it has every rank's receipt.

        Args:
            plan: of the save.
            receipts: of all ranks.
            finalize: writes the foreign metadata and returns the objects written.

        Returns:
            The published manifest.

        Raises:
            ReplicaMismatchError: replicas differ (E13); nothing is published.
            CheckpointExistsError: another saver published first.
            StoreError: the storage failed; the old checkpoint, if any, is untouched or already replaced, whole.
        """
        try:
            manifest = self._prepare(plan, receipts, finalize)
            superseded = read_published(self.store) if self.overwrite else None
        except BaseException:
            self.discard()
            raise
        self._put_manifest(manifest)
        if superseded is not None:
            remove_files(self.store, superseded, keep=manifest)
        return manifest

    def _prepare(
        self,
        plan: SavePlan,
        receipts: Sequence[Receipt],
        finalize: Callable[[Manifest], Sequence[FileInfo]],
    ) -> Manifest:
        check_replicas(plan, [receipt.held for receipt in receipts], _written_digests(receipts))
        manifest = manifest_of(
            plan,
            receipts,
            attempt=self.id,
            strategy=self.strategy,
            created=time.time(),
            library=self.library,
        )
        return replace(manifest, files=(*manifest.files, *finalize(manifest)))

    def _put_manifest(self, manifest: Manifest) -> None:
        try:
            self.store.put(MANIFEST_NAME, [encode(manifest)], "overwrite" if self.overwrite else "create")
        except StoreError as error:
            # The reply may have been lost after the manifest was stored: the attempt id inside it tells. The request
            # may even arrive later, so no file may be removed, unless another's manifest makes a create hopeless.
            published = _published_id(self.store)
            if published == self.id:
                return
            if published is not None and not self.overwrite:
                self.discard()
            if isinstance(error, ObjectExistsError):
                raise exists_error(self.store.url) from None
            raise

    def discard(self) -> None:
        """Remove the files of an attempt that was certainly not published. Best effort: leftovers are only garbage."""
        with contextlib.suppress(FlexstoreError, OSError):
            for info in list(self.store.list()):
                if self.id in info.name:
                    self.store.delete(info.name)


def exists_error(url: str) -> CheckpointExistsError:
    """The error of a save that finds a checkpoint in its way."""
    return CheckpointExistsError(
        f"there is a checkpoint at {url} already", hint="choose another URL, or pass overwrite=True to replace it"
    )


def read_published(store: Store) -> Manifest | None:
    """The published manifest, or None if there is none.

    Raises:
        CorruptCheckpointError, UnsupportedVersionError: there is one, but it cannot be read.
    """
    try:
        data = store.get(MANIFEST_NAME)
    except ObjectNotFoundError:
        return None
    try:
        return decode(data)
    except FlexstoreError as error:
        raise error.located(file=MANIFEST_NAME) from None


def _published_id(store: Store) -> str | None:
    try:
        manifest = read_published(store)
    except (FlexstoreError, OSError):
        return None
    return manifest.attempt if manifest else None


def remove_files(store: Store, manifest: Manifest, keep: Manifest | None = None) -> None:
    """Remove the files of a checkpoint that is not published any more, except those that ``keep`` names too.

    Failures are not errors: what remains is garbage that no manifest names.
    """
    kept = {file.name for file in keep.files} if keep else set()
    for file in manifest.files:
        if file.name not in kept:
            with contextlib.suppress(StoreError):
                store.delete(file.name)


def unpublish(store: Store) -> None:
    """Remove a checkpoint: its manifest first, so that no reader finds it half gone, then its files."""
    manifest: Manifest | None
    try:
        manifest = read_published(store)
    except CorruptCheckpointError:
        manifest = None
    store.delete(MANIFEST_NAME)
    if manifest is not None:
        remove_files(store, manifest)


def _written_digests(receipts: Sequence[Receipt]) -> dict[int, int]:
    """Digests of the written bytes of the items that other ranks hold too."""
    compared = {item for receipt in receipts for item in receipt.held}
    return {
        item: digest_of(receipt.written.crcs_of(row))
        for receipt in receipts
        for row, item in enumerate(receipt.written.item.tolist())
        if item in compared
    }
