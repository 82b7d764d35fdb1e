"""Published test kits: for the authors of backends and strategies, and for flexstore's own tests.

* `StoreConformance`, `UploadConformance`: every promise of a store; subclass them (needs pytest).
* `FaultyStore`, `RecordingStore`: wrappers that fail at a chosen operation, or write down all of them.
* `flip_bit`: damage an object.
* `Cut`, `expected`: tensors cut over ranks in any way, with contents that every reader can recompute; and in
  `flexstore.testing.generators` the Hypothesis strategies that make them (needs hypothesis).

Names are imported when they are first used, so that pytest and hypothesis are needed only for what uses them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexstore.testing.cuts import Cut, Pick, Share, expected, pick_cut, pick_ranges, pick_shape, pick_tiling
    from flexstore.testing.faults import FaultyStore, InjectedFault
    from flexstore.testing.flips import flip_bit
    from flexstore.testing.recording import Operation, RecordingStore
    from flexstore.testing.stores import StoreConformance
    from flexstore.testing.uploads import UploadConformance

__all__ = [
    "Cut",
    "FaultyStore",
    "InjectedFault",
    "Operation",
    "Pick",
    "RecordingStore",
    "Share",
    "StoreConformance",
    "UploadConformance",
    "expected",
    "flip_bit",
    "pick_cut",
    "pick_ranges",
    "pick_shape",
    "pick_tiling",
]

_HOME = {
    "Cut": "cuts",
    "FaultyStore": "faults",
    "InjectedFault": "faults",
    "Operation": "recording",
    "Pick": "cuts",
    "RecordingStore": "recording",
    "Share": "cuts",
    "StoreConformance": "stores",
    "UploadConformance": "uploads",
    "expected": "cuts",
    "flip_bit": "flips",
    "pick_cut": "cuts",
    "pick_ranges": "cuts",
    "pick_shape": "cuts",
    "pick_tiling": "cuts",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
