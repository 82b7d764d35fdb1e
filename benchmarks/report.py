"""Tables of medians and of ratios to flexstore's aims, as Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.e2e.local import MEASURES, Result
from benchmarks.states import STATES

_OURS = "flexstore"
_RAW = "raw O_DIRECT"


def machine() -> str:
    """One line about where and when."""
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / (1 << 20)
    return (
        f"# Local disk\n\n{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {memory:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}. `python -m benchmarks`: medians of "
        "interleaved rounds; every save ends durable (programs without fsync are followed by one, inside the timing); "
        "cold = the files were dropped from the page cache of this (virtual) machine; flexstore verifies all checksums."
    )


def table(state: str, results: Mapping[str, Result]) -> list[str]:
    """Medians by program, then the ratios that have an aim."""
    nbytes = sum(4 * int(_size(shape)) for shape in STATES[state]().values())
    lines = ["", f"## State '{state}': {len(STATES[state]()):,} tensors, {nbytes / (1 << 20):,.0f} MiB", ""]
    lines += ["| program | " + " | ".join(f"{m}, s (min–max)" for m in MEASURES) + " | extra memory save / load, MiB |"]
    lines += ["|" + "---|" * (len(MEASURES) + 2)]
    for name, result in results.items():
        cells = [
            f"{result.median(m):.3f} ({min(result.seconds[m]):.3f}–{max(result.seconds[m]):.3f})" for m in MEASURES
        ]
        load = max(result.extra_nbytes["cold load"], result.extra_nbytes["warm load"])
        memory = f"{result.extra_nbytes['save'] / (1 << 20):.0f} / {load / (1 << 20):.0f}"
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {memory} |")
    return [*lines, "", *_ratios(state, results)]


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


@dataclass(frozen=True)
class Aim:
    """A ratio of flexstore to the fastest of some programs, and what it should be at most."""

    measure: str
    beside: tuple[str, ...]
    at_most: float


_PEERS = ("safetensors", "torch DCP", "paddle", "orbax")
_AIMS = {
    "large": (
        Aim("save", _PEERS, 0.6),
        Aim("save", (_RAW,), 1.2),
        Aim("cold load", _PEERS, 0.7),
        Aim("cold load", (_RAW, "raw buffered"), 1.15),
        Aim("warm load", ("torch DCP", "orbax", "paddle"), 0.6),
        Aim("warm load", ("safetensors",), 1.3),
    ),
    "many": (Aim("save", _PEERS, 0.5), Aim("cold load", _PEERS, 0.5), Aim("warm load", _PEERS, 0.5)),
}
_EXTRA_MIB = 256


def _ratios(state: str, results: Mapping[str, Result]) -> list[str]:
    """flexstore's medians over those of the fastest of others, beside the aims."""
    if _OURS not in results:
        return []
    ours = results[_OURS]
    lines = ["| flexstore / the fastest of | measure | ratio | aim | |", "|---|---|---|---|---|"]
    for aim in _AIMS[state]:
        present = [name for name in aim.beside if name in results]
        if present:
            best = min(present, key=lambda name, aim=aim: results[name].median(aim.measure))
            ratio = ours.median(aim.measure) / results[best].median(aim.measure)
            met = "met" if ratio <= aim.at_most else "**missed**"
            lines.append(f"| {', '.join(present)}: {best} | {aim.measure} | {ratio:.2f} | ≤ {aim.at_most} | {met} |")
    extra = max(ours.extra_nbytes.values()) / (1 << 20)
    met = "met" if extra <= _EXTRA_MIB else "**missed**"
    return [*lines, f"| extra memory, MiB | all | {extra:.0f} | ≤ {_EXTRA_MIB} | {met} |"]


def figures(found: Mapping[str, float]) -> list[str]:
    """The micro measurements, one a line."""
    return ["", "## Planning and ranged reads", "", *(f"* {name}: {value:.3f}" for name, value in found.items())]
