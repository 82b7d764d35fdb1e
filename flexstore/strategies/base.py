"""The strategy interface: how a named format, or a wrapper around one, moves a plan's bytes.

A format that is a set of files with known layouts derives from `FileFormat` and only says what the files look like;
the pipeline does the I/O. A wrapper takes an inner strategy and implements the same protocols.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flexstore.backends.base import Store
from flexstore.core.manifest import FileInfo, Manifest
from flexstore.core.region import Region
from flexstore.pipeline.reading import ReadOptions, ReadStats, read_plan
from flexstore.pipeline.writing import WriteOptions, write_files
from flexstore.planning.files import FileLayout, WriteItem
from flexstore.planning.load import LoadPlan
from flexstore.planning.receipts import Written


@dataclass(frozen=True, slots=True)
class SaveContext:
    """Where and as whom a rank writes.

    Attributes:
        store: the checkpoint's root.
        attempt: id of this save: decimal digits, part of every data file's name, larger for later attempts.
        rank, world_size: of the writer.
        options: byte budget and progress.
    """

    store: Store
    attempt: str
    rank: int
    world_size: int
    options: WriteOptions


@dataclass(frozen=True, slots=True)
class LoadContext:
    """Where a rank reads from, and how carefully."""

    store: Store
    options: ReadOptions


class SaveStrategy(Protocol):
    """Writes; see design.md §3.4. ``splits_replicas`` lets the planner cut a replicated tensor among its holders."""

    name: str
    splits_replicas: bool

    def write(self, items: Sequence[WriteItem], regions: Sequence[Region], ctx: SaveContext) -> Written:
        """Write this rank's items durably; ``regions[i].box`` contains ``items[i].box``. Every rank calls it."""
        ...

    def finalize(self, manifest: Manifest, ctx: SaveContext) -> Sequence[FileInfo]:
        """Write the foreign metadata that other programs read. The coordinator calls it, before the publish.

        Returns:
            The objects written, and those that `advertise` will write; they become part of the checkpoint.
        """
        ...

    def advertise(self, manifest: Manifest, ctx: SaveContext) -> None:
        """Write what other programs look for under a fixed name. The coordinator calls it right after the publish.

        Before it, such a name could belong to a checkpoint that is still the published one.
        """
        ...


class LoadStrategy(Protocol):
    """Reads; see design.md §3.4."""

    name: str

    def detect(self, store: Store) -> bool:
        """True if the store holds a finished checkpoint of this format that another program wrote.

        An unpublished attempt of flexstore's own is not one.
        """
        ...

    def read_manifest(self, store: Store) -> Manifest:
        """Build the manifest of such a foreign checkpoint.

        Raises:
            CorruptCheckpointError: its metadata is broken or hostile.
        """
        ...

    def read(self, plan: LoadPlan, regions: Sequence[Region], ctx: LoadContext) -> ReadStats:
        """Fill ``regions`` (those the plan was made for). Every rank calls it."""
        ...


class Strategy(SaveStrategy, LoadStrategy, Protocol):
    """Both halves."""


class FileFormat(ABC):
    """A format made of files whose layout is known before any byte is written."""

    name: str
    splits_replicas: bool = True

    @abstractmethod
    def layout(self, items: Sequence[WriteItem], rank: int, world_size: int, attempt: str) -> list[FileLayout]:
        """What this rank's files will be. Pure. File names contain ``attempt``; no items, no files."""

    @abstractmethod
    def finalize(self, manifest: Manifest, ctx: SaveContext) -> Sequence[FileInfo]:
        """See `SaveStrategy.finalize`."""

    def advertise(self, manifest: Manifest, ctx: SaveContext) -> None:  # noqa: B027  (most formats have nothing to do)
        """See `SaveStrategy.advertise`."""

    @abstractmethod
    def detect(self, store: Store) -> bool:
        """See `LoadStrategy.detect`."""

    @abstractmethod
    def read_manifest(self, store: Store) -> Manifest:
        """See `LoadStrategy.read_manifest`."""

    def write(self, items: Sequence[WriteItem], regions: Sequence[Region], ctx: SaveContext) -> Written:
        """See `SaveStrategy.write`."""
        layouts = self.layout(items, ctx.rank, ctx.world_size, ctx.attempt)
        by_index = {item.index: region for item, region in zip(items, regions, strict=True)}
        return write_files(layouts, by_index, ctx.store, ctx.options)

    def read(self, plan: LoadPlan, regions: Sequence[Region], ctx: LoadContext) -> ReadStats:
        """See `LoadStrategy.read`."""
        return read_plan(plan, regions, ctx.store, ctx.options)
