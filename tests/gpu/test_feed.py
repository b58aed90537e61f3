"""On a GPU: prefetched batches change no number, and the host does not hold the GPU up."""

import time
from dataclasses import replace

import pytest
import torch

from configs.settings.train import TrainConfig
from tests.train.retained import Lines, run
from train.loop import build
from train.loop import trainer as loop
from train.loop.trainer import Trainer
from train.records.sinks import Sinks
from train.sync.ranks import Ranks
from train.tasks import synthetic

pytestmark = pytest.mark.needs("GPU")
CONFIG = TrainConfig(
    task="synthetic", sync="single", lr=0.01, epochs=2, batch_size=256, device="cuda", seed=3
)


def trained(config: TrainConfig, folder, task=None, resume=None) -> Trainer:
    """Dropout is on, and each epoch is evaluated."""
    config = replace(config, resume=None if resume is None else str(resume))
    device = torch.device("cuda", torch.cuda.current_device())
    return run(config, folder, task=task, device=device)[0]


def numbers(trainer: Trainer) -> tuple[list, list]:
    """Losses and norms by step, and metrics by epoch."""
    steps = [(one.step, one.loss, one.grad_norm) for one in trainer.history.steps]
    return steps, [one.metrics for one in trainer.history.evaluations]


@pytest.mark.parametrize("more", [{}, {"accumulation": 3}, {"split": "auto"}])
def test_batches_fetched_ahead_change_no_loss_and_no_metric(more, tmp_path):
    config = replace(CONFIG, **more)
    ahead = numbers(trained(config, tmp_path / "ahead"))
    alone = numbers(trained(replace(config, data_workers=0), tmp_path / "alone"))
    assert ahead == alone
    assert len(ahead[0]) == 16 and len(ahead[1]) == 2


def test_run_resumed_within_an_epoch_goes_on_to_the_bit(tmp_path):
    whole = trained(CONFIG, tmp_path / "whole")
    trained(replace(CONFIG, max_steps=5, checkpoint_every="5"), tmp_path / "part")
    again = trained(CONFIG, tmp_path / "again", resume=tmp_path / "part" / "checkpoints")
    of_whole = numbers(whole)[0]
    of_again = [step for step in numbers(again)[0] if step[0] > 5]
    assert of_again == of_whole[5:]


def test_evaluation_on_the_gpu_is_that_on_the_cpu(tmp_path):
    trainer = trained(replace(CONFIG, dropout=0.0), tmp_path)
    on_gpu = trainer.history.evaluations[-1].metrics
    samples = trainer.datasets.evaluation[""]
    batch = trainer.task.collate([samples[at] for at in range(len(samples))])
    model = trainer.state.model.cpu().eval()
    with torch.no_grad():
        output = trainer.task.forward(model, batch)
    accuracy = (output.logits.argmax(-1) == batch["labels"]).double().mean()
    assert on_gpu["eval_loss"] == pytest.approx(output.loss.item(), abs=1e-5)
    assert on_gpu["accuracy"] == pytest.approx(accuracy.item(), abs=1e-9)


def test_host_gives_the_gpu_a_whole_step_without_waiting_for_it(tmp_path, monkeypatch):
    """torch raises an error where the host would wait, from the batch to the update."""
    config = replace(CONFIG, epochs=1, evaluate="never")

    def watched(part):
        calls = []

        def call(*given, **named):
            calls.append(None)
            # the first steps create what later ones use: handles of libraries, optimizer states
            torch.cuda.set_sync_debug_mode("error" if len(calls) > 2 else "default")
            try:
                return part(*given, **named)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return call

    device = torch.device("cuda", torch.cuda.current_device())
    sinks = Sinks(tmp_path, 0)
    trainer = build.trainer(config, Ranks(), device, synthetic.build(config), Lines(), sinks)
    for name in ("load", "loss_weights", "forward_backward", "clip", "update"):
        part = getattr(trainer.trained, name)
        monkeypatch.setattr(trainer.trained, name, watched(part))
    monkeypatch.setattr(loop, "exchange", watched(loop.exchange))
    try:
        trainer.fit()
    finally:
        trainer.manager.close()
        sinks.close()
    assert trainer.history.count == 8


class Slow(synthetic.Synthetic):
    """Each batch takes 10 ms to be joined, about as long as the device works on it."""

    def collate(self, samples):
        time.sleep(0.01)
        return super().collate(samples)

    def forward(self, model, batch):
        square = torch.ones(4096, 4096, device=batch["features"].device)
        for _ in range(4):
            square = square @ square * 1e-4
        output = super().forward(model, batch)
        return output._replace(loss=output.loss + 0.0 * square[0, 0])


def test_gpu_wait_for_data_is_measured_as_share_of_step(tmp_path, capsys):
    config = replace(CONFIG, epochs=3, evaluate="never")
    shares = {}
    for workers in (0, 2):
        one = replace(config, data_workers=workers)
        steps = list(trained(one, tmp_path / str(workers), Slow(one)).history.steps)[4:]
        waited_s = sum(step.data_s for step in steps)
        shares[workers] = waited_s / sum(step.step_s for step in steps)
    with capsys.disabled():
        print(
            f"\nthe GPU waits for data: {shares[0]:.1%} of a step where the worker loads, "
            f"{shares[2]:.1%} with two loader processes"
        )
    assert all(0 <= share <= 1 for share in shares.values())
