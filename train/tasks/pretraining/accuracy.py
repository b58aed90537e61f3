"""The accuracy for hidden tokens and next sentences, over all ranks."""

import math

import torch
from torch import Tensor

COLUMNS = ("surprise", "right", "hidden", "next_right")
MAX_EXPONENT = 700.0  # beyond it e**x is not a float


def per_sample(
    token_losses: Tensor, scores: Tensor, targets: Tensor, rows: Tensor, next_right: Tensor
) -> Tensor:
    """The values to sum for n samples with m hidden tokens: `COLUMNS`, (n, 4).

    Each hidden token has its loss and target (m,), its scores (m, vocabulary), and its sample in
    `rows` (m,). Each sample has whether the next sentence was predicted correctly (n,).
    """
    each = [token_losses, (scores.argmax(-1) == targets).to(token_losses)]
    each.append(torch.ones_like(token_losses))
    sums = token_losses.new_zeros(len(next_right), 3).index_add(0, rows, torch.stack(each, dim=1))
    return torch.cat([sums, next_right.to(sums)[:, None]], dim=1)


class Guesses:
    """Sums over hidden tokens and samples."""

    def __init__(self) -> None:
        self.state = torch.zeros(len(COLUMNS) + 1, dtype=torch.float64)

    def update(self, logits: Tensor, labels: Tensor, positions: Tensor) -> None:
        """Count n samples: `per_sample` (n, 4) in place of logits, which would take gigabytes."""
        self.state[:-1] += logits.double().sum(0)
        self.state[-1] += len(labels)

    def compute(self) -> dict[str, float]:
        surprise, right, hidden, next_right, samples = self.state.tolist()
        return {
            "mlm_accuracy": right / hidden if hidden else 0.0,
            "nsp_accuracy": next_right / samples if samples else 0.0,
            "perplexity": math.exp(min(surprise / max(hidden, 1.0), MAX_EXPONENT)),
        }
