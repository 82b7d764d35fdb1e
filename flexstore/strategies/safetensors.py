"""The safetensors format: one file per writer, readable by the safetensors library; Hugging Face directories.

Written: rank r of attempt A writes ``model-<A>-<r, five digits>.safetensors``. A tensor that is stored whole has its
key as its name there. A piece of a tensor has the name ``key@[start:stop,start:stop]``, its half-open box in the whole
tensor. A whole tensor whose key itself ends like that, or is ``__metadata__``, is named like a piece too, so that the
name up to its last ``@[`` is the key of every name that ends like a piece, and no two names are equal. The files are
marked in ``__metadata__``: ``flexstore_attempt`` is A (and ``format`` is ``pt``, without which Hugging Face's loaders
refuse a file). Where every tensor is stored whole and under its key there is also ``model.safetensors.index.json``,
and the directory is one that Hugging Face's loaders accept. Replicated tensors are never cut for balance.

Read, when another program wrote it, in this order: ``model.safetensors``; the files that
``model.safetensors.index.json`` names; all ``*.safetensors`` beside each other, if each key is in one of them only.
What carries the mark is an attempt of flexstore's own that was never published, and is not seen. These checkpoints
have no checksums.

Not written: complex128, for which safetensors has no element type.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct

from flexstore.backends.base import Store
from flexstore.core.box import Box
from flexstore.core.dtypes import DTYPES
from flexstore.core.manifest import Chunk, FileInfo, Manifest, TensorInfo, build_chunk_table, padded
from flexstore.core.names import is_safe_name
from flexstore.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ObjectNotFoundError,
    UnsupportedValueError,
)
from flexstore.planning.files import FileLayout, WriteItem
from flexstore.strategies.base import FileFormat, SaveContext
from flexstore.strategies.safetensors_header import (
    METADATA_KEY,
    HeaderEntry,
    SafetensorsHeader,
    read_header,
    write_header,
)

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_SUFFIX = ".safetensors"
_MARK = "flexstore_attempt"
_PIECE = re.compile(r"@\[[0-9:,]*\]\Z")
_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors\Z")


class _Index(Struct, frozen=True):
    weight_map: dict[str, str]
    metadata: dict[str, Any] | None = None


_Marked: TypeAlias = _Index | SafetensorsHeader


class _Weight(NamedTuple):
    """A tensor and the file that holds it."""

    key: str
    file: str
    header: SafetensorsHeader

    @property
    def entry(self) -> HeaderEntry:
        return self.header.tensors[self.key]


class SafetensorsFormat(FileFormat):
    """See the module."""

    name = "safetensors"
    splits_replicas = False

    def layout(self, items: Sequence[WriteItem], rank: int, world_size: int, attempt: str) -> list[FileLayout]:
        """One file, the widest elements first, so that every tensor is aligned to its element size.

        Raises:
            UnsupportedValueError: an item's dtype does not exist in safetensors.
            InvalidStateError: the header would be too long for any reader.
        """
        if not items:
            return []
        ordered = sorted(items, key=lambda item: (-item.dtype.itemsize, item.key, item.box))
        tensors = ((_stored_name(item), item.dtype, item.box.shape) for item in ordered)
        header = write_header(tensors, {"format": "pt", _MARK: attempt})
        return [FileLayout(f"model-{attempt}-{rank:05d}{_SUFFIX}", (header, *ordered))]

    def finalize(self, manifest: Manifest, ctx: SaveContext) -> Sequence[FileInfo]:
        """Announce the index of a Hugging Face directory, if that is what the checkpoint is.

        The index has a fixed name, which a later save replaces, so its bytes are not promised.

        Raises:
            CheckpointExistsError: another program's model is there, which the index would replace or be hidden by.
        """
        if not _is_whole(manifest):
            return ()
        if _is_foreign_model(ctx.store, _names(ctx.store)):
            raise CheckpointExistsError(
                f"there is another program's model at {ctx.store.url}", hint="save to a directory of its own"
            )
        return (FileInfo(INDEX_NAME, len(_index_document(manifest))),)

    def advertise(self, manifest: Manifest, ctx: SaveContext) -> None:
        """Write the index that `finalize` announced."""
        if any(file.name == INDEX_NAME for file in manifest.files):
            ctx.store.put(INDEX_NAME, [_index_document(manifest)])

    def detect(self, store: Store) -> bool:
        """See `LoadStrategy.detect`. A broken foreign file or index counts: reading it will say what is wrong."""
        names = _names(store)
        return _is_foreign_model(store, names) or any(
            not _is_marked(store, read_header, name) for name in names - {INDEX_NAME}
        )

    def read_manifest(self, store: Store) -> Manifest:
        """See `LoadStrategy.read_manifest`. Reads the headers only; tensors that an index does not name are left out.

        Raises:
            CheckpointNotFoundError: there is nothing that another program wrote.
            CorruptCheckpointError: a file or the index is broken, or they do not fit together.
            UnsupportedValueError: a tensor has elements of a type that flexstore does not know.
        """
        names = _names(store)
        if SINGLE_NAME in names:
            return _manifest(_merged(_headers(store, [SINGLE_NAME])))
        index = _read_index(store, INDEX_NAME) if INDEX_NAME in names else None
        if index is not None and not _has_mark(index):
            return _manifest(_indexed(index, store))
        headers = _headers(store, sorted(names - {INDEX_NAME}))
        foreign = {name: header for name, header in headers.items() if not _has_mark(header)}
        if not foreign:
            raise CheckpointNotFoundError(f"no safetensors checkpoint of another program at {store.url}")
        _check_parts(foreign)
        return _manifest(_merged(foreign))


def _index_document(manifest: Manifest) -> bytes:
    files = np.array([file.name for file in manifest.files], np.object_)[manifest.chunks.file].tolist()
    weight_map = {tensor.key: file for tensor, file in zip(manifest.tensors, files, strict=True)}
    index = _Index(weight_map, {"total_size": manifest.nbytes, _MARK: manifest.attempt})
    return msgspec.json.format(msgspec.json.encode(index), indent=2)


def _stored_name(item: WriteItem) -> str:
    if item.is_whole and not _needs_suffix(item.key):
        return item.key
    return f"{item.key}@[{','.join(f'{a}:{b}' for a, b in zip(item.box.offset, item.box.stop, strict=True))}]"


def _needs_suffix(key: str) -> bool:
    return key == METADATA_KEY or _PIECE.search(key) is not None


def _is_whole(manifest: Manifest) -> bool:
    """Whether each tensor is one chunk under its own key."""
    table = manifest.chunks
    if not np.array_equal(table.tensor, np.arange(len(manifest.tensors))):
        return False
    shapes = padded([tensor.shape for tensor in manifest.tensors], table.ndim, 1)
    return bool((table.shape == shapes).all()) and not any(_needs_suffix(tensor.key) for tensor in manifest.tensors)


def _names(store: Store) -> set[str]:
    """The index and the safetensors files directly under the root."""
    names = (info.name for info in store.list())
    return {name for name in names if "/" not in name and (name == INDEX_NAME or name.endswith(_SUFFIX))}


def _is_foreign_model(store: Store, names: Container[str]) -> bool:
    """Whether Hugging Face's loaders find a model there that is not ours."""
    return SINGLE_NAME in names or (INDEX_NAME in names and not _is_marked(store, _read_index, INDEX_NAME))


