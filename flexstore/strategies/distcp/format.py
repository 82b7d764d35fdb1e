"""The ``distcp`` format: checkpoints that Paddle's ``load_state_dict`` reads, and a reader for those that Paddle wrote.

Reading neither imports Paddle nor executes anything. Of several foreign saves in one folder the one with the largest id
is read, alone: its data files are those that its metadata names (D12, D13). Lock files left behind are ignored (D22).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from flexstore.backends.base import ObjectInfo, Store
from flexstore.core.checksum import crc32c
from flexstore.core.manifest import FileInfo, Manifest, build_chunk_table
from flexstore.errors import CheckpointNotFoundError
from flexstore.planning.files import FileLayout, WriteItem
from flexstore.strategies.base import FileFormat, SaveContext
from flexstore.strategies.distcp.chunks import chunks_of, data_files
from flexstore.strategies.distcp.data_file import layout
from flexstore.strategies.distcp.metadata import read_metadata
from flexstore.strategies.distcp.metadata_file import is_ours, metadata_bytes

_METADATA_NAME = re.compile(r"(\d+)\.metadata", re.ASCII)


class DistcpFormat(FileFormat):
    """Paddle flex checkpoint."""

    name = "distcp"

    def layout(self, items: Sequence[WriteItem], rank: int, world_size: int, attempt: str) -> list[FileLayout]:
        """See `FileFormat.layout`."""
        return layout(items, rank, world_size, attempt)

    def finalize(self, manifest: Manifest, ctx: SaveContext) -> Sequence[FileInfo]:
        """Write ``<attempt>.metadata``."""
        name, content = f"{ctx.attempt}.metadata", metadata_bytes(manifest)
        ctx.store.put(name, [content])
        return [FileInfo(name, len(content), crc32c(content))]

    def detect(self, store: Store) -> bool:
        """True if there is a Paddle metadata file that flexstore did not write."""
        return _newest(store, list(store.list())) is not None

    def read_manifest(self, store: Store) -> Manifest:
        """See `LoadStrategy.read_manifest`."""
        objects = list(store.list())
        newest = _newest(store, objects)
        if newest is None:
            raise CheckpointNotFoundError(
                "no Paddle checkpoint here", hint=f"expected <number>.metadata in {store.url}"
            )
        state = read_metadata(store, newest)
        files = data_files(state, {info.name: info.nbytes for info in objects})
        listed = (FileInfo(newest.name, newest.nbytes), *files)  # what makes it exist comes first, also in a delete
        table = build_chunk_table(state.tensors, listed, chunks_of(store, state, files))
        return Manifest(
            attempt="",
            strategy=self.name,
            tensors=state.tensors,
            files=listed,
            chunks=table,
            created=newest.modified,
            world_size=max(1, len(files)),
        )


def _newest(store: Store, objects: Sequence[ObjectInfo]) -> ObjectInfo | None:
    """The foreign metadata with the largest id, if any."""
    numbered = [(int(match[1]), info) for info in objects if (match := _METADATA_NAME.fullmatch(info.name))]
    for _, info in sorted(numbered, key=lambda found: found[0], reverse=True):
        if not is_ours(store, info):
            return info
    return None
