"""`muster.steps` has every sample once per epoch for any ranks, and resumes where it was."""

import itertools
import time

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import muster
from tests.train.workers import results_of
from train.batches import steps as steps_module
from train.sync.ranks import Ranks


@pytest.fixture
def as_rank(monkeypatch):
    """Return `muster.steps` as one of several ranks would call it."""

    def call(rank, world_size, *args, **options):
        monkeypatch.setattr(steps_module, "current_ranks", lambda: Ranks(rank, world_size))
        return muster.steps(*args, **options)

    return call


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 40),
    batch_size=st.integers(1, 17),
    split=st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.0]), min_size=1, max_size=4).filter(any),
    accumulation=st.integers(1, 3),
    by_length=st.booleans(),
)
def test_sample_counts_once_over_ranks_and_weights_give_mean(
    size, batch_size, split, accumulation, by_length
):
    world_size, lengths = len(split), [1 + i % 9 for i in range(size)] if by_length else []
    plans = []
    with pytest.MonkeyPatch.context() as patch:
        for rank in range(world_size):
            patch.setattr(steps_module, "current_ranks", lambda rank=rank: Ranks(rank, world_size))
            options = {"split": split, "accumulation": accumulation, "lengths": lengths}
            plans.append(list(muster.steps(size, batch_size=batch_size, **options)))
    seen, alone = [], list(muster.steps(size, batch_size=batch_size))
    for step, whole in zip(zip(*plans, strict=True), alone, strict=True):
        micros = [micro for one in step for micro in one.micro_batches]
        counted = [i for micro in micros if micro.weight for i in micro.indices]
        assert len(counted) == step[0].samples == sum(one.local_samples for one in step)
        assert sorted(counted) == sorted(whole.micro_batches[0].indices)  # as in any other split
        for micro in micros if by_length else ():
            assert micro.tokens == micro.samples * max(lengths[at] for at in micro.indices)
        total = sum(micro.weight for micro in micros)
        assert total == pytest.approx(world_size)  # so that the plain mean over ranks is the mean
        assert sum(one.micro_batches[0].share for one in step) == pytest.approx(1)
        for one in step:
            assert [micro.is_last for micro in one.micro_batches[::-1]].index(True) == 0
            assert sum(micro.is_last for micro in one.micro_batches) == 1
            assert by_length or len(one.micro_batches) == accumulation
        seen += counted
    assert sorted(seen) == list(range(size))


def test_resumed_steps_begin_after_the_last_step(as_rank):
    whole = [one.micro_batches for one in muster.steps(10, batch_size=3, seed=5, epochs=3)]
    first = muster.steps(10, batch_size=3, seed=5, epochs=3)
    for step in first:
        if step.step == 5:
            break
    again = as_rank(0, 2, 10, batch_size=3, seed=5, epochs=3, split=[3, 0])
    again.load_state_dict(first.state_dict())
    rest = list(again)
    assert [one.step for one in rest] == list(range(6, 13)) and len(again) == 12
    assert [one.epoch for one in rest] == [1] * 3 + [2] * 4
    got = [one.micro_batches[0].indices for one in rest]
    assert got == [one[0].indices for one in whole[5:]]


def test_resume_with_another_dataset_is_refused():
    state = muster.steps(10, batch_size=3).state_dict()
    with pytest.raises(muster.UsageError, match="batch_size is 4, but was 3") as refused:
        muster.steps(11, batch_size=4).load_state_dict(state)
    assert "dataset_size is 11, but was 10" in str(refused.value)


class Squares(Dataset):
    """Sample i is i squared."""

    def __len__(self):
        return 30

    def __getitem__(self, at):
        return at * at


