"""Whatever breaks, on whichever node: the run ends everywhere in seconds, and says what broke."""

import pytest

from tests.cluster import ways
from tests.cluster.ways import Run
from tests.launch.submit import wait_until

DEAD_S = 5.0  # a process, or a launcher
LINK_S = 30.0  # a link
WAYS = {"ssh": ways.ssh, "sbatch": ways.sbatch("multinode.sh")}


@pytest.fixture(params=WAYS)
def run(request, bed, tmp_path):
    made = Run(bed, WAYS[request.param], tmp_path)
    made.way = request.param
    yield made
    made.process.kill()
    made.process.wait()
    ways.cancel_all(bed)
    assert wait_until(lambda: made.left() == [], timeout_s=30)


def said(run) -> str:
    """All that the user sees at the end, where it is seen."""
    code, _, err = run.end()
    assert code != 0
    output = run.folder / "job.out"
    return err + (output.read_text() if output.exists() else "")


def test_a_worker_is_killed(run):
    run.hit(run.worker(2).kill)
    run.gone_after_s(DEAD_S)
    text = said(run)
    assert "rank 2 ended without a word (killed? out of memory?)" in text
    assert "Traceback" not in text


def test_torchrun_is_killed(run):
    run.hit(run.torchrun(1).kill)
    run.gone_after_s(DEAD_S)
    assert "torchrun on node1 was killed by SIGKILL (rank 1)" in said(run)


def test_a_supervisor_is_killed(run):
    run.hit(run.agent(3).kill)
    run.gone_after_s(DEAD_S)
    assert "node3 (10.10.1.4) is gone: its agent was killed, or the node went down" in said(run)


def test_the_supervisor_of_node_0_is_killed(run):
    run.hit(run.agent(0).kill)
    run.gone_after_s(DEAD_S)
    assert "is gone: its agent was killed" in said(run)


def test_a_link_goes_down(run):
    run.hit(lambda: run.bed.exec("node2", "ip", "link", "set", "exp0", "down"))
    try:
        run.gone_after_s(LINK_S)
    finally:
        run.bed.exec("node2", "ip", "link", "set", "exp0", "up")
    assert "is its link down?" in said(run)
