"""Workers inside charliecloud's containers: on real Slurm and over real ssh."""

import re
import tempfile
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.cluster.ways import MANUAL, start
from tests.launch import images
from tests.launch.submit import alive, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.needs("ch-run")]


def test_workers_inside_meet_and_save_at_a_warning_of_slurm(cluster, project, monkeypatch):
    monkeypatch.setitem(ways.PYTHON, "MUSTER_MAX_REQUEUES", "0")
    image = images.image(project.parent / "image")
    (project / "train.py").write_text(images.MEETS)
    argv = ways.slurm(cluster, 2, *MANUAL, *images.flags(image), "--", "train.py")
    process = start(cluster, argv, project)
    try:
        outputs = "logs/*/workers/*.out"
        wait_until(
            lambda: [path.read_text() for path in project.glob(outputs)] == ["attempt 0 2.0\n"] * 2
        )
        cluster.run("scancel", "--signal=USR2", ways.running_job(cluster))
        code, _, err = ways.finish(process)
    finally:
        ways.cancel_all(cluster)
    assert code == 75, err
    assert len([*project.glob("logs/*/snapshot/saved-*")]) == 2
    wait_until(lambda: alive(image) == [])


@pytest.mark.needs("/usr/bin/python3")
def test_nodes_have_sent_project_inside_or_name_missing_image(apart, project):
    (project / "train.py").write_text(f"import os\nprint({images.INSIDE}, os.getcwd())\n")
    # nodes with homes and temporary files of their own also see this folder
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        images.image(Path(folder), places=(Path.home() / "muster",))
        words = [*MANUAL, "--container-mounts", "/usr", "--python", "/usr/bin/python3"]
        words = [*words, "--run-id", "run", "--container", folder, "--", "train.py"]
        out, _ = ways.succeed(apart, ways.ssh(apart, 2, *words), project)
    for rank in (0, 1):
        inside = f"True {Path.home()}/muster/logs/.snapshot-run\n"
        assert f"node{rank}.{rank}| {inside}" in out, out
    code, out, err = ways.call(apart, ways.ssh(apart, 2, "--overwrite", *words), project)
    missing = f"--container {folder} on node[01]: No such file"
    assert code == 2 and re.search(missing, out + err), out + err
