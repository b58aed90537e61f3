"""`with muster.init() as run`: ranks meet, however they were started."""

from muster.checkout import CHECKOUT
from tests.train.workers import finish, run_program, start

PROGRAM = """
import os, torch, torch.distributed as dist, muster
for number in (1, 2):  # a program meets again
    with muster.init() as run:
        total = torch.tensor([float(run.rank + number)])
        if run.world_size > 1:
            dist.all_reduce(total)
        here = (run.rank, run.world_size, int(total), run.local_rank, run.local_world_size)
        where = (run.node_rank, run.num_nodes, os.environ["LOCAL_RANK"], run.run_dir.name)
        print(*here, *where)
    assert not dist.is_initialized() and "MUSTER_RUN_DIR" not in os.environ
"""


# Both begin in the same second, and one writes a file before the other looks.
SAME_SECOND = """
import time, muster
time.strftime = lambda text: "20260101-000000"
with muster.init() as run:
    run.run_dir.mkdir(parents=True, exist_ok=True)
    (run.run_dir / "mine").open("x").close()
    print(run.run_dir.name, flush=True)
"""


def printed(ended):
    assert [code for code, _, _ in ended] == [0] * len(ended), ended
    return sorted(out.split() for _, out, _ in ended)


def test_single_process_is_a_run_of_one_rank(tmp_path):
    ((rank, size, *rest, name),) = printed(run_program(tmp_path, PROGRAM))
    assert (rank, size) == ("0", "1") and name.endswith("-program-1") and rest[-1] == "0"
    assert list((tmp_path / "logs").iterdir()) == []  # nothing was written


def test_two_ranks_have_one_run_folder(tmp_path):
    rows = printed(run_program(tmp_path, PROGRAM, 2))
    for rank, row in enumerate(rows):
        first, again = (f"{rank} 2 {total} {rank} 2 0 1 {rank}".split() for total in (3, 5))
        assert (row[:8], row[9:-1]) == (first, again)
    assert rows[0][8::9] == rows[1][8::9]


def test_runs_started_in_one_second_have_separate_folders(tmp_path):
    (tmp_path / "program.py").write_text(SAME_SECOND)
    env = {"PYTHONPATH": str(CHECKOUT)}
    both = [start(["program.py"], env, tmp_path) for _ in range(2)]
    names = [row[0] for row in printed(finish(both))]
    assert names == ["20260101-000000-program-1", "20260101-000000-program-1-2"]
