"""Which tensors are kept from each rank, and which rank gets them when a run resumes."""

import torch

from tests.train.workers import results_of
from train.checkpoints import exchange
from train.sync.ranks import Ranks

KEPT = {
    "all/momentum": torch.tensor([1.0]),
    "0/powersgd/4/error_dict/0": torch.tensor([2.0]),
    "1/powersgd/4/error_dict/0": torch.tensor([3.0]),
}


def test_tensors_of_a_rank_are_its_own_and_the_shared_ones():
    of_all = {"momentum": torch.tensor([1.0])}
    assert exchange.tensors_of_rank(KEPT, 1) == of_all | {
        "powersgd/4/error_dict/0": torch.tensor([3.0])
    }
    assert exchange.tensors_of_rank(KEPT, None) == of_all


def test_gathered_tensors_are_copies_on_writing_ranks_only():
    state = {"momentum": torch.tensor([[1.0, 2.0]])}
    retained = exchange.gather_by_rank(Ranks(), state, keeps=True)
    state["momentum"].zero_()
    assert torch.equal(retained["all/momentum"], torch.tensor([[1.0, 2.0]]))
    assert exchange.gather_by_rank(Ranks(), state, keeps=False) == {}
    assert exchange.gather_by_rank(Ranks(), {}, keeps=True) == {}


def retained_by_rank_1(ranks):
    errors = {"errors": torch.full((5,), float(ranks.rank)), "shared": torch.ones(3)}
    retained = exchange.gather_by_rank(ranks, errors, keeps=ranks.rank == 1)
    return {name: one.tolist() for name, one in retained.items()}, dict(ranks.ledger.control)


def test_tensors_that_differ_by_rank_are_sent_to_writing_ranks_only(tmp_path):
    (none, sent), (retained, _) = results_of(retained_by_rank_1, 2, tmp_path)
    assert none == {}
    assert retained == {"all/shared": [1.0] * 3, "0/errors": [0.0] * 5, "1/errors": [1.0] * 5}
    assert sent["gather to rank 1"] == 20


def retained_of_odd_sizes(ranks):
    """Gather tensors of several types with sizes that differ by rank, one larger than a group."""
    count = 3 + 2 * ranks.rank
    own = {
        "bytes": torch.arange(count, dtype=torch.uint8),
        "half": torch.full((count, 2), 0.5 + ranks.rank, dtype=torch.bfloat16),
        "large": torch.full((exchange.GROUP_BYTES // 4 + 1,), float(ranks.rank)),
        "none": torch.zeros(ranks.rank, 2),
        "number": torch.tensor(ranks.rank),
    }
    retained = exchange.gather_by_rank(ranks, own, keeps=ranks.rank == 0)
    return own, retained, dict(ranks.ledger.control)


def test_tensors_of_other_sizes_on_each_rank_come_back_as_they_were(tmp_path):
    (first, retained, sent), (second, nothing, _) = results_of(retained_of_odd_sizes, 2, tmp_path)
    assert nothing == {} and len(retained) == len(first) + len(second)
    for rank, own in enumerate((first, second)):
        for name, tensor in own.items():
            copy = retained[f"{rank}/{name}"]
            assert copy.dtype == tensor.dtype and copy.shape == tensor.shape
            assert torch.equal(copy, tensor)
            assert copy.untyped_storage().nbytes() == tensor.nbytes  # nothing else is saved
    assert [name for name in sent if name.startswith("gather")] == ["gather to rank 0"]
