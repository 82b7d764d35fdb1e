"""The manifest's document: what it looks like, what it costs, what a reader refuses."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from flexstore.core.box import Box
from flexstore.core.dtypes import dtype_named
from flexstore.core.manifest import FileInfo, Manifest, TensorInfo
from flexstore.core.manifest_json import decode, encode
from flexstore.errors import CheckpointError, CorruptCheckpointError, InvalidStateError, UnsupportedVersionError
from tests.manifest_kit import manifest_of, opened, sealed, small_manifest

F32 = dtype_named("float32")
BIG = 2**62


def assert_equal(a: Manifest, b: Manifest) -> None:
    for field in fields(Manifest):
        if field.name != "chunks":
            assert getattr(a, field.name) == getattr(b, field.name), field.name
    for field in fields(a.chunks):
        left, right = getattr(a.chunks, field.name), getattr(b.chunks, field.name)
        assert left.dtype == right.dtype, field.name
        assert np.array_equal(left, right), field.name


def test_the_document_of_a_small_manifest_is_the_one_in_the_specification() -> None:
    document = json.loads(encode(small_manifest()))
    assert list(document) == [
        *("format", "version", "attempt", "strategy", "library", "created", "world_size"),
        *("files", "tensors", "common", "common_paths", "checksum"),
    ]
    assert (document["format"], document["version"]) == ("flexstore", 1)
    assert document["files"] == [["0_7.distcp", 64 + 24 + 16 + 8, 7], ["1_7.distcp", 64 + 8 + 6, None]]
    assert document["tensors"] == {
        "layer.weight": {
            "dtype": "float32",
            "shape": [4, 3],
            "file": [0, 1, 0],
            "at": [64, 64, 88],
            "offset": [0, 0, 2, 0, 2, 1],
            "extent": [2, 3, 2, 1, 2, 2],
            "crc": "AAAA8AEAAPACAADw",
            "fortran": [2],
        },
        "layer.bias": {"dtype": "bfloat16", "shape": [3], "file": [1], "at": [72], "crc": "AwAA8A=="},
        "step": {"dtype": "int64", "shape": [], "file": [0], "at": [104], "crc": "BAAA8A=="},
        "nothing": {"dtype": "float32", "shape": [0, 5]},
    }
    assert document["common"] == {"lr": 0.5, "names": {"$tuple": ["a", {"$bytes": "Yg=="}]}}
    assert document["common_paths"] == {"lr": ["optimizer", "lr"]}


def test_decode_is_the_inverse_of_encode() -> None:
    manifest = small_manifest()
    assert_equal(decode(encode(manifest)), manifest)


def test_paths_and_declared_axes_survive() -> None:
    manifest = manifest_of({"m.head": (F32, (2, 6), [Box((0, 0), (2, 6))])})
    manifest = replace(manifest, tensors=(TensorInfo("m.head", F32, (2, 6), ("m", "head"), 1),))
    assert decode(encode(manifest)).tensors == manifest.tensors


def test_one_chunk_that_is_not_the_whole_tensor_keeps_its_box() -> None:
    manifest = manifest_of({"half": (F32, (4,), [Box((2,), (2,))]), "head": (F32, (4,), [Box((0,), (2,))])})
    assert_equal(decode(encode(manifest)), manifest)


def test_a_manifest_of_nothing_but_plain_values() -> None:
    manifest = replace(manifest_of({}), files=(), common={"step": 3})
    assert_equal(decode(encode(manifest)), manifest)


def test_x8_a_small_tensor_costs_bytes_not_kilobytes() -> None:
    """X8: 20,000 small tensors, each at most 64 bytes beyond its name, compressed; 160 uncompressed."""
    names = [f"model.layers.{i // 20}.block.{i % 20}.weight" for i in range(20_000)]
    manifest = manifest_of({name: (F32, (128,), [Box((0,), (128,))]) for name in names})
    table = manifest.chunks
    random = np.random.default_rng(0).integers(0, 2**32, len(table.crcs), np.uint32)
    data = encode(replace(manifest, chunks=replace(table, crcs=random)))
    assert len(zlib.compress(data)) - len(zlib.compress("\n".join(names).encode())) <= 64 * len(names)
    assert len(data) - sum(map(len, names)) <= 160 * len(names)


def test_a_newer_version_is_refused_with_a_clear_error() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"version 2.*up to 1"):
        decode(sealed({"format": "flexstore", "version": 2, "anything": {"else": [1]}}))


@pytest.mark.parametrize("data", [b"", b"{}", b"flexstore", sealed(b"{"), sealed(b'{"format":"flexstore"')])
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode(data)


def test_another_programs_document_is_refused_by_its_format() -> None:
    with pytest.raises(CorruptCheckpointError, match="unknown format 'other'"):
        decode(sealed({"format": "other", "version": 1}))


def _set(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def edit(document: dict[str, Any]) -> None:
        for step in path[:-1]:
            document = document[step]  # type: ignore[index]
        document[path[-1]] = to  # type: ignore[index]

    return edit


def _drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def edit(document: dict[str, Any]) -> None:
        for step in path[:-1]:
            document = document[step]
        del document[path[-1]]

    return edit


WEIGHT, BIAS = ("tensors", "layer.weight"), ("tensors", "layer.bias")
REFUSED = {
    "a missing member": (_drop("files"), "files"),
    "an unknown member": (_set("extra", to=1), "extra"),
    "an unknown member of a tensor": (_set(*BIAS, "offsets", to=[0]), "offsets"),
    "a wrong type": (_set(*BIAS, "at", to=["72"]), r"at\[0\]"),
    "a float for an int": (_set(*BIAS, "at", to=[72.0]), r"at\[0\]"),
    "a huge int": (_set(*BIAS, "at", to=[10**400]), r"at\[0\]"),
    "no attempt": (_set("attempt", to=""), "attempt"),
    "no ranks": (_set("world_size", to=0), "world_size"),
    "version 0": (_set("version", to=0), "version"),
    "an unknown dtype": (_set(*BIAS, "dtype", to="float3"), "float3"),
    "a negative extent": (_set(*BIAS, "shape", to=[-3]), r"shape\[0\]"),
    "an extent beyond 2**62": (_set(*BIAS, "shape", to=[BIG + 1]), r"shape\[0\]"),
    "more bytes than 63 bits": (_set("tensors", "nothing", "shape", to=[0, BIG, BIG]), "no tensor"),
    "a shape as long as a book": (_set("tensors", "nothing", "shape", to=[0] * 65), "shape"),
    "a box outside of the tensor": (_set(*WEIGHT, "offset", to=[0, 0, 2, 0, 2, 2]), "leaves its tensor"),
    "a box that overflows": (_set(*WEIGHT, "offset", to=[0, 0, 2, 0, 2, BIG]), "leaves its tensor"),
    "an empty box": (_set(*WEIGHT, "extent", to=[2, 3, 0, 1, 2, 2]), "empty"),
    "too few offsets": (_set(*WEIGHT, "offset", to=[0, 0, 2, 0, 2]), "'offset' has 5"),
    "offset without extent": (_drop(*WEIGHT, "extent"), "'extent' has 0"),
    "extent without offset": (_drop(*WEIGHT, "offset"), "'offset' has 0"),
    "a chunk without a file": (_set(*WEIGHT, "file", to=[0, 1]), "'file' has 2"),
    "a file without chunks": (_set("tensors", "nothing", "file", to=[0]), "'file' has 1"),
    "a chunk of a tensor without elements": (
        lambda document: document["tensors"]["nothing"].update(file=[0], at=[0]),
        "empty",
    ),
    "a file that is not listed": (_set(*BIAS, "file", to=[2]), "file 2 of 2"),
    "a fortran flag of no chunk": (_set(*BIAS, "fortran", to=[1]), "chunk 1 of 1"),
    "a chunk beyond its file's end": (_set(*BIAS, "at", to=[73]), "leaves its file"),
    "an offset that overflows": (_set(*BIAS, "at", to=[BIG]), "leaves its file"),
    "two chunks in one place": (_set(*BIAS, "at", to=[69]), "overlaps another chunk"),
    "too few checksums": (_set(*WEIGHT, "crc", to="AAAA8AEAAPA="), "'crc' has 8 bytes, not 12"),
    "no checksums": (_drop(*BIAS, "crc"), "'crc' has 0 bytes, not 4"),
    "half a checksum": (_set(*BIAS, "crc", to="AAA="), "'crc' has 2 bytes"),
    "no base64": (_set(*BIAS, "crc", to="???"), "base64"),
    "an axis that is none": (_set(*BIAS, "axis", to=1), "axis 1"),
    "an empty path": (_set(*BIAS, "path", to=[]), "path"),
    "a file outside of the checkpoint": (_set("files", 1, 0, to="../1_7.distcp"), "forbidden name"),
    "an absolute file": (_set("files", 1, 0, to="/etc/passwd"), "forbidden name"),
    "the manifest itself as a file": (_set("files", 1, 0, to="flexstore.json"), "forbidden name"),
    "one file twice": (_set("files", 1, 0, to="0_7.distcp"), "2 times"),
    "a checksum of more than 32 bits": (_set("files", 0, 2, to=2**32), "files"),
    "a plain value of an unknown kind": (_set("common", "lr", to={"$call": "os.system"}), "call"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_x9_every_rule_is_checked_before_anything_is_allocated(why: str) -> None:
    edit, message = REFUSED[why]
    document = opened(small_manifest())
    edit(document)
    with pytest.raises(CorruptCheckpointError, match=message):
        decode(sealed(document))


def test_the_unedited_document_is_accepted() -> None:
    """Or the refusals above would prove nothing."""
    assert_equal(decode(sealed(opened(small_manifest()))), small_manifest())


def test_a_manifest_that_no_reader_would_accept_is_not_written() -> None:
    manifest = small_manifest()
    short = replace(manifest, files=(FileInfo("0_7.distcp", 100), manifest.files[1]))
    with pytest.raises(CheckpointError, match="leaves its file"):
        encode(short)
    unchecked = replace(manifest.chunks, crc_start=np.zeros_like(manifest.chunks.crc_start))
    with pytest.raises(CheckpointError, match="0 checksums"):
        encode(replace(manifest, chunks=unchecked))
    with pytest.raises(CheckpointError, match="another program"):
        encode(replace(manifest, attempt=""))


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidStateError, match="Unicode"):
        encode(replace(small_manifest(), common={"\ud800": 1}))
