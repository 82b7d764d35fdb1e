"""A small model under each of Paddle's optimizers, trained on data that its number makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle.base import unique_name

from tests.paddle_kit import bits_of

OPTIMIZERS = ("AdamW", "Adam", "Momentum", "Adagrad", "RMSProp", "Adamax", "Adadelta", "Lamb")


@dataclass(frozen=True)
class Job:
    """A model without bias, its optimizer and its learning rate."""

    model: Any
    optimizer: Any
    schedule: Any

    def step(self, data: int) -> None:
        inputs = np.random.Generator(np.random.PCG64(data)).standard_normal((8, 6)).astype(np.float32)
        self.model(paddle.to_tensor(inputs)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        self.schedule.step()

    def state(self) -> dict[str, Any]:
        """Everything that training goes on from."""
        return {
            "model": {"weight": self.model.weight, "bias": self.model.bias},
            "optimizer": self.optimizer.state_dict(),
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from a state; the weights have been loaded in place."""
        self.optimizer.set_state_dict(state["optimizer"])

    def weights(self) -> bytes:
        return bits_of(self.model.weight)


def trained(optimizer: str, data: int = 1, steps: int = 2) -> Job:
    """A job after some steps; equal arguments give equal bits, in every process."""
    paddle.seed(data)
    with unique_name.guard(f"{optimizer}."):
        model = paddle.nn.Linear(6, 4, bias_attr=False)
        schedule = paddle.optimizer.lr.StepDecay(0.1, step_size=2)
        job = Job(model, getattr(paddle.optimizer, optimizer)(schedule, parameters=model.parameters()), schedule)
        for _ in range(steps):
            job.step(data)
    return job