def through(steps, loader, last=99):
    """Yield each micro-batch's expected and loaded values, and the step in the saved state."""
    batches = iter(loader)
    for step in steps:
        for micro, batch in zip(step.micro_batches, batches, strict=False):
            yield [i * i for i in micro.indices], batch.tolist(), steps.state_dict()["step"]
        if step.step == last:
            break


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True, "prefetch_factor": 4}])
def test_a_loader_that_reads_ahead_moves_no_position(options):
    def steps_and_loader():
        steps = muster.steps(Squares(), batch_size=6, seed=3, epochs=3, accumulation=2)
        more = {**options, "num_workers": 2, "multiprocessing_context": "fork"}
        return steps, DataLoader(Squares(), batch_sampler=steps.batches(), **more)

    whole = [got for _, got, _ in through(*steps_and_loader())]
    assert len(whole) == 3 * 5 * 2
    steps, loader = steps_and_loader()
    found = list(through(steps, loader, last=4))
    assert [at for *_, at in found] == [1, 1, 2, 2, 3, 3, 4, 4]
    found += through(steps, loader)  # the same loader and workers, from step 5 on
    assert all(wanted == got for wanted, got, _ in found)
    assert [got for _, got, _ in found] == whole
    again, loader = steps_and_loader()
    again.load_state_dict({**steps.state_dict(), "step": 7})
    assert [got for _, got, _ in through(again, loader)] == whole[14:]


def test_checkpoint_after_loader_took_steps_ahead_is_refused(tmp_path):
    steps = muster.steps(Squares(), batch_size=6)
    sampler = (list(step.micro_batches[0].indices) for step in steps)
    loader = DataLoader(
        Squares(), batch_sampler=sampler, num_workers=1, multiprocessing_context="fork"
    )
    checkpoints = muster.checkpoints(tmp_path, steps=steps)
    next(iter(loader))
    with pytest.raises(muster.UsageError, match=r"batch_sampler=steps\.batches\(\)"):
        checkpoints.after_step(1)


def test_a_loader_without_workers_takes_steps_when_the_loop_asks(tmp_path):
    steps = muster.steps(Squares(), batch_size=6)
    sampler = (list(step.micro_batches[0].indices) for step in steps)
    checkpoints = muster.checkpoints(tmp_path, steps=steps)
    for number, _ in enumerate(DataLoader(Squares(), batch_sampler=sampler), start=1):
        checkpoints.after_step(number)
    assert steps.step == 5


def test_a_checkpoint_is_refused_where_accelerate_takes_steps_ahead(tmp_path):
    from accelerate.data_loader import DataLoaderShard

    steps = muster.steps(Squares(), batch_size=6)
    sampler = (list(step.micro_batches[0].indices) for step in steps)
    checkpoints = muster.checkpoints(tmp_path, steps=steps)
    next(iter(DataLoaderShard(Squares(), batch_sampler=sampler)))
    with pytest.raises(muster.UsageError, match=r"steps\.batches\(\)"):
        checkpoints.after_step(1)


@pytest.mark.parametrize("options", [{}, {"lengths": range(1, 31)}])
def test_length_of_batches_is_how_many_are_left(as_rank, options):
    steps = as_rank(1, 3, 30, batch_size=8, epochs=2, accumulation=3, **options)
    loader = DataLoader(Squares(), batch_sampler=steps.batches())
    for step in steps:
        assert len(loader) == len(list(loader))
        assert (len(loader) == 0) is (step.step == 8)


def test_auto_gives_the_faster_rank_more(as_rank, monkeypatch):
    plan = as_rank(0, 2, 400, batch_size=16, split="auto", model=nn.Linear(1, 1))
    rows = torch.tensor([[8.0, 64.0], [24.0, 64.0]])  # seconds, samples
    monkeypatch.setattr(Ranks, "device", torch.device("cpu"))
    monkeypatch.setattr(Ranks, "all_gather", lambda self, row: rows)
    parts = [one.local_samples for one in plan]
    assert parts[:8] == [8] * 8 and parts[8] == 12
    assert sum(one.samples for one in as_rank(0, 2, 400, batch_size=16)) == 400


def test_auto_counts_tokens_where_samples_go_by_length(as_rank, monkeypatch):
    lengths = [2] * 200 + [6] * 200
    plan = as_rank(0, 2, 400, batch_size=16, split="auto", model=nn.Linear(1, 1), lengths=lengths)
    amounts = []
    monkeypatch.setattr(Ranks, "device", torch.device("cpu"))
    monkeypatch.setattr(Ranks, "all_gather", lambda self, row: amounts.append(row[1]) or row[None])
    tokens = [one.local_tokens for one, _ in zip(plan, range(9), strict=False)]
    assert amounts == [sum(tokens[1:8])]  # without the first step


