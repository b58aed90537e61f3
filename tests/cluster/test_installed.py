"""Muster from a wheel, without its checkout: on Slurm, over ssh, and on a laptop's login node."""

import sys
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.commands import call as call_here
from tests.installations import Installation
from tests.written import write

PROGRAM = """
import os, sys
import configs
import muster

print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "owner", configs.OWNER)
print("muster", muster.__path__[0], muster.stopping(), flush=True)
"""
OTHER_PYTHON = ["--python", sys.executable]
OUTPUT = "muster {}/muster False"


@pytest.fixture
def project_with_own_configs(tmp_path: Path) -> Path:
    return write(
        tmp_path / "project", {"train.py": PROGRAM, "configs/__init__.py": "OWNER = 'user'"}
    )


@pytest.fixture
def no_named_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ways.PYTHON, "MUSTER_PYTHON")


@pytest.mark.slow
@pytest.mark.usefixtures("no_named_python")
def test_a_batch_script_of_an_installation(cluster, installed, project_with_own_configs):
    before = installed.files()
    script = f"{_path(installed)}/slurm/multinode.sh"
    argv = [*ways.SBATCH, "--nodes", "2", f"--output={project_with_own_configs}/job.out", script]
    code, _, err = ways.call(
        cluster, [*argv, *ways.MANUAL, "--", "train.py"], project_with_own_configs
    )
    printed = (project_with_own_configs / "job.out").read_text()
    assert code == 0, err + printed
    assert "rank 0 of 2 owner user" in printed
    assert OUTPUT.format(_path(installed)) in printed
    assert [path.parent.name for path in (project_with_own_configs / "logs").glob("*/job.json")]
    assert installed.files() == before


@pytest.mark.slow
@pytest.mark.usefixtures("no_named_python")
def test_plain_srun_of_an_installation_takes_the_active_environment(
    cluster, installed, project_with_own_configs, monkeypatch
):
    """Muster's own Python has no torch."""
    (project_with_own_configs / "train.py").write_text(
        "import sys, torch; print(f'by {sys.executable}')"
    )
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    script = f"{_path(installed)}/slurm/multinode_manual.sh"
    argv = [*ways.SBATCH, "--nodes", "2", f"--output={project_with_own_configs}/job.out", script]
    code, _, err = ways.call(cluster, [*argv, "--", "train.py"], project_with_own_configs)
    printed = (project_with_own_configs / "job.out").read_text()
    assert code == 0, err + printed
    assert printed.count(f"by {sys.prefix}/bin/python") == 2


@pytest.mark.slow
@pytest.mark.usefixtures("no_named_python")
@pytest.mark.parametrize("launcher", ["slurm", "ssh"])
def test_an_installation_that_nodes_see(cluster, installed, project_with_own_configs, launcher):
    before = installed.files()
    flags = ["--nodes", "2", "--launcher", launcher, *ways.MANUAL]
    flags += {
        "slurm": ["--wait"],
        # nodes are asked about this Python, not about Muster's own, which has no torch
        "ssh": ["--hosts", "node0,node1", "--ssh-config", str(cluster.ssh_config), *OTHER_PYTHON],
    }[launcher]
    out, _ = ways.succeed(
        cluster, [str(installed.muster), "run", *flags, "--", "train.py"], project_with_own_configs
    )
    assert "rank 0 of 2 owner user" in out
    assert OUTPUT.format(_path(installed)) in out
    assert installed.files() == before


@pytest.mark.slow
@pytest.mark.usefixtures("no_named_python")
def test_the_doctor_of_a_small_installation_says_what_a_measurement_needs(
    cluster, installed, project_with_own_configs
):
    flags = ["--hosts", "node0,node1", "--ssh-config", str(cluster.ssh_config)]
    argv = [str(installed.muster), "doctor", *flags, "--", "train.py"]
    code, out, err = ways.call(cluster, argv, project_with_own_configs)
    assert code == 1 and "every pair" in out
    assert "not measured: Muster's own trainer needs the extra [trainer]" in err


@pytest.mark.slow
def test_an_installation_is_sent_to_nodes_with_disks_of_their_own(
    apart, installed, project_with_own_configs, monkeypatch
):
    before = installed.files()
    theirs = str(Path.home() / "muster" / ".venv" / "bin" / "python")  # exists only on nodes
    monkeypatch.setitem(ways.PYTHON, "MUSTER_PYTHON", theirs)
    flags = ["--hosts", "node0,node1", "--ssh-config", str(apart.ssh_config), "--python", theirs]
    argv = [str(installed.muster), "run", *flags, *ways.MANUAL, "--", "train.py"]
    out, _ = ways.succeed(apart, argv, project_with_own_configs)
    assert "rank 0 of 2 owner user" in out
    assert OUTPUT.format(Path.home() / ".muster" / "checkout") in out
    assert installed.files() == before


@pytest.mark.slow
def test_an_installation_is_sent_to_a_login_node(laptop, installed):
    (laptop.project / "t.py").write_text("import muster; print(muster.__path__[0])")
    words = ["run", *laptop.login, "--launcher", "local", *ways.MANUAL, "--", "t.py"]
    done = laptop.call(str(installed.muster), *words)
    assert done.returncode == 0, done.stderr
    assert f"{laptop.remote}/versions/" in done.stdout


def _path(installation: Installation) -> str:
    return call_here(installation.muster, "path").stdout.rstrip("\n")
