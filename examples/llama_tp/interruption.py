"""A save that stops at the worst moment, so that the demo can kill it there and not somewhere by luck.

A flexstore strategy is an object with five methods, and a wrapper is a strategy that has an inner one. This wrapper
lets every rank write its data and the coordinator the metadata that Paddle reads, and then, one call before the
manifest is published, tells the driver and waits for the end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from events import EventLog

from flexstore.core.manifest import FileInfo, Manifest
from flexstore.strategies.base import SaveContext, Strategy


@dataclass(frozen=True, slots=True)
class StopBeforePublish:
    """A strategy that never gets to its publish; all else is the inner strategy's."""

    inner: Strategy
    events: EventLog
    step: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def finalize(self, manifest: Manifest, ctx: SaveContext) -> Sequence[FileInfo]:
        """Do all that comes before the publish, report it, and go no further."""
        files = self.inner.finalize(manifest, ctx)
        self.events.write("about to publish", step=self.step, files=[info.name for info in (*manifest.files, *files)])
        while True:
            time.sleep(1)
