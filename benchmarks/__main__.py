"""Measure flexstore beside its peers and the disk, print ratios, write them to ``benchmarks/results/``.

python -m benchmarks [--repeats 5] [--states large many] [--peers ...] [--root DIR] [--no-write]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks import report
from benchmarks.e2e import local
from benchmarks.micro import bench_load_plan, bench_reads, bench_save_plan
from benchmarks.peers import PEERS
from benchmarks.states import STATES


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--states", nargs="*", default=list(STATES), choices=list(STATES))
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--root", type=Path, default=None, help="a directory on the disk to measure")
    parser.add_argument("--no-micro", action="store_true")
    parser.add_argument("--no-write", action="store_true")
    given = parser.parse_args()
    lines = [report.machine()]
    with tempfile.TemporaryDirectory(dir=given.root or Path.cwd(), prefix=".bench-") as root:
        for state in given.states:
            print(f"state '{state}'", flush=True)
            results = local.run(given.peers, state, given.repeats, Path(root))
            lines += report.table(state, results)
    if not given.no_micro:
        lines += report.figures(bench_load_plan.run() | bench_save_plan.run() | bench_reads.run())
    text = "\n".join(lines) + "\n"
    print(text)
    if not given.no_write:
        target = Path(__file__).parent / "results" / "local.md"
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)


if __name__ == "__main__":
    main()