def _is_marked(store: Store, read: Callable[[Store, str], _Marked], name: str) -> bool:
    try:
        return _has_mark(read(store, name))
    except (CorruptCheckpointError, UnsupportedValueError):
        return False


def _has_mark(document: _Marked) -> bool:
    return document.metadata is not None and _MARK in document.metadata


def _headers(store: Store, files: Iterable[str]) -> dict[str, SafetensorsHeader]:
    return {file: read_header(store, file) for file in files}


def _read_index(store: Store, name: str) -> _Index:
    try:
        return msgspec.json.decode(store.get(name), type=_Index)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"the index is not valid: {error}", file=name) from None


def _indexed(index: _Index, store: Store) -> Iterator[_Weight]:
    """The tensors that an index names.

    Raises:
        CorruptCheckpointError: a file is missing, or does not hold what the index says.
    """
    files = sorted(set(index.weight_map.values()))
    for file in files:
        if not is_safe_name(file):
            raise CorruptCheckpointError(f"the index names a file of a forbidden name {file[:200]!r}", file=INDEX_NAME)
    try:
        headers = _headers(store, files)
    except ObjectNotFoundError as error:
        raise CorruptCheckpointError(f"the index names a file that is missing: {error}", file=INDEX_NAME) from None
    for key, file in sorted(index.weight_map.items()):
        if key not in headers[file].tensors:
            raise CorruptCheckpointError("the index names a tensor that its file does not hold", key=key, file=file)
        yield _Weight(key, file, headers[file])


def _merged(headers: Mapping[str, SafetensorsHeader]) -> Iterator[_Weight]:
    """The tensors of several files.

    Raises:
        CorruptCheckpointError: two files hold tensors of one name.
    """
    holder: dict[str, str] = {}
    for file, header in headers.items():
        for key in header.tensors:
            if holder.setdefault(key, file) != file:
                raise CorruptCheckpointError(f"'{holder[key]}' holds a tensor of this name too", key=key, file=file)
    for key, file in sorted(holder.items()):
        yield _Weight(key, file, headers[file])


def _check_parts(files: Iterable[str]) -> None:
    """Without an index, at least all files ``...-00001-of-00003.safetensors`` of a set must be there.

    Raises:
        CorruptCheckpointError: one is missing.
    """
    numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
    for part in filter(None, map(_PART.match, files)):
        numbers[part["stem"], part["total"]].add(int(part["number"]))
    for (stem, total), present in numbers.items():
        missing = set(range(1, int(total) + 1)) - present
        if missing:
            file = f"{stem}-{min(missing):05d}-of-{total}{_SUFFIX}"
            raise CorruptCheckpointError(f"{len(missing)} of {int(total)} files are missing, this one first", file=file)


def _manifest(weights: Iterable[_Weight]) -> Manifest:
    """The manifest of whole tensors; those without elements have no chunk."""
    found = list(weights)
    tensors = [TensorInfo(weight.key, DTYPES[weight.entry.dtype], weight.entry.shape) for weight in found]
    headers = {weight.file: weight.header for weight in found}
    files = [FileInfo(file, header.file_nbytes) for file, header in headers.items()]
    chunks = [
        Chunk(weight.key, Box.whole(weight.entry.shape), weight.file, weight.entry.start)
        for weight in found
        if weight.entry.stop > weight.entry.start
    ]
    table = build_chunk_table(tensors, files, chunks)
    return Manifest("", SafetensorsFormat.name, tuple(tensors), tuple(files), table)
