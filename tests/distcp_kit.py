"""What the tests of the distcp format share: Paddle-like pickles, rendered layouts, tensors read back by hand."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np

from flexstore.backends.base import Store
from flexstore.backends.memory import MemoryStore
from flexstore.core.box import Box
from flexstore.core.dtypes import DTYPES, dtype_of
from flexstore.core.manifest import Chunk, FileInfo, Manifest, TensorInfo, build_chunk_table
from flexstore.pipeline.writing import WriteOptions
from flexstore.planning.files import FileLayout, WriteItem
from flexstore.strategies.base import SaveContext
from flexstore.strategies.distcp.format import DistcpFormat

NEW_MODULE = "paddle.distributed.flex_checkpoint.dcp.metadata"
OLD_MODULE = "paddle.distributed.checkpoint.metadata"
OURS, THEIRS = b"flexstore_attempt", b"somebodys_attempt"


class _Plain:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Metadata(_Plain):
    pass


class LocalTensorMetadata(_Plain):
    pass


class LocalTensorIndex(_Plain):
    pass


class _Pickler(pickle._Pickler):
    module = NEW_MODULE

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if not issubclass(obj, _Plain):
            super().save_global(obj, name)
            return
        self.save(self.module)
        self.save(obj.__name__)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(obj)


def paddle_pickle(metadata: Metadata, module: str = NEW_MODULE) -> bytes:
    """The pickle that Paddle would write, made without Paddle."""
    out = io.BytesIO()
    pickler = _Pickler(out, protocol=4)
    pickler.module = module
    pickler.dump(metadata)
    return out.getvalue()


def shard_fields(offset: Sequence[int], shape: Sequence[int], **more: Any) -> dict[str, Any]:
    """The fields that both classes have."""
    return {
        "global_offset": tuple(offset),
        "local_shape": tuple(shape),
        "is_flattened": False,
        "flattened_range": None,
    } | more


def one_tensor(
    shape: Sequence[int] = (2, 3),
    file: str = "0_0.distcp",
    dtype: str = "float32",
    key: str = "w",
    **more: Any,
) -> Metadata:
    """Metadata of one whole tensor in one file; ``more`` changes fields of both records."""
    fields = shard_fields((0,) * len(shape), shape, **more)
    described = LocalTensorMetadata(**{"dtype": dtype, "global_shape": tuple(shape)} | fields)
    index = LocalTensorIndex(**{"tensor_key": key, "replica_id": None} | fields)
    return Metadata(state_dict_metadata={key: [described]}, storage_metadata={index: file}, flat_mapping={key: (key,)})


def store_of(files: Mapping[str, bytes]) -> MemoryStore:
    """A fresh store in memory that holds ``files``."""
    store = MemoryStore(uuid4().hex)
    for name, content in files.items():
        store.put(name, [content])
    return store


def read_tensor(store: Store, manifest: Manifest, key: str) -> np.ndarray:
    """One tensor, put together from its chunks without the pipeline."""
    tensor = manifest.tensors[manifest.index[key]]
    out = np.zeros(tensor.shape, tensor.dtype.numpy)
    for chunk in manifest.chunks_of(key):
        nbytes = chunk.box.size * tensor.dtype.itemsize
        data = store.get(chunk.file, chunk.byte_offset, chunk.byte_offset + nbytes)
        flat = np.frombuffer(data, np.uint8).view(tensor.dtype.numpy)
        out[chunk.box.within((0,) * out.ndim)] = flat.reshape(chunk.box.shape, order="F" if chunk.fortran else "C")
    return out


def render(layout: FileLayout, arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a file."""
    return b"".join(
        segment if isinstance(segment, bytes) else _elements(arrays[segment.key], segment.box).tobytes()
        for segment in layout.segments
    )


def _elements(array: np.ndarray, box: Box) -> np.ndarray:
    return array[box.within((0,) * array.ndim)]


def write_checkpoint(
    store: Store,
    arrays: Mapping[str, np.ndarray],
    boxes: Sequence[Sequence[tuple[str, Box]]],
    attempt: str = "7",
    paths: Mapping[str, tuple[str, ...]] | None = None,
) -> Manifest:
    """Save ``arrays`` as a job of ``len(boxes)`` ranks would; ``boxes[r]`` is what rank r writes."""
    fmt, chunks, files = DistcpFormat(), [], []
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
    tensors = [
        TensorInfo(key, dtype_of(array.dtype), array.shape, (paths or {}).get(key)) for key, array in arrays.items()
    ]
    table = build_chunk_table(tensors, files, chunks)
    manifest = Manifest(attempt, "distcp", tuple(tensors), tuple(files), table, world_size=len(boxes))
    context = SaveContext(store, attempt, 0, len(boxes), WriteOptions())
    written = fmt.finalize(manifest, context)
    return Manifest(attempt, "distcp", tuple(tensors), (*files, *written), table, world_size=len(boxes))


def disown(store: Store, attempt: str = "7") -> None:
    """Make a metadata file of ours look like somebody else's, so that it can be read without our manifest."""
    content = store.get(f"{attempt}.metadata")
    store.put(f"{attempt}.metadata", [content.replace(OURS, THEIRS)])


def sample_arrays() -> dict[str, np.ndarray]:
    """One array of every dtype, several ranks of dimension."""
    shapes = [(), (5,), (3, 4), (2, 3, 4)]
    return {
        f"t.{name}.{len(shape)}": (np.arange(np.prod(shape, dtype=int)) % 2 + i % 3).reshape(shape).astype(dtype.numpy)
        for i, (name, dtype) in enumerate(DTYPES.items())
        for shape in shapes
    }
