"""Tables of medians and of ratios to flexstore's aims, as Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.e2e.local import MEASURES, Result
from benchmarks.states import STATES

_OURS = "flexstore"
_RAW = "raw O_DIRECT"
_NOT_PEERS = {"raw O_DIRECT", "raw buffered", "flexstore", "flexstore safetensors", "flexstore (paddle tensors)"}


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
    return [*lines, "", *_ratios(results)]


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def _ratios(results: Mapping[str, Result]) -> list[str]:
    if _OURS not in results:
        return []
    lines = ["| flexstore / | " + " | ".join(MEASURES) + " |", "|" + "---|" * (len(MEASURES) + 1)]
    peers = {name: result for name, result in results.items() if name not in _NOT_PEERS}
    if peers:
        best = {m: min(peers, key=lambda name, m=m: peers[name].median(m)) for m in MEASURES}
        cells = [f"{results[_OURS].median(m) / peers[best[m]].median(m):.2f} ({best[m]})" for m in MEASURES]
        lines.append("| the best peer | " + " | ".join(cells) + " |")
    for name in [n for n in results if n != _OURS]:
        cells = [f"{results[_OURS].median(m) / results[name].median(m):.2f}" for m in MEASURES]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def figures(found: Mapping[str, float]) -> list[str]:
    """The micro measurements, one a line."""
    return ["", "## Planning and ranged reads", "", *(f"* {name}: {value:.3f}" for name, value in found.items())]
