"""Removing what interrupted saves leave behind.

Garbage is exactly what no manifest names and is older than a grace period: files of attempts that were never
published, or that were replaced by a saver that died before it removed them. Only names that carry an attempt id of
flexstore's own are ever touched, so files of other programs are safe. Folders that hold a checkpoint of their own are
left alone, so that nothing is lost under the URL of a folder of checkpoints. A save that is under way is younger than
the grace period.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from os import PathLike
from typing import Any

from flexstore.backends import open_store
from flexstore.backends.base import SupportsSweep
from flexstore.commit import read_published
from flexstore.core.manifest import MANIFEST_NAME
from flexstore.pipeline.writing import WriteOptions
from flexstore.strategies import strategy_named
from flexstore.strategies.base import SaveContext

_ATTEMPT = re.compile(r"(?<!\d)\d{22}(?!\d)")
_DAY = 86400.0


def collect_garbage(
    url: str | PathLike[str], *, grace_seconds: float = _DAY, storage_options: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """Remove the garbage under a URL. One process calls it.

    Args:
        url: path or URL of a checkpoint, published or not.
        grace_seconds: what was written later than so many seconds ago is kept; longer than the slowest save.
        storage_options: for the backend.

    Returns:
        The names of the removed objects. Temporary files of the storage itself, such as those of a writer on local
        disk that was killed, are removed as well, without being listed.

    Raises:
        CorruptCheckpointError: the manifest is damaged: nobody knows what it names, so nothing is removed.
    """
    store = open_store(url, storage_options)
    before = time.time() - grace_seconds
    manifest = read_published(store)
    named = {file.name for file in manifest.files} if manifest else set()
    objects = list(store.list())
    others = tuple(info.name.removesuffix(MANIFEST_NAME) for info in objects if info.name.endswith(f"/{MANIFEST_NAME}"))
    garbage = [
        info.name
        for info in objects
        if info.modified < before
        and info.name not in named
        and not info.name.startswith(others)
        and _ATTEMPT.search(info.name)
    ]
    if garbage and manifest is not None:
        # A save that died right after its publish may have left an index that names what goes now.
        context = SaveContext(store, manifest.attempt, 0, manifest.world_size, WriteOptions())
        strategy_named(manifest.strategy).advertise(manifest, context)
    for name in garbage:
        store.delete(name)
    if isinstance(store, SupportsSweep):
        store.sweep(before)
    store.close()
    return tuple(garbage)
