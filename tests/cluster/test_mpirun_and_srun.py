"""Workers that mpirun or srun start directly are ranks of one run; real Open MPI, real Slurm.

mpirun's variables do not say where rank 0 is: unless the user gives its address, all ranks refuse.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.testbeds import Cluster
from tests.cluster.ways import cancel_all
from tests.fork_server import interpreter
from tests.pages import WHOLE_LOOP
from tests.required import need
from tests.train.workers import read_json, records

pytestmark = pytest.mark.slow

NETWORK = "10.10.1.0/24"  # of the testbed's nodes
ALL = ["--host", "node0,node1,node2,node3", "-np", "4"]
SHORT = "--device cpu --threads 1 --run-id run --max-steps 2".split()
SYNTHETIC = ["-m", "train.worker", "--task", "synthetic", "--evaluate", "never", *SHORT]


@pytest.fixture
def words(cluster, tmp_path) -> list[str]:
    """mpirun with its settings for the testbed."""
    need("mpirun")
    settings = {
        "oob_tcp_if_include": NETWORK,
        "btl_tcp_if_include": NETWORK,
        "plm_rsh_agent": f"ssh -F {cluster.ssh_config}",
        "orte_tmpdir_base": str(tmp_path / "mpi"),
    }
    words = ["mpirun", "--allow-run-as-root"]
    for name, value in settings.items():
        words += ["--mca", name, value]
    return words


@pytest.fixture
def mpirun(cluster, words):
    """Run mpirun to its end, on the box or on a node; its arguments come first, then Python's."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("SLURM_")}

    def run(mpi: list[str], program: list[str], node: str | None = None):
        argv = [*words, *mpi, interpreter(), *program]
        if node is not None:
            return cluster.exec(node, *argv)
        return subprocess.run(argv, env=clean, capture_output=True, text=True, timeout=300)

    return run


def course(folder: Path) -> list[str]:
    where = ["--data-dir=generated", "--train-samples=40", "--logs-dir", str(folder / "logs")]
    return ["train/main.py", *where, *SHORT, "--batch-size=20", "--evaluate=never"]


def ended_well(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr


def addresses(logs: Path) -> dict[str, str]:
    """Return the address that each host used; check that there was one run, of four ranks."""
    assert read_json(logs / "run" / "summary.json")["world_size"] == 4
    assert len(list((logs / "run" / "metrics").iterdir())) == 4
    found = {}
    for path in (logs / "run" / "environment").iterdir():
        about = read_json(path)
        own = about["interfaces"][about["gloo_interface"]]["addresses"]
        found[about["host"]] = own[0]
    return found


NODES = {f"node{index}": f"10.10.1.{index + 1}" for index in range(4)}


@pytest.mark.parametrize("node", [None, "node1"], ids=["from the box", "from one of the nodes"])
def test_the_courses_line_on_four_nodes(mpirun, tmp_path, node):
    address = ["--master-ip", NODES[node or "node0"]]  # mpirun's own host comes first
    ended_well(mpirun(ALL, [*course(tmp_path), *address], node=node))
    assert addresses(tmp_path / "logs") == NODES


def test_mpirun_on_several_hosts_needs_master_addr(mpirun, tmp_path):
    program = [*SYNTHETIC, "--logs-dir", str(tmp_path / "logs")]
    done = mpirun(ALL, program)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "mpirun -x MASTER_ADDR=NODE0" in done.stderr
    assert not (tmp_path / "logs").exists()
    ended_well(mpirun([*ALL, "-x", f"MASTER_ADDR={NODES['node0']}"], program))
    assert addresses(tmp_path / "logs") == NODES


@pytest.fixture
def in_job(cluster: Cluster):
    """Run a Slurm command, which must succeed."""
    yield lambda *argv: ended_well(cluster.run(*argv))
    cancel_all(cluster)


def test_an_mpirun_inside_a_job(in_job, words, tmp_path):
    """mpirun starts its daemons with srun, whose variables do not describe the program's ranks."""
    program = [interpreter(), *SYNTHETIC, "--logs-dir", str(tmp_path / "logs")]
    address = ["-x", f"MASTER_ADDR={NODES['node0']}"]
    in_job("salloc", "--nodes=4", "--ntasks=4", *words, "--map-by", "node", *address, *program)
    assert addresses(tmp_path / "logs") == NODES


def test_plain_srun_starts_the_whole_loop_of_the_librarys_page(in_job, tmp_path):
    (tmp_path / "train.py").write_text(WHOLE_LOOP)
    step = ["srun", f"--chdir={tmp_path}", "--nodes=4", "--ntasks-per-node=1"]
    in_job(*step, interpreter(), "train.py")
    (run_dir,) = (tmp_path / "logs").iterdir()
    assert run_dir.name.endswith("-train-4")
    for rank in range(4):
        kinds = [one["kind"] for one in records(run_dir, rank)]
        assert (kinds.count("step"), kinds.count("eval")) == (18, 1)
