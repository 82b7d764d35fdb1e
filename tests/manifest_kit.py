"""What the tests of the manifest's document share: manifests made of boxes, and documents sealed after an edit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flexstore.core.box import Box
from flexstore.core.checksum import block_count, crc32c
from flexstore.core.dtypes import DType, dtype_named
from flexstore.core.manifest import Chunk, FileInfo, Manifest, TensorInfo, build_chunk_table
from flexstore.core.manifest_json import encode


def manifest_of(tensors: Mapping[str, tuple[DType, tuple[int, ...], Sequence[Box]]], **fields: Any) -> Manifest:
    """A manifest whose chunks lie one after the other in two files, by turns, with made-up checksums."""
    names, ends, chunks = ("0_7.distcp", "1_7.distcp"), [64, 64], []
    for key, (dtype, _, boxes) in tensors.items():
        for box in boxes:
            nbytes, file = box.size * dtype.itemsize, len(chunks) % 2
            crcs = np.arange(block_count(nbytes), dtype=np.uint32) + np.uint32(0xF0000000 + len(chunks))
            chunks.append(Chunk(key, box, names[file], ends[file], crcs, fortran=len(chunks) % 3 == 2))
            ends[file] += nbytes
    infos = tuple(TensorInfo(key, dtype, shape) for key, (dtype, shape, _) in tensors.items())
    files = tuple(FileInfo(name, end, crc) for name, end, crc in zip(names, ends, (7, None), strict=True))
    described = {"attempt": "7", "strategy": "distcp", "created": 1.5, "world_size": 2, "library": "flexstore 0.1.0"}
    return Manifest(tensors=infos, files=files, chunks=build_chunk_table(infos, files, chunks), **(described | fields))


def small_manifest() -> Manifest:
    """Every kind of tensor: cut, whole, 0-d, without elements; and plain values."""
    f32, i64 = dtype_named("float32"), dtype_named("int64")
    return manifest_of(
        {
            "layer.weight": (f32, (4, 3), [Box((0, 0), (2, 3)), Box((2, 0), (2, 1)), Box((2, 1), (2, 2))]),
            "layer.bias": (dtype_named("bfloat16"), (3,), [Box((0,), (3,))]),
            "step": (i64, (), [Box((), ())]),
            "nothing": (f32, (0, 5), []),
        },
        common={"lr": 0.5, "names": ("a", b"b")},
        common_paths={"lr": ("optimizer", "lr")},
    )


def opened(manifest: Manifest) -> dict[str, Any]:
    """The document of a manifest, parsed, without its checksum: to be edited."""
    document: dict[str, Any] = json.loads(encode(manifest))
    del document["checksum"]
    return document


def sealed(document: Mapping[str, Any] | bytes) -> bytes:
    """A document with the right checksum, whatever it says: what a hostile writer would publish."""
    text = document if isinstance(document, bytes) else json.dumps(document, separators=(",", ":")).encode()
    body = text.removesuffix(b"}")
    return body + b',"checksum":"crc32c:%08x"}\n' % crc32c(body)
