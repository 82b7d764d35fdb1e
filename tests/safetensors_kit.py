"""What the tests of the safetensors format share: raw files, and checkpoints written through the format's layout."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flexstore.backends.base import Store
from flexstore.core.box import Box
from flexstore.core.dtypes import dtype_of
from flexstore.core.manifest import Chunk, FileInfo, Manifest, TensorInfo, build_chunk_table
from flexstore.pipeline.writing import WriteOptions
from flexstore.planning.files import WriteItem
from flexstore.strategies.base import SaveContext
from flexstore.strategies.safetensors import SafetensorsFormat
from tests.distcp_kit import render


def raw_file(header: Mapping[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file put together by hand; ``length`` is what it claims its header's length to be."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def info(dtype: str, shape: Sequence[int], start: int, stop: int) -> dict[str, Any]:
    """One tensor's entry in a header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def write_checkpoint(
    store: Store, arrays: Mapping[str, np.ndarray], boxes: Sequence[Sequence[tuple[str, Box]]], attempt: str = "7"
) -> Manifest:
    """Save ``arrays`` as a job of ``len(boxes)`` ranks would, all but the manifest; rank r writes ``boxes[r]``."""
    fmt, chunks, files = SafetensorsFormat(), [], []
    for rank, held in enumerate(boxes):
        items = [
            WriteItem(i, key, dtype_of(arrays[key].dtype), box, arrays[key].shape) for i, (key, box) in enumerate(held)
        ]
        for layout in fmt.layout(items, rank, len(boxes), attempt):
            store.put(layout.name, [render(layout, arrays)])
            files.append(FileInfo(layout.name, layout.nbytes))
            chunks += [
                Chunk(part.key, part.box, layout.name, offset)
                for offset, part in layout.placed()
                if isinstance(part, WriteItem)
            ]
    tensors = tuple(TensorInfo(key, dtype_of(array.dtype), array.shape) for key, array in arrays.items())
    table = build_chunk_table(tensors, files, chunks)
    manifest = Manifest(attempt, fmt.name, tensors, tuple(files), table, world_size=len(boxes))
    context = SaveContext(store, attempt, 0, len(boxes), WriteOptions())
    manifest = replace(manifest, files=(*files, *fmt.finalize(manifest, context)))
    fmt.advertise(manifest, context)
    return manifest


def whole(arrays: Mapping[str, np.ndarray]) -> list[tuple[str, Box]]:
    """Every array as one box."""
    return [(key, Box.whole(array.shape)) for key, array in arrays.items()]
