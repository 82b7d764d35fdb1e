"""The losses of the interrupted training beside those of the uninterrupted one, as a table and as a plot of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PLOT_ROWS = 14
PLOT_COLUMNS = 80


@dataclass(frozen=True, slots=True)
class Loss:
    """One step's loss: on how many processes it was computed, and what the uninterrupted run has for that step."""

    step: int
    processes: int
    value: float
    uninterrupted: float

    @property
    def difference(self) -> float:
        return abs(self.value - self.uninterrupted)


def table(losses: Sequence[Loss], every: int) -> Iterator[str]:
    """The lines of a table with each ``every``-th step; a step that was done twice appears twice."""
    yield " step   processes      loss   uninterrupted   difference"
    for loss in losses:
        if loss.step % every == 0:
            values = f"{loss.value:>10.6f}{loss.uninterrupted:>16.6f}{loss.difference:>13.1e}"
            yield f"{loss.step:>5}{loss.processes:>12}{values}"


def plot(losses: Sequence[Loss]) -> Iterator[str]:
    """The lines of a plot over the steps: ``o`` uninterrupted, and over it a digit, the number of processes."""
    top = max(max(loss.value, loss.uninterrupted) for loss in losses)
    bottom = min(min(loss.value, loss.uninterrupted) for loss in losses)
    last = max(loss.step for loss in losses)
    columns = min(PLOT_COLUMNS, last)
    canvas = [[" "] * columns for _ in range(PLOT_ROWS)]

    def draw(step: int, value: float, mark: str) -> None:
        row = round((top - value) / ((top - bottom) or 1.0) * (PLOT_ROWS - 1))
        canvas[row][(step - 1) * columns // last] = mark

    for loss in losses:
        draw(loss.step, loss.uninterrupted, "o")
    for loss in losses:
        draw(loss.step, loss.value, str(loss.processes))
    for row, line in enumerate(canvas):
        yield f"{top - (top - bottom) * row / (PLOT_ROWS - 1):6.2f} |{''.join(line).rstrip()}"
    yield f"  loss +{'-' * columns}"
    yield f"        step 1{f'step {last}':>{columns - 6}}"
