"""A rank's memory while it resumes, and how it gets a checkpoint that it does not see."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from muster.errors import MusterError
from tests.train.memory import peak
from tests.train.retained import CONFIG, bits, run
from tests.train.workers import results_of
from train.checkpoints import storage, transfer
from train.checkpoints.transfer import transferred
from train.distributed import agreement
from train.distributed.exit_guard import PeerFailed
from train.loop.trainer import Trainer
from train.tasks import synthetic

WIDTH, LAYERS = 1024, 6
CHECKPOINT_BYTES = 3 * 4 * LAYERS * WIDTH**2  # 72 MiB: parameters, and Adam's two means
STEP = 1


class Wide(synthetic.Synthetic):
    def build_model(self):
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        return nn.Sequential(nn.Linear(8, WIDTH), *layers, nn.Linear(WIDTH, 2))


def resumes_of(ranks, folder):
    """Resume with and without a shared disk: peak memory, broadcast bytes, and whether it is right.

    The results of the two functions below follow.
    """
    config = replace(CONFIG, max_steps=STEP, checkpoint_every="1", batch_size=8, evaluate="never")
    config = replace(config, sync="ddp")
    trainer, _ = run(config, Path(folder, "ddp"), task=Wide(config), ranks=ranks)
    was = bits(trainer)
    resume = Trainer.resume
    peaks = []
    sent = []
    measures = []

    def measured(trainer):
        before = ranks.ledger.control["broadcast"]
        with peak() as most:
            resume(trainer)
        peaks.append(most[0])
        sent.append(ranks.ledger.control["broadcast"] - before)

    for place in ("ddp", f"ddp{ranks.rank or ''}"):
        again = replace(config, resume=str(Path(folder, place)))
        with pytest.MonkeyPatch.context() as patching:
            patching.setattr(Trainer, "resume", measured)
            trainer, _ = run(
                again, Path(folder, f"again{ranks.rank}"), task=Wide(again), ranks=ranks
            )
        measures.append((peaks.pop(), sent.pop(), bits(trainer) == was))
    return [
        *measures,
        _step_after_a_twin(ranks, folder),
        _end_on_full_disk(ranks, folder),
    ]


def _step_after_a_twin(ranks, folder):
    """Return the last step of a resumed run if rank 1's own disk has the same checkpoint."""
    config = replace(CONFIG, sync="fsdp", max_steps=2, checkpoint_every="2", evaluate="never")
    run(config, Path(folder, "fsdp"), ranks=ranks)
    agreement.wait_for_all(ranks.world_size)  # until rank 0 has written
    place = Path(folder, f"twin{ranks.rank}")
    shutil.copytree(Path(folder, "fsdp", "checkpoints"), place)
    again = replace(CONFIG, sync="fsdp", max_steps=3, evaluate="never", resume=str(place))
    with pytest.MonkeyPatch.context() as patching:
        patching.delattr("train.checkpoints.manager.transferred")  # nothing is sent
        trainer, _ = run(again, Path(folder, f"twin-again{ranks.rank}"), ranks=ranks)
    return trainer.position.step


def _end_on_full_disk(ranks, folder):
    """Return how each rank ends if rank 1, which sees no checkpoint, has no space for it."""
    checkpoint = Path(folder, "ddp", "checkpoints", f"step_{STEP:08d}")
    disk = Path(folder, f"full{ranks.rank}")

    def full(**place):
        disk.mkdir(exist_ok=True)
        Path(disk, "objects.pt").symlink_to("/dev/full")
        return str(disk)

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(transfer, "mkdtemp", full)
        try:
            seen = storage.read_verified(checkpoint) if ranks.rank == 0 else None
            with transferred(ranks, seen, disk, firsts=[0, 1], source=0, lacking=[1]):
                pass
        except (MusterError, PeerFailed) as error:
            return str(error)
    return ""


@pytest.fixture(scope="module")
def resumes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resumes")
    return results_of(resumes_of, 2, folder, str(folder)), folder


@pytest.mark.slow
def test_resume_from_shared_disk_needs_no_transfer_or_copy(resumes):
    """Its peak is the memory that stays: the optimizer's state, two thirds of the checkpoint."""
    for (most, sent, is_right), *_ in resumes[0]:
        assert most < 0.9 * CHECKPOINT_BYTES
        assert (sent, is_right) == (0, True)


@pytest.mark.slow
def test_resume_without_a_shared_disk_needs_no_copy_in_memory(resumes):
    ranks, folder = resumes
    for _, (most, sent, is_right), *_ in ranks:
        assert most < 0.9 * CHECKPOINT_BYTES + transfer.PIECE_BYTES
        assert (sent > CHECKPOINT_BYTES, is_right) == (True, True)
    assert list(folder.rglob(f"*{storage.UNFINISHED}")) == []


@pytest.mark.slow
def test_same_checkpoint_on_another_disk_is_used(resumes):
    assert [step for *_, step, _ in resumes[0]] == [3, 3]


@pytest.mark.slow
def test_full_disk_of_receiving_rank_is_named_on_all_ranks(resumes):
    ranks, folder = resumes
    of_rank_0, of_rank_1 = (end for *_, end in ranks)
    assert of_rank_1.startswith(f"{folder / 'full1' / 'objects.pt'} on ")
    assert of_rank_1.endswith(": No space left on device")
    assert of_rank_0.endswith(of_rank_1)
    assert not (folder / "full1").exists()
