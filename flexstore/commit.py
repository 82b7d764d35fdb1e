"""The commit protocol: one attempt, one receipt per rank, one publish. The same code for every format and storage.

An attempt's files carry its id and are never reused. The manifest is written last and makes the checkpoint exist:
create-only for a first save, by atomic replace with ``overwrite``. What an overwrite supersedes is removed only after
the new manifest is in place, so a crash at any instant leaves the old or the new checkpoint, whole. Nothing here is a
collective: the caller brings the receipts.
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
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
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
    ) -> Published:
        """Make the attempt the checkpoint. The coordinator calls it when it has every rank's receipt.

        Args:
            plan: of the save.
            receipts: of all ranks, in rank order.
            finalize: writes the foreign metadata and returns the objects that belong to the checkpoint.

        Returns:
            What was published, and what may be removed now.

        Raises:
            ReplicaMismatchError: replicas differ (E13); nothing is published.
            CheckpointExistsError: another saver published first.
            CheckpointError: a rank wrote to another place than the coordinator sees.
            StoreError: the storage failed; the old checkpoint, if any, is untouched or already replaced, whole.
        """
        try:
            self._check_files(receipts)
            manifest, document = self._document(plan, receipts, finalize)
            superseded = readable_published(self.store) if self.overwrite else None
        except BaseException:
            self.discard()
            raise
        confirmed = self._put_manifest(document)
        return Published(manifest, superseded if confirmed else None)

    def _document(
        self,
        plan: SavePlan,
        receipts: Sequence[Receipt],
        finalize: Callable[[Manifest], Sequence[FileInfo]],
    ) -> tuple[Manifest, bytes]:
        check_replicas(plan, [receipt.held for receipt in receipts], _written_digests(receipts))
        manifest = manifest_of(
            plan,
            receipts,
            attempt=self.id,
            strategy=self.strategy,
            created=time.time(),
            library=self.library,
        )
        manifest = replace(manifest, files=(*manifest.files, *finalize(manifest)))
        return manifest, encode(manifest)

    def _check_files(self, receipts: Sequence[Receipt]) -> None:
        """Every rank's files must be where the coordinator will say they are."""
        seen = {info.name: info.nbytes for info in self.store.list()}
        for receipt in receipts:
            for file in receipt.written.files:
                if seen.get(file.name) != file.nbytes:
                    raise CheckpointError(
                        f"rank 0 does not see what rank {receipt.rank} wrote to {self.store.url} ({file.nbytes} bytes)",
                        rank=receipt.rank,
                        file=file.name,
                        hint="all ranks must save to the same URL, on storage that they share",
                    )

    def _put_manifest(self, document: bytes) -> bool:
        """Publish. False if the storage reported an error but did it: then nobody knows whether it is durable."""
        try:
            self.store.put(MANIFEST_NAME, [document], "overwrite" if self.overwrite else "create")
        except StoreError as error:
            # The reply may have been lost after the manifest was stored: the attempt id inside it tells. The request
            # may even arrive later, so no file may be removed, unless another's manifest makes a create hopeless.
            published = _published_id(self.store)
            if published == self.id:
                return False
            if published is not None and not self.overwrite:
                self.discard()
            if isinstance(error, ObjectExistsError):
                raise exists_error(self.store.url) from None
            raise
        return True

    def remove(self, superseded: Manifest) -> None:
        """Remove what this attempt replaced, unless something else was published since. Best effort, like `discard`."""
        with contextlib.suppress(FlexstoreError, OSError):
            manifest = readable_published(self.store)
            if manifest is not None and manifest.attempt == self.id:
                remove_files(self.store, superseded, keep=manifest)

    def discard(self) -> None:
        """Remove the files of an attempt that was certainly not published. Best effort: leftovers are only garbage.

        The newest go first: foreign metadata is written after the data it names.
        """
        with contextlib.suppress(FlexstoreError, OSError):
            for info in sorted(self.store.list(), key=lambda info: info.modified, reverse=True):
                if self.id in info.name:
                    self.store.delete(info.name)


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint that was just published, and the manifest of the one it replaced, if its files may be removed."""

    manifest: Manifest
    superseded: Manifest | None


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


def readable_published(store: Store) -> Manifest | None:
    """The published manifest, or None if there is none or it is damaged: then nobody knows which files it named.

    Raises:
        UnsupportedVersionError: a newer library published it.
    """
    try:
        return read_published(store)
    except CorruptCheckpointError:
        return None


def _published_id(store: Store) -> str | None:
    try:
        manifest = read_published(store)
    except (FlexstoreError, OSError):
        return None
    return manifest.attempt if manifest else None


def remove_files(store: Store, manifest: Manifest, keep: Manifest | None = None) -> None:
    """Remove the files of a checkpoint that is not published any more, except those that ``keep`` names too.

    Those without tensors go first: by them other programs find the rest. Failures are not errors: what remains is
    garbage that no manifest names.
    """
    kept = {file.name for file in keep.files} if keep else set()
    holds_tensors = set(manifest.chunks.file.tolist())
    for _, file in sorted(enumerate(manifest.files), key=lambda numbered: numbered[0] in holds_tensors):
        if file.name not in kept:
            with contextlib.suppress(StoreError):
                store.delete(file.name)


def unpublish(store: Store, attempt: str | None = None) -> None:
    """Remove a checkpoint: its manifest first, so that no reader finds it half gone, then its files.

    Args:
        store: where it is.
        attempt: remove it only if it is that attempt's; None removes whatever is published, damaged or not.

    Raises:
        CheckpointNotFoundError: something else is published there now, or nothing.
    """
    manifest = readable_published(store)
    if attempt is not None and (manifest is None or manifest.attempt != attempt):
        raise CheckpointNotFoundError(
            f"the checkpoint at {store.url} was replaced or removed meanwhile", hint="open it again"
        )
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
