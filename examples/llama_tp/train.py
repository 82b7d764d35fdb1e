"""Train on as many processes as were launched: resume from the newest checkpoint there is, save every few steps.

    python -m paddle.distributed.launch --nproc_per_node 2 train.py --checkpoints DIR --events FILE --until 40

Every process is one rank of the tensor-parallel group.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import paddle
import paddle.distributed as dist
from checkpointing import Training
from events import EventLog
from folders import newest_checkpoint
from interruption import StopBeforePublish
from model import Config, Llama
from parallel import TensorParallel
from text import Text

from flexstore.strategies import strategy_named

SEED = 2024
PEAK_RATE = 3e-3
WARMUP_STEPS = 8
HORIZON = 400
ROWS, LENGTH = 8, 96


def main() -> None:
    """One rank's life."""
    args = _arguments()
    events = EventLog(args.events)
    events.write("started", pid=os.getpid())
    paddle.set_device("cpu")
    dist.init_parallel_env()
    tp = TensorParallel(dist.get_rank(), dist.get_world_size())

    training = _new_training(tp, Config(layers=args.layers))
    picked, ignored = newest_checkpoint(args.checkpoints)
    if picked:
        training.resume(picked)
    if tp.rank == 0:
        events.write("ready", picked=picked and picked.name, ignored=[folder.name for folder in ignored])

    text = Text.load(SEED)
    strategy = strategy_named(args.strategy)
    while training.step < args.until:
        loss = _train_step(training, text)
        if tp.rank == 0:
            events.write("step", step=training.step, loss=loss)
        if training.step % args.every == 0:
            torn = training.step == args.stop_in_save
            began = time.perf_counter()
            training.save(args.checkpoints, StopBeforePublish(strategy, events, training.step) if torn else strategy)
            if tp.rank == 0:
                events.write("saved", step=training.step, seconds=time.perf_counter() - began)


def _new_training(tp: TensorParallel, config: Config) -> Training:
    model = Llama(tp, config, SEED)
    cosine = paddle.optimizer.lr.CosineAnnealingDecay(PEAK_RATE, HORIZON)
    schedule = paddle.optimizer.lr.LinearWarmup(cosine, WARMUP_STEPS, 0.0, PEAK_RATE)
    optimizer = paddle.optimizer.AdamW(schedule, parameters=model.parameters(), weight_decay=0.1)
    return Training(model, optimizer, schedule, tp)


def _train_step(training: Training, text: Text) -> float:
    inputs, labels = text.batch(training.step, ROWS, LENGTH)
    loss = training.model(paddle.to_tensor(inputs), paddle.to_tensor(labels))
    loss.backward()
    training.optimizer.step()
    training.optimizer.clear_grad()
    training.schedule.step()
    training.step += 1
    return float(loss)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--events", type=Path, required=True, help="file that this run reports to")
    parser.add_argument("--until", type=int, required=True, help="number of steps after which to stop")
    parser.add_argument("--every", type=int, default=8, help="steps between two checkpoints")
    parser.add_argument("--layers", type=int, default=4, help="size of the model")
    parser.add_argument("--strategy", default="distcp", help="format of the checkpoints")
    parser.add_argument("--stop-in-save", type=int, metavar="STEP", help="wait to be killed in the middle of this save")
    return parser.parse_args()


if __name__ == "__main__":
    main()
