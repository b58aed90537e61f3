"""Workers inside charliecloud's containers: on real Slurm and over real ssh."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.cluster.ways import MANUAL, WAYS, start
from tests.launch import images
from tests.launch.submit import alive, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.needs("ch-run")]


@pytest.fixture
def image(tmp_path) -> Path:
    return images.image(tmp_path / "images" / "torch")


@pytest.mark.parametrize("way", ["ssh", pytest.param("slurm", marks=pytest.mark.matrix)])
def test_four_nodes_meet_inside(cluster, project, image, way):
    (project / "train.py").write_text(images.DDP)
    argv = WAYS[way](cluster, 4, *images.flags(image), "--", "train.py")
    out, _ = ways.succeed(cluster, argv, project)
    assert out.count("total 6.0") == 4, out


@pytest.fixture
def on_all_nodes() -> Iterator[Path]:
    """A folder that nodes with homes and temporary files of their own see, too."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.mark.needs("/usr/bin/python3")
def test_nodes_with_disks_of_their_own_see_the_sent_project_inside(apart, project, on_all_nodes):
    image = images.image(on_all_nodes, places=(Path.home() / "muster",))
    (project / "train.py").write_text(f"import os\nprint(bool({images.INSIDE}), os.getcwd())\n")
    flags = ["--container", str(image), "--container-mounts", "/usr", "--run-id", "inside"]
    words = [*MANUAL, *flags, "--python", "/usr/bin/python3", "--", "train.py"]
    out, _ = ways.succeed(apart, ways.ssh(apart, 2, *words), project)
    for rank in (0, 1):
        assert f"node{rank}.{rank}| True {Path.home()}/muster/logs/.snapshot-inside\n" in out, out


def test_a_warning_of_slurm_lets_workers_inside_save(cluster, project, image, monkeypatch):
    monkeypatch.setitem(ways.PYTHON, "MUSTER_MAX_REQUEUES", "0")
    (project / "train.py").write_text(images.WAITS)
    argv = ways.slurm(cluster, 2, *MANUAL, *images.flags(image), "--", "train.py")
    process = start(cluster, argv, project)
    try:
        outputs = "logs/*/workers/*.out"
        assert wait_until(
            lambda: sum("ready" in path.read_text() for path in project.glob(outputs)) == 2
        )
        cluster.run("scancel", "--signal=USR2", ways.running_job(cluster))
        code, _, err = ways.finish(process)
    finally:
        ways.cancel_all(cluster)
    assert code == 75, err
    assert [path.read_text() for path in project.glob("logs/*/snapshot/saved-*")] == ["True\n"] * 2
    assert wait_until(lambda: alive(image) == [])


@pytest.fixture
def without_image(cluster, image):
    """A node that does not see the image: its folder there is another, empty one."""
    cluster.exec("node1", "mount", "-t", "tmpfs", "none", str(image.parent))
    yield "node1"
    cluster.exec("node1", "umount", str(image.parent))


def test_a_node_without_the_image_is_named(cluster, project, image, without_image):
    argv = ways.ssh(cluster, 2, *MANUAL, *images.flags(image), "--", "train.py")
    code, out, err = ways.call(cluster, argv, project)
    assert code == 2, out + err
    line = f"--container {image} on {without_image}: no such file or folder; copy the image there"
    assert line in out + err
    assert not list(project.glob("logs/*/workers/*"))
    assert wait_until(lambda: alive(image) == [])


@pytest.mark.parametrize("way", ["ssh", "slurm"])
def test_an_image_without_python_is_named_with_its_node(cluster, project, image, way):
    argv = WAYS[way](cluster, 2, *MANUAL, *images.flags(image, "nopython3"), "--", "train.py")
    code, out, err = ways.call(cluster, argv, project)
    assert code == 2, out + err
    named = rf"--container {re.escape(str(image))} on node[01]: ch-run did not start nopython3:"
    assert re.search(named, out + err), out + err  # both say so, and one is the first
    assert wait_until(lambda: alive(image) == [])
