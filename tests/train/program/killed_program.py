"""A program of several ranks, for tests, that is killed at a given moment or runs to its end.

Environment variables set where it saves (SAVED), how it trains (TRAINING), and when it kills itself
(KILL): "RANK EVENT NUMBER", such as "1 recorded 7". Each rank has a file in SAVED with a line for
each step, with the loss and this rank's samples, and with a last line for the weights.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

import torch
from torch import nn

import muster

FOLDER = Path(os.environ.get("SAVED", "."))
TRAININGS = {  # options of muster.sync, and of muster.steps
    "exact": ({}, {"split": "even"}),
    "bf16": ({"compress": "bf16"}, {"split": "even"}),
    "powersgd": ({"compress": "powersgd", "compress_rank": 1}, {"split": "even"}),
    "ddp": ({"mode": "ddp", "compress": "powersgd", "compress_rank": 1}, {"split": "even"}),
    "auto": ({}, {"split": "auto"}),
}
SAMPLES = 96
BATCH = 12  # 8 steps per epoch
EPOCHS = 3
SAVED_EVERY = 2  # steps


class Net(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.last, self.first, self.middle = nn.Linear(16, 1), nn.Linear(16, 16), nn.Linear(16, 16)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.last(self.dropout(self.middle(self.first(x).tanh()).tanh()))


class Killer:
    """Kills this process at a given moment."""

    def __init__(self, text, rank):
        of_rank, self.event, number = text.split() if text else ("-1", "", "0")
        self.left = int(number) if of_rank in (str(rank), "all") else 0
        if self.event in ("open", "rename") and self.left:
            sys.addaudithook(self._audit)

    def reached(self, event, step):
        if event == self.event and step == self.left:
            self.kill()

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def _audit(self, event, given):
        """Kill this process the n-th time that a file of a checkpoint is opened or renamed."""
        kind = event.removeprefix("os.")
        if kind != self.event or not isinstance(given[0], (str, Path)):
            return
        if str(FOLDER / "checkpoints" / "step_") in str(given[0]):
            self.left -= 1
            if self.left == 0:
                self.kill()


def wait_for_the_disk():
    """Wait for the last checkpoint: otherwise the next may be skipped, which shifts the moments."""
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()


def main():
    training = os.environ["TRAINING"]
    options, division = TRAININGS[training]
    # dropout's masks depend on which rank computes a sample; parts by speed depend on the machine
    model = Net(0.0 if "NO_DROPOUT" in os.environ or training == "auto" else 0.2).double()
    every_sample = torch.randn(
        SAMPLES, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    with muster.init(device="cpu") as run:
        kill = Killer(os.environ.get("KILL", ""), run.rank)
        torch.manual_seed(3)
        for param in model.parameters():
            nn.init.normal_(param, std=0.2)
        model = muster.sync(model, bucket_mb=0.001, **options)
        torch.manual_seed(run.rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=24)
        steps = muster.steps(
            SAMPLES,
            batch_size=BATCH,
            seed=5,
            epochs=EPOCHS,
            accumulation=2,
            model=model,
            **division,
        )
        with (
            (FOLDER / f"rank_{run.rank}").open("w") as lines,
            muster.checkpoints(
                FOLDER / "checkpoints", every=f"{SAVED_EVERY} steps", model=model,
                optimizer=optimizer, schedule=schedule, steps=steps,
            ) as checkpoints,
        ):  # fmt: skip
            print(json.dumps({"begun": checkpoints.resume()}), file=lines, flush=True)
            for step in steps:
                total = torch.zeros((), dtype=torch.float64)
                taken = []
                for micro in step.micro_batches:
                    indices = list(micro.indices)
                    with micro.on(model):
                        data = every_sample[indices]
                        error = (model(data) - data.sum(1, keepdim=True)).square().sum(1)
                        loss = error.mean() * micro.weight if indices else 0 * error.sum()
                        loss.backward()
                    total += loss.detach()
                    if micro.weight:  # a rank whose part is empty has a dummy with weight 0
                        taken += indices
                kill.reached("computed", step.step)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                if step.step % SAVED_EVERY == 0:
                    wait_for_the_disk()
                mean = muster.record(step, loss=total, model=model)
                row = {"step": step.step, "loss": mean.hex(), "samples": taken}
                print(json.dumps(row), file=lines, flush=True)
                kill.reached("recorded", step.step)
                checkpoints.after_step(step.step)
                kill.reached("saving", step.step)
            weights = [
                value.hex() for param in model.parameters() for value in param.flatten().tolist()
            ]
            print(json.dumps({"weights": weights}), file=lines)


if __name__ == "__main__":
    main()
