"""Runs of a user's program whose ranks disagree end with the cause, not with a consequence."""

import re
import sys

import pytest

from tests.commands import call, cause_in
from tests.fork_server import interpreter
from tests.launch.submit import SUBMIT, start

PROGRAM = """
import contextlib, os, pathlib, socket, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
# They meet when both are there: how soon that is says nothing.
pathlib.Path(f"{sys.argv[1]}-{os.environ['RANK']}").touch()
while not all(os.path.exists(f"{sys.argv[1]}-{rank}") for rank in (0, 1)):
    time.sleep(0.05)
own = int(os.environ["RANK"])
wrong = {"rank": {"rank": 0, "world_size": 2}, "size": {"rank": own, "world_size": 2 + own}}
given = wrong.get(sys.argv[1], {})
dist.init_process_group("gloo", timeout=timedelta(seconds=20), **given)
def step(number):
    if number == 3 and dist.get_rank() == 1:
        match sys.argv[1]:
            case "operation":
                dist.broadcast(torch.ones(1000), 1)
                return
            case "shape":
                dist.all_reduce(torch.ones(7))
                return
            case "early":
                sys.exit(0)
            case "lost":  # its peer reports that it is gone before it is
                for fd in map(int, os.listdir("/proc/self/fd")):
                    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as end:
                        if end.family == socket.AF_INET and end.getpeername():
                            end.shutdown(socket.SHUT_RDWR)
                while not os.path.exists("logs/lost/exits/rank_00000.json"):
                    time.sleep(0.05)
                time.sleep(0.7)  # and until this node has been told
                os.abort()
            case "late":
                load_data()
    dist.all_reduce(torch.ones(1000))
def load_data():
    time.sleep(10_000)
for number in range(1, 6):
    step(number)
"""
SENTENCES = {
    # rank 1 may have gone on, so its place tells nothing about its broadcast
    "operation": r"error: ranks disagree about collective 3 of the default group: rank 0: "
    r"all_reduce \[1000\] Float, in step, hung\.py:\d+; rank 1: broadcast \[1000\] Float",
    "shape": r"error: rank 1 on node1 died: Aborted: .*Is there a distributed collective mismatch",
    # gloo notices immediately that rank 1 is gone, or not at all
    "early": r"error: rank (0 .* in all_reduce, step, hung\.py:\d+, but rank 1 .*: it ended with "
    r"exit code 0 on node1|1 on node1 .* all_reduce 3 .*: exit code 0 at [\d:]+; "
    r"rank 0 timed out after \d+ s, in step, hung\.py:\d+)$",
    "lost": r"error: rank 1 on node1 died: Aborted",
    "late": r"error: rank 1 on node1 .* all_reduce 3 of the default group: .* sleeping for \d+ s "
    r"in load_data, hung\.py:\d+; rank 0 timed out after \d+ s",
    "rank": r"error: ranks 0, 1 .* init_process_group, in hung\.py:\d+: rank 0 on node0 \(pid "
    r"\d+\) and rank 1 on node1 \(pid \d+\) both call it with rank=0; ",
    "size": r"error: ranks? .* in init_process_group, in hung\.py:\d+: world sizes differ: rank 0 "
    r"on node0 \(pid \d+\) has 2, rank 1 on node1 \(pid \d+\) has 3; ",
}


# How runs hang; the runs of one list hang at the same time.
HUNG = [
    ["late"],
    *(
        pytest.param(hung, marks=pytest.mark.slow)
        for hung in (["operation", "shape", "early", "lost"], ["rank", "size"])
    ),
]


@pytest.mark.parametrize("hung", HUNG, ids=" ".join)
def test_the_cause_is_the_last_line(tmp_path, hung):
    (tmp_path / "hung.py").write_text(PROGRAM)
    flags = ["--launcher", "local", "--nodes", "2", "--no-snapshot"]
    words = {how: [*flags, "--run-id", how, "--", "hung.py", how] for how in hung}
    runs = {how: start(*own, cwd=tmp_path, python=interpreter()) for how, own in words.items()}
    ends = {how: (*run.communicate(timeout=600), run.returncode) for how, run in runs.items()}
    for how, (_, err, code) in ends.items():
        assert_says_the_cause(tmp_path, how, err, code)


def assert_says_the_cause(folder, how, err, code):
    assert re.search(SENTENCES[how], cause_in(err)), err
    assert code == (134 if how in ("shape", "lost") else 1)
    if how in ("operation", "late"):
        jobs = [sys.executable, SUBMIT.replace("submit", "jobs"), "stacks", how]
        seen = call(*jobs, cwd=folder)
        assert "when a collective timed out, at " in seen.stdout
        assert " in all_reduce 3 [1000]" in seen.stdout


UNEVEN = """
import muster, torch
def step():
    model(torch.ones(4, 2)).sum().backward()
with muster.init(device="cpu") as run:
    model = muster.sync(torch.nn.Linear(2, 1))
    for number in range(2 + run.rank):
        step()
"""


@pytest.mark.slow
def test_rank_that_leaves_init_early_is_named_at_once(tmp_path):
    """It does not take the 30 minutes for which a collective waits."""
    (tmp_path / "uneven.py").write_text(UNEVEN)
    flags = ["--launcher", "local", "--nodes", "2", "--no-snapshot"]
    run = start(*flags, "--", "uneven.py", cwd=tmp_path, python=interpreter())
    _, err = run.communicate(timeout=300)
    assert run.returncode == 1
    assert cause_in(err) == (
        "error: rank 0 on node0 left muster.init() while rank 1 was waiting in a collective, "
        "step, uneven.py:4; all ranks must leave it at the same step"
    )
