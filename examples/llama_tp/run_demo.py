"""The demo: train on 2 processes, kill them in the middle of a save, resume on 4, resume on 1, and check everything.

    python run_demo.py            # a minute and a half on two cores
    python run_demo.py --quick    # a smaller model and fewer steps

It exits with 0 only if every check holds: the torn save is no checkpoint and was passed over, the losses are those of
a run that nobody interrupted, and Paddle itself reads from a checkpoint what flexstore reads.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from folders import newest_checkpoint, step_folder
from launching import Launch, LaunchError
from report import Loss, plot, table

from flexstore.core.manifest import MANIFEST_NAME

TOLERANCE = 1e-4
"""Largest difference of a loss, in nats: other processes add up the same float32 numbers in another order."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the training, and what is expected of it.

    Attributes:
        name: for people.
        processes: the tensor-parallel degree.
        until: number of the last step, unless it is killed before.
        killed_in_save: the step whose save is killed.
        continues: the step whose checkpoint it must begin with; 0 for new weights.
        passes_over: the step whose torn save it must find and leave alone.
    """

    name: str
    processes: int
    until: int
    killed_in_save: int | None = None
    continues: int = 0
    passes_over: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of the model, and the steps from one checkpoint to the next, on which the phases depend."""

    layers: int
    every: int

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase("phase 1", 2, until=4 * self.every, killed_in_save=3 * self.every),
            Phase("phase 2", 4, until=6 * self.every, continues=2 * self.every, passes_over=3 * self.every),
            Phase("phase 3", 1, until=9 * self.every, continues=6 * self.every),
        )

    @property
    def uninterrupted(self) -> Phase:
        return Phase("uninterrupted", 1, until=self.phases[-1].until)


FULL = Plan(layers=4, every=12)
QUICK = Plan(layers=1, every=3)


@dataclass(slots=True)
class Run:
    """What one phase reported.

    Attributes:
        losses: by step.
        picked: name of the checkpoint that it continued from, None if it began anew.
        ignored: names of the newer folders that hold no checkpoint.
        written: names of the files that a save had written when it was killed.
    """

    losses: dict[int, float] = field(default_factory=dict)
    picked: str | None = None
    ignored: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)


