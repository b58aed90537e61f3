"""A run uses as many samples of a set as it was told to, and knows their lengths."""

import torch

from configs.settings.train import TrainConfig
from train.loop.task_samples import first_samples, lengths_of
from train.tasks import synthetic


def test_lengths_are_those_of_the_first_samples():
    class Texts(synthetic.Synthetic):
        def lengths(self, samples):
            return torch.arange(len(samples))

    task = Texts(TrainConfig(task="synthetic"))
    cut = first_samples(task.build_datasets(), 5, None)
    assert lengths_of(task, cut.train) == [0, 1, 2, 3, 4]
    assert len(lengths_of(task, cut.evaluation[""])) == 509
    one = first_samples(task.build_datasets(), 1, None).train
    assert lengths_of(task, one) == []  # all alike
    assert lengths_of(synthetic.build(TrainConfig(task="synthetic")), cut.train) == []
