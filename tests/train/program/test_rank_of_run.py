"""`with muster.init() as run`: ranks meet, however they were started."""

import os
import subprocess
import sys

import pytest

import muster
from tests.train.workers import finish, free_port

PROGRAM = """
import os, torch, torch.distributed as dist, muster
with muster.init() as run:
    total = torch.tensor([float(run.rank + 1)])
    if run.world_size > 1:
        dist.all_reduce(total)
    here = (run.local_rank, run.local_world_size, run.node_rank, run.num_nodes)
    print(run.rank, run.world_size, int(total), *here, os.environ["LOCAL_RANK"], run.run_dir.name)
assert not dist.is_initialized() and "MUSTER_RUN_DIR" not in os.environ
"""


# Both begin in one second, and one leaves something before the other looks.
SAME_SECOND = """
import sys, time, muster
time.strftime = lambda text: "20260101-000000"
with muster.init() as run:
    run.run_dir.mkdir(parents=True, exist_ok=True)
    (run.run_dir / "mine").open("x").close()
    print(run.run_dir.name, flush=True)
    sys.stdin.read()
"""

TWICE = """
import torch, torch.distributed as dist, muster
for number in range(3):
    with muster.init() as run:
        total = torch.tensor([float(run.rank + number)])
        dist.all_reduce(total)
        print(run.rank, number, int(total))
"""


def start(folder, program=PROGRAM, **env):
    (folder / "program.py").write_text(program)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    return subprocess.Popen(
        [sys.executable, "program.py"], cwd=folder, env={**clean, **env}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def printed(processes):
    ended = finish(processes)
    assert [code for code, _, _ in ended] == [0] * len(ended), ended
    return sorted(out.split() for _, out, _ in ended)


def test_alone(tmp_path):
    ((rank, size, *rest, name),) = printed([start(tmp_path)])
    assert (rank, size) == ("0", "1") and name.endswith("-program-1") and rest[-1] == "0"
    assert list((tmp_path / "logs").iterdir()) == []  # nothing was written


def both_of(port, rank):
    size = {"MASTER_PORT": str(port)}
    return [
        {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", **size},
        {
            "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "2", **size,
            "OMPI_COMM_WORLD_LOCAL_RANK": rank, "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        },
        {
            "SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2",
            "SLURM_LOCALID": rank, "SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "1",
            "SLURM_JOB_ID": "5", "MASTER_ADDR": "127.0.0.1", **size,
        },
    ]  # fmt: skip


@pytest.mark.parametrize("way", [0, 1, 2], ids=["by hand", "mpirun", "srun"])
def test_two_ranks(tmp_path, way):
    port = free_port()
    found = printed([start(tmp_path, **both_of(port, str(rank))[way]) for rank in range(2)])
    for rank, row in enumerate(found):
        assert row[:-1] == [str(rank), "2", "3", str(rank), "2", "0", "1", str(rank)]
    assert found[0][-1] == found[1][-1]


def test_what_makes_no_sense_is_refused_where_it_is_given():
    wrong = {"device": "gpu", "backend": "mpi", "timeout_s": 0, "join_timeout_s": "long"}
    with pytest.raises(muster.UsageError) as refused, muster.init(**wrong):
        pass
    assert str(refused.value).splitlines() == [
        "muster.init: device is 'gpu'; known: auto, cpu, cuda",
        "muster.init: backend is 'mpi'; known: auto, gloo, nccl",
        "muster.init: timeout_s is 0; it must be finite and above 0",
        "muster.init: join_timeout_s is 'long'; it must be a number",
    ]


def test_two_programs_of_one_name_begun_in_one_second_have_a_folder_each(tmp_path):
    both = [start(tmp_path, SAME_SECOND) for _ in range(2)]
    names = [row[0] for row in printed(both)]
    assert names == ["20260101-000000-program-1", "20260101-000000-program-1-2"]


def test_a_program_meets_again_by_hand(tmp_path):
    port = free_port()
    rows = printed([start(tmp_path, TWICE, **both_of(port, str(rank))[0]) for rank in range(2)])
    for rank, row in enumerate(rows):
        assert row == f"{rank} 0 1 {rank} 1 3 {rank} 2 5".split()
