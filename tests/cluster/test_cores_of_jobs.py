"""Workers are bound to cores in a Slurm job, but not over ssh, where runs may share a node."""

import json
import os

import pytest

from tests.cluster import ways
from tests.cluster.ways import MANUAL
from tests.launch.scripts import SHOWS_CORES

pytestmark = pytest.mark.slow

EVERY = sorted(os.sched_getaffinity(0))
needs_two_cores = pytest.mark.skipif(len(EVERY) < 2, reason="there is one core")


def cores_of_ranks(cluster, way, folder, *flags):
    """Run on one node; return each rank's cores, and everything that was printed."""
    folder.mkdir()
    (folder / "shows.py").write_text(SHOWS_CORES)
    words = [*MANUAL, "--no-snapshot", "--logs-dir", str(folder), *flags]
    out, err = ways.succeed(cluster, way(cluster, 1, *words, "--", "shows.py"), folder)
    paths = sorted(folder.glob("*/workers/*.out"))
    of_job = (*folder.glob("job.out"), *folder.glob("*/submitit/*.out"))
    printed = [out, err, *(path.read_text() for path in of_job)]
    return [json.loads(path.read_text()) for path in paths], "".join(printed)


@needs_two_cores
def test_a_job_binds_its_workers_and_ssh_does_not(other_cluster, tmp_path):
    cluster = other_cluster("--nodes", "1")  # which has all cores of this machine
    half = len(EVERY) // 2
    parts = [[str(half), EVERY[:half]], [str(half), EVERY[half:]]]
    bound = f"cores: {half} for each worker, bound to them\n"
    count = ["--nproc-per-node", "2"]
    whole = ways.sbatch("multinode.sh", "--exclusive")
    found, printed = cores_of_ranks(cluster, whole, tmp_path / "job", *count)
    assert found == parts and bound in printed
    found, printed = cores_of_ranks(cluster, whole, tmp_path / "none", *count, "--bind", "none")
    assert found == [[str(half), EVERY]] * 2 and bound not in printed
    found, printed = cores_of_ranks(cluster, ways.ssh, tmp_path / "ssh", *count)
    assert found == [[str(half), EVERY]] * 2
    assert f"cores: {half} for each worker\n" in printed
    found, printed = cores_of_ranks(
        cluster, ways.ssh, tmp_path / "asked", *count, "--bind", "cores"
    )
    assert found == parts and bound in printed


def test_workers_beyond_cores_are_noted_and_slurm_flag_is_named(cluster, tmp_path):
    cores = max(1, len(EVERY) // 4)  # the share of one of four nodes
    count = ["--nproc-per-node", str(cores + 1)]
    for name, way in (("ssh", ways.ssh), ("slurm", ways.slurm)):
        found, printed = cores_of_ranks(cluster, way, tmp_path / name, *count)
        assert len(found) == cores + 1
        assert f"cores: {cores + 1} workers share {cores} core" in printed
        assert ("more with --cpus-per-task" in printed) == (name == "slurm")
