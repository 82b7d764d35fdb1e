"""What the training processes tell the driver: one JSON object per line, appended to a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class EventLog:
    """The writing end. Every rank may have one; a line is one append, so lines never mix."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        os.write(self._file, (json.dumps({"event": event, **fields}) + "\n").encode())


class EventReader:
    """The reading end: what was appended since the last look."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open()
        self._line = ""

    def poll(self) -> Iterator[dict[str, Any]]:
        """The events that are complete by now."""
        while piece := self._file.readline():
            self._line += piece
            if self._line.endswith("\n"):
                yield json.loads(self._line)
                self._line = ""

    def close(self) -> None:
        self._file.close()
