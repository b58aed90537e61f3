"""A run that waits for a loader's process says which one, and in which of its lines it is."""

import re
import sys

import pytest

from muster.errors import NO_RETRY
from tests.commands import cause_in
from tests.launch.submit import submit

pytestmark = pytest.mark.slow

PROGRAM = """
import sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Images(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if get_worker_info().id == 1 and dist_rank == 1:
            read_image()
        return index

def read_image():
    time.sleep(10_000)  # as of a file server that has gone

def main():
    for batch in DataLoader(Images(), num_workers=2, batch_size=5):
        dist.all_reduce(batch)

dist.init_process_group("gloo")
dist_rank = dist.get_rank()
main()
"""


@pytest.mark.matrix
def test_a_stuck_loader_process_is_named_with_its_line(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    flags = ["--launcher", "local", "--nodes", "1", "--nproc-per-node", "2", "--no-snapshot"]
    flags += ["--hang-after-s", "6", "--on-hang", "stop", "--run-id", "hung"]
    code, _, err = submit(*flags, "--", "train.py", cwd=tmp_path, python=sys.executable)
    line = PROGRAM.splitlines().index("    time.sleep(10_000)  # as of a file server that has gone")
    assert code == NO_RETRY, err
    assert re.search(
        r"no progress for \d+ s: rank 1 on node0 has not come to all_reduce \d+ of the default "
        r"group: it is in main, train\.py:\d+, for \d+ s, and sleeps; its child process \d+ is in "
        rf"read_image, train\.py:{line + 1}, and sleeps; rank 0 waits",
        cause_in(err),
    ), err