class Demo:
    """Carries out a plan in a folder. ``failures`` counts the checks that did not hold."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.failures = 0
        self._plan = plan
        self._folder = folder
        self._checkpoints = folder / "checkpoints"
        self._began = time.monotonic()

    def run(self) -> None:
        """The whole story."""
        whole = self._train(self._plan.uninterrupted, self._folder / "uninterrupted" / "checkpoints")
        runs = []
        for phase in self._plan.phases:
            runs.append(self._train(phase, self._checkpoints))
            self._check_beginning(phase, runs[-1])
            if phase.killed_in_save:
                self._check_torn(step_folder(self._checkpoints, phase.killed_in_save), runs[-1])
        self._check_losses(whole, runs)
        self._check_against_paddle(self._checkpoints / str(runs[-1].picked))
        self._say("all checks hold" if not self.failures else f"{self.failures} check(s) FAILED")

    def _train(self, phase: Phase, checkpoints: Path) -> Run:
        self._say(
            f"{phase.name}: up to step {phase.until} on {phase.processes} process{'es' if phase.processes > 1 else ''}"
        )
        arguments = ["--checkpoints", checkpoints, "--until", phase.until]
        arguments += ["--every", self._plan.every, "--layers", self._plan.layers]
        if phase.killed_in_save:
            arguments += ["--stop-in-save", phase.killed_in_save]
        run = Run()
        with Launch(self._folder / phase.name.replace(" ", "_"), phase.processes, map(str, arguments)) as launch:
            for event in launch.events():
                self._follow(event, run)
                if event["event"] == "about to publish":
                    launch.kill()
        return run

    def _follow(self, event: dict[str, Any], run: Run) -> None:
        match event:
            case {"event": "ready", "picked": picked, "ignored": ignored}:
                run.picked, run.ignored = picked, ignored
                passed_over = f", passed over {', '.join(ignored)}" if ignored else ""
                self._say(f"  begins with {picked or 'new weights'}{passed_over}")
            case {"event": "step", "step": step, "loss": loss}:
                run.losses[step] = loss
            case {"event": "saved", "step": step, "seconds": seconds}:
                self._say(f"  step {step:>3}  loss {run.losses[step]:.4f}  saved in {seconds * 1000:.0f} ms")
            case {"event": "about to publish", "step": step, "files": files}:
                run.written = files
                self._say(f"  step {step:>3}  loss {run.losses[step]:.4f}  in the middle of the save: SIGKILL")

    def _check_beginning(self, phase: Phase, run: Run) -> None:
        picked = step_folder(self._checkpoints, phase.continues).name if phase.continues else None
        ignored = [step_folder(self._checkpoints, phase.passes_over).name] if phase.passes_over else []
        self._check(
            f"{phase.name} began with {run.picked or 'new weights'}"
            + "".join(f" and ignored the torn {name}" for name in run.ignored),
            (run.picked, run.ignored) == (picked, ignored),
        )

    def _check_torn(self, folder: Path, run: Run) -> None:
        found = {path.name for path in folder.iterdir()}
        self._check(
            f"the torn {folder.name} holds all {len(run.written)} files of the save and no {MANIFEST_NAME}",
            bool(run.written) and found >= set(run.written) and MANIFEST_NAME not in found,
        )
        newest, ignored = newest_checkpoint(self._checkpoints)
        self._check(f"it is no checkpoint; the newest one is {newest and newest.name}", ignored == [folder])

    def _check_losses(self, whole: Run, runs: list[Run]) -> None:
        losses = [
            Loss(step, phase.processes, value, whole.losses[step])
            for phase, run in zip(self._plan.phases, runs, strict=True)
            for step, value in run.losses.items()
        ]
        print("", *table(losses, self._plan.every), "", *plot(losses), "", sep="\n", flush=True)
        largest = max(loss.difference for loss in losses)
        self._check(
            f"all {len(losses)} losses are those of the uninterrupted run: largest difference {largest:.1e} "
            f"(at most {TOLERANCE:.0e})",
            largest <= TOLERANCE,
        )
        self._check("no step was left out", {loss.step for loss in losses} == set(whole.losses))

    def _check_against_paddle(self, folder: Path) -> None:
        with warnings.catch_warnings(action="ignore"):  # Paddle's, about tools it does not find
            from comparing import compare_with_paddle

        found = compare_with_paddle(folder)
        self._check(
            f"paddle.distributed.load_state_dict reads {folder.name} alike: {found.tensors} tensors in {found.chunks} "
            f"chunks, {found.nbytes / 1e6:.1f} MB" + "".join(f", differs: {key}" for key in found.different),
            found.tensors > 0 and not found.different,
        )

    def _check(self, promise: str, holds: bool) -> None:
        self._say(f"  {'ok' if holds else 'FAILED'}: {promise}")
        self.failures += not holds

    def _say(self, line: str) -> None:
        print(f"[{time.monotonic() - self._began:5.1f} s] {line}", flush=True)


def main() -> int:
    """Exit code 0 if every check holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller model and fewer steps")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave checkpoints and logs in this new folder")
    args = parser.parse_args()
    if args.keep and args.keep.exists():
        parser.error(f"{args.keep} exists already; name a new folder")
    with tempfile.TemporaryDirectory(prefix="flexstore-demo-") as scratch:
        demo = Demo(QUICK if args.quick else FULL, args.keep or Path(scratch))
        try:
            demo.run()
        except LaunchError as error:
            print(error, file=sys.stderr)
            return 1
    return 1 if demo.failures else 0


if __name__ == "__main__":
    sys.exit(main())
