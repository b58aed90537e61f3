"""What docs/library.md states about packages, tested on ranks that have only torch."""

import sys

import pytest

from tests.train.workers import run_program

HIDE = """
import sys
for name in ("numpy", "psutil", "safetensors", "transformers", "evaluate", "yaml"):
    sys.modules[name] = None  # as if it were not installed
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


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_init_sync_steps_and_record_need_torch_alone(tmp_path, world_size):
    run_dir = str(tmp_path / "run")
    ended = run_program(
        tmp_path, HIDE + PROGRAM, world_size, sys.executable, MUSTER_RUN_DIR=run_dir
    )
    assert [code for code, *_ in ended] == [0] * world_size, [err[-2000:] for *_, err in ended]
    assert [out.split() for _, out, _ in ended] == [[str(rank), "6"] for rank in range(world_size)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("muster.checkpoints('.', steps=muster.steps(1, batch_size=1)).save(1)", "numpy"),
        ("muster.evaluate", "numpy"),
    ],
)
def test_missing_package_is_named(tmp_path, words, missing):
    ((code, _, err),) = run_program(tmp_path, HIDE + words, python=sys.executable)
    assert code and missing in err.splitlines()[-1]
