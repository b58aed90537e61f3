"""What docs/library.md says of packages: a rank of a program that has torch, and nothing else."""

import sys

import pytest

from tests.train.workers import REPOSITORY, finish, free_port, start

HIDE = """
import os, sys
for name in ("numpy", "psutil", "safetensors", "transformers", "evaluate", "yaml"):
    sys.modules[name] = None  # as if it were not installed
sys.path.insert(0, os.environ["CHECKOUT"])
import torch, muster
"""
PROGRAM = """
with muster.init(device="cpu") as run:
    model = muster.sync(torch.nn.Linear(2, 1))
    data = torch.ones(12, 2)
    for step in muster.steps(data, batch_size=4, epochs=2):
        for micro in step.micro_batches:
            loss = model(data[list(micro.indices)]).square().mean() * micro.weight
            loss.backward()
        muster.record(step, loss=loss, model=model)
    muster.record(metrics={"steps": step.step})
    print(run.rank, step.step)
"""


@pytest.mark.parametrize("world_size", [1, 2])
def test_init_sync_steps_and_record_need_torch_alone(tmp_path, world_size):
    (tmp_path / "program.py").write_text(HIDE + PROGRAM)
    port = str(free_port())
    who = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env = {**who, "CHECKOUT": str(REPOSITORY), "MUSTER_RUN_DIR": str(tmp_path / "run")}
    every = [
        start(["program.py"], {**env, "RANK": str(rank)}, tmp_path, sys.executable)
        for rank in range(world_size)
    ]
    ended = finish(every)
    assert [code for code, *_ in ended] == [0] * world_size, [err[-2000:] for *_, err in ended]
    assert [out.split() for _, out, _ in ended] == [[str(rank), "6"] for rank in range(world_size)]


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("muster.checkpoints('.', steps=muster.steps(1, batch_size=1)).save(1)", "numpy"),
        ("muster.evaluate", "numpy"),
    ],
)
def test_what_needs_more_names_it(tmp_path, words, missing):
    (tmp_path / "program.py").write_text(HIDE + words)
    env = {"CHECKOUT": str(REPOSITORY)}
    ((code, _, err),) = finish([start(["program.py"], env, tmp_path, sys.executable)])
    assert code and missing in err.splitlines()[-1]