class SlowerOnRankOne(nn.Module):
    """Its embedding is so large that only rows in use are sent, once all ranks have named them."""

    def __init__(self, rank):
        super().__init__()
        self.sample_s = 0.02 * rank
        self.words, self.layer = nn.Embedding(9000, 32), nn.Linear(32, 1)
        self.norm = nn.Identity()

    def forward(self, words):
        time.sleep(self.sample_s * len(words))
        return self.layer(self.norm(self.words(words)))


class NormalisedOnAllRanks(SlowerOnRankOne):
    """It also waits for the other ranks in its forward pass."""

    def __init__(self, rank):
        super().__init__(rank)
        self.norm = nn.BatchNorm1d(32)


def parts_of(ranks, name):
    """Return all ranks' parts; as a busy machine may slow the fast rank, try several times."""
    for _ in range(8):
        both = [None, None]
        dist.all_gather_object(both, own_parts(ranks, name))
        if both[0][8] > both[1][8]:
            break
    return both


def own_parts(ranks, name):
    model = muster.sync(globals()[name](ranks.rank), synced_batchnorm=True)
    parts = []
    for step in muster.steps(9 * 8, batch_size=8, split="auto", model=model):
        for micro in step.micro_batches:
            with micro.on(model):
                found = model(torch.tensor(micro.indices)).square().mean()
                (found * micro.weight).backward()
        parts.append(step.local_samples)
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SlowerOnRankOne", "NormalisedOnAllRanks"])
def test_auto_splits_a_model_whose_passes_wait_for_other_ranks(tmp_path, name):
    fast, slow = results_of(parts_of, 2, tmp_path, name)[0]
    assert fast[:8] == slow[:8] == [4] * 8
    assert fast[8] > slow[8] and fast[8] + slow[8] == 8


def labelled_words():
    """Return sentences of six words, and their labels; some sentences have no label."""
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(11, (30, 6), generator=generator)
    hidden = torch.rand(30, 6, generator=generator) < 0.4
    hidden[::4] = True
    return words, torch.where(hidden, -100, words % 5)


class_weights = torch.tensor([0.1, 1.0, 7.0, 0.0, 2.5], dtype=torch.float64)


def trained_by_units(ranks):
    """Return losses and weights for means over words and for class weights, with two splits."""
    words, labels = labelled_words()
    found = []
    for kind, split in itertools.product(("words", "classes"), ([5, 1, 0], [1, 2, 2])):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 5), nn.Flatten(0, -2)).double()
        model = muster.sync(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        if kind == "words":
            how, targets, inputs = {}, labels, words
            units = (labels != -100).sum(1)
        else:
            how, targets, inputs = {"weight": class_weights}, words[:, 0] % 5, words[:, :1]
            units = class_weights[targets]
        options = {"split": split} if ranks.world_size > 1 else {}
        options["accumulation"] = 2 if ranks.world_size > 1 else 1
        for step in muster.steps(30, batch_size=10, epochs=3, units=units, **options):
            total = torch.zeros((), dtype=torch.float64)
            for micro in step.micro_batches:
                rows = list(micro.indices)
                with micro.on(model):
                    guesses = model(inputs[rows])
                    mean = functional.cross_entropy(guesses, targets[rows].flatten(), **how)
                    (mean * micro.weight).backward()
                total += mean.detach() * micro.weight
            optimizer.step()
            optimizer.zero_grad()
            found.append(ranks.all_reduce(total).reshape(1) / ranks.world_size)
        found += [one.detach().flatten() for one in net.parameters()]
    return torch.cat(found)


def test_means_by_words_or_class_weights_equal_one_process(tmp_path):
    alone = trained_by_units(Ranks())
    assert alone.isfinite().all()
    for found in results_of(trained_by_units, 3, tmp_path):
        assert (found - alone).abs().max() < 1e-12
