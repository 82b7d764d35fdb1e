"""What a training loop needs of flexstore: describe the state, save it, load it.

One description serves saving and loading, under any number of processes: a weight that is cut over the ranks, and what
the optimizer keeps for it, is given with the axis of the cut; all else is given as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paddle
from folders import step_folder
from paddle import Tensor, nn
from paddle.optimizer import AdamW
from paddle.optimizer.lr import LRScheduler
from parallel import TensorParallel, split_axis

import flexstore as fs

MOMENTS = ("moment1_0", "moment2_0")
POWERS = ("beta1_pow_acc_0", "beta2_pow_acc_0")
"""What Paddle's AdamW keeps for a parameter: tensors of its shape, and tensors of one element."""


@dataclass(slots=True)
class Training:
    """A model, its optimizer and the number of finished steps, as one rank holds them."""

    model: nn.Layer
    optimizer: AdamW
    schedule: LRScheduler
    tp: TensorParallel
    step: int = 0

    def save(self, root: Path, strategy: Any) -> None:
        """Save into ``<root>/step_<number>``. All ranks call it."""
        fs.save(self._describe(self._optimizer_state()), step_folder(root, self.step), strategy=strategy).result()

    def resume(self, folder: Path) -> None:
        """Continue from a checkpoint, whatever number of processes saved it. All ranks call it."""
        optimizer_state = self._optimizer_state()
        state = self._describe(optimizer_state)
        fs.load(state, folder)
        self.optimizer.set_state_dict({**optimizer_state, "LR_Scheduler": state["schedule"]})
        self.step = state["step"]

    def _describe(self, optimizer_state: dict[str, Any]) -> dict[str, Any]:
        model: dict[str, Any] = {}
        optimizer: dict[str, Any] = {}
        for name, parameter in self.model.named_parameters():
            axis = split_axis(parameter)
            model[name] = self._cut(f"model.{name}", parameter, axis)
            for moment in MOMENTS:
                tensor = optimizer_state[f"{parameter.name}_{moment}"]
                optimizer[f"{name}.{moment}"] = self._cut(f"optimizer.{name}.{moment}", tensor, axis)
            for power in POWERS:
                optimizer[f"{name}.{power}"] = optimizer_state[f"{parameter.name}_{power}"]
        return {"model": model, "optimizer": optimizer, "schedule": self.schedule.state_dict(), "step": self.step}

    def _cut(self, key: str, tensor: Tensor, axis: int | None) -> Any:
        return tensor if axis is None else fs.shard_weight(key, tensor, axis, self.tp.rank, self.tp.size)

    def _optimizer_state(self) -> dict[str, Any]:
        """The optimizer's own state; before its first step it has no tensors, so there are new ones to load into."""
        state: dict[str, Any] = self.optimizer.state_dict()
        for parameter in self.model.parameters():
            for moment in MOMENTS:
                state.setdefault(f"{parameter.name}_{moment}", paddle.zeros_like(parameter))
            for power in POWERS:
                state.setdefault(f"{parameter.name}_{power}", paddle.zeros([1]))
        return state
