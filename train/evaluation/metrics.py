"""Metrics are counts or tables that add up over the ranks: one all_reduce(SUM) completes them."""

import warnings

import torch
from torch import Tensor


class Confusion:
    """Accuracy, F1 and Matthews' correlation from counts of (label, prediction).

    `names` chooses among accuracy, f1 (of class 1) and matthews_correlation.
    """

    def __init__(self, classes: int, names: tuple[str, ...]) -> None:
        self.state = torch.zeros(classes, classes, dtype=torch.float64)  # [label, prediction]
        self._names = names

    def update(self, logits: Tensor, labels: Tensor, positions: Tensor) -> None:
        """Count n samples: logits (n, classes), labels (n,); positions do not matter."""
        predictions = logits.argmax(dim=-1)
        cells = labels.long() * len(self.state) + predictions
        counts = torch.bincount(cells, minlength=self.state.numel())
        self.state += counts.to(self.state).view_as(self.state)

    def compute(self) -> dict[str, float]:
        """The chosen metrics over all counted samples."""
        counts = self.state.cpu()
        labels = counts.sum(1)
        predictions = counts.sum(0)
        right = counts.trace()
        total = counts.sum()
        variances = (total**2 - labels @ labels) * (total**2 - predictions @ predictions)
        values = {
            "accuracy": right / total,
            "f1": 2 * counts[1, 1] / (labels[1] + predictions[1]),
            "matthews_correlation": (right * total - labels @ predictions) / variances.sqrt(),
        }
        # 0 / 0, from a class that is missing, counts as 0
        return {name: values[name].nan_to_num().item() for name in self._names}


class Correlation:
    """Pearson's and Spearman's correlation of predictions with labels, over a set of `size`.

    Ranking needs the values themselves, so the state is a table with one row per sample: each rank
    of the run fills its own rows and leaves zeros elsewhere, so that the sum is the whole table.
    """

    def __init__(self, size: int) -> None:
        self.state = torch.zeros(size, 2, dtype=torch.float64)

    def update(self, logits: Tensor, labels: Tensor, positions: Tensor) -> None:
        """Enter n samples: logits (n, 1), labels (n,), their rows (n,)."""
        rows = torch.stack([logits.reshape(len(labels)).double(), labels.double()], dim=1)
        self.state[positions.to(self.state.device)] = rows.to(self.state)

    def compute(self) -> dict[str, float]:
        """Both correlations; NaN if one side is constant, as in scipy."""
        from scipy.stats import pearsonr, spearmanr  # half a second, saved in classification

        predictions, labels = self.state.cpu().numpy().T
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant input: NaN shows it
            return {
                "pearson": float(pearsonr(predictions, labels)[0]),
                "spearmanr": float(spearmanr(predictions, labels)[0]),
            }
