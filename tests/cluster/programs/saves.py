"""A user's loop that saves and records with Muster's library: saves.py FOLDER [EPOCHS].

Without EPOCHS it has no end.
"""

import sys
import time

import torch
from torch import nn

import muster

inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
targets = inputs.sum(1, keepdim=True)
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
with muster.init():
    torch.manual_seed(0)
    model = muster.sync(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    steps = muster.steps(inputs, batch_size=16, epochs=epochs, seed=42)
    objects = {"model": model, "optimizer": optimizer, "steps": steps}
    with muster.checkpoints(every="1 step", **objects) as checkpoints:
        checkpoints.resume()
        for step in steps:
            total = 0.0
            for micro in step.micro_batches:
                rows = list(micro.indices)
                with micro.on(model):
                    loss = (model(inputs[rows]) - targets[rows]).square().mean() * micro.weight
                    loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            muster.record(step, loss=total)
            checkpoints.after_step(step.step)
            time.sleep(0.05)
