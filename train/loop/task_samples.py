"""The sets of samples of a task: cut to --train-samples and --eval-samples, and their lengths."""

from torch.utils.data import Subset

from train.tasks.base import Datasets, Samples, Task


def lengths_of(task: Task, samples: Samples) -> list[int]:
    """The tokens of each sample; empty: not known, or all alike."""
    if isinstance(samples, Subset):
        whole = task.lengths(samples.dataset)  # type: ignore[arg-type]
        found = None if whole is None else whole[list(samples.indices)]
    else:
        found = task.lengths(samples)
    return found.tolist() if found is not None and len(found.unique()) > 1 else []


def first_samples(
    datasets: Datasets, train_samples: int | None, eval_samples: int | None
) -> Datasets:
    """`datasets` with at most so many samples in each set; None: all."""
    evaluation = {name: _first(own, eval_samples) for name, own in datasets.evaluation.items()}
    return Datasets(_first(datasets.train, train_samples), evaluation)


def _first(samples: Samples, limit: int | None) -> Samples:
    if limit is None or limit >= len(samples):
        return samples
    return Subset(samples, range(limit))  # type: ignore[arg-type]  # any map-style dataset will do
