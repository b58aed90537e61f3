"""A sweep has hosts for each run over ssh, and is a job array on Slurm; a new call continues it."""

import csv
import re
import sys
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from tests.cluster import ways
from tests.cluster.ways import MANUAL, finish
from tests.commands import call
from tests.launch.submit import JOBS, SWEEP, wait_until
from tests.launch.sweeps import EXAMPLES, SHOWN_PROGRAM, cells, folder_of
from tests.written import write

pytestmark = pytest.mark.slow

# The examples of docs/sweeps.md that need a cluster.
ON_CLUSTERS = [words for words in EXAMPLES if "--launcher" in words]
GRID = ["--over", "lr=1e-4,3e-4", "--over", "seed=1,2"]
# It records where and when it ran.
PROGRAM = """
import json, os, pathlib, socket, sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if given["--seed"] == "2" and given["--lr"] == "3e-4" and "bug" in pathlib.Path("text").read_text():
    raise ValueError("sample 17 is empty")
began, folder = time.time(), pathlib.Path(os.environ["MUSTER_RUN_DIR"])
if os.environ["RANK"] == "0":
    # The first two run at the same time, by the clocks of their ranks 0.
    begun = folder.parents[4] / "begun"
    begun.mkdir(exist_ok=True)
    (begun / folder.name).touch()
    while len(list(begun.iterdir())) < 2:
        time.sleep(0.1)
    found = {"loss": float(given["--lr"]) * int(given["--seed"])}
    found |= {"began": began, "ended": time.time()}
    (folder / "summary.json").write_text(json.dumps(found))
(folder / ("host-" + os.environ["RANK"])).write_text(socket.gethostname())
"""


def sweep(cluster, buggy_project: Path, *flags: str) -> tuple[int, str, str]:
    # the program needs no torchrun, which would take seconds to start
    argv = [sys.executable, SWEEP, *GRID, *MANUAL, "--nodes", "2", *flags]
    return ways.call(cluster, [*argv, "--", "train.py", "--betas", "0.9,0.999"], buggy_project)


def new_buggy_project(folder: Path) -> Path:
    files = {"train.py": PROGRAM, "text": "with a bug"}
    return write(folder / "100% of %x", files)  # which is no file name pattern of sbatch


@pytest.fixture
def buggy_project(tmp_path) -> Path:
    return new_buggy_project(tmp_path)


def rows(buggy_project: Path) -> dict[str, dict[str, str]]:
    with (folder_of(buggy_project) / "results.csv").open(newline="") as file:
        return {row["run"]: row for row in csv.DictReader(file)}


def most_at_once(found: list[dict[str, str]]) -> int:
    spans = [(float(row["began"]), float(row["ended"])) for row in found if row["began"]]
    return max(sum(a <= began < b for a, b in spans) for began, _ in spans)


def test_over_ssh_each_run_has_hosts_of_its_own(cluster, buggy_project):
    hosts = ["--hosts", ",".join(cluster.hosts), "--ssh-config", str(cluster.ssh_config)]
    code, _, err = sweep(cluster, buggy_project, *hosts, "--at-once", "4")
    assert code == 2 and "--at-once 4 with 2 nodes each needs 8 hosts, but there are 4" in err
    assert "use --at-once 2" in err and not (buggy_project / "logs").exists()

    code, out, err = sweep(cluster, buggy_project, *hosts, "--at-once", "2")
    assert code == 1 and "ValueError: sample 17 is empty" in err, out + err
    found = rows(buggy_project)
    done = [row for row in found.values() if row["state"] == "done"]
    assert len(found) == 4 and len(done) == 3 and most_at_once(done) == 2
    pairs = set()
    for name in (row["run"] for row in done):
        run_dir = folder_of(buggy_project) / "runs" / name
        pairs.add(tuple((run_dir / f"host-{rank}").read_text() for rank in (0, 1)))
    assert pairs == {("node0", "node1"), ("node2", "node3")}
    assert {row["place"] for row in done} == {"node0,node1", "node2,node3"}


FAILED = "train-lr-3e-4_seed-2"
ON_SLURM = ("--launcher", "slurm", "--at-once", "2")


def test_sweep_on_slurm_is_one_array_and_a_second_call_runs_what_failed(cluster, buggy_project):
    code, out, err = sweep(cluster, buggy_project, *ON_SLURM, "--detach")
    assert code == 0 and "job " in out and "run the same command" in out, out + err
    code, out, err = sweep(cluster, buggy_project, *ON_SLURM)
    assert code == 1 and "ValueError: sample 17 is empty" in err, out + err
    assert len(submissions(buggy_project)) == 1  # the second call submits nothing more
    first = rows(buggy_project)
    assert_is_one_array_of_which_one_failed(first)

    (buggy_project / "text").write_text("repaired")
    code, out, err = sweep(cluster, buggy_project, *ON_SLURM)
    assert code == 0, out + err
    second = rows(buggy_project)
    assert {name for name, row in second.items() if row != first[name]} == {FAILED}
    assert second[FAILED]["place"].isdecimal()  # one run is a plain job
    assert float(second[FAILED]["loss"]) == 6e-4
    assert [one["state"] for one in cells(buggy_project).values()] == ["done"] * 4

    both = submissions(buggy_project)
    assert [len([*path.glob("submitit/*_0_log.out")]) for path in both] == [4, 1]
    snapshots = [(path / "snapshot" / "text").read_text() for path in both]
    assert snapshots == ["with a bug", "repaired"]

    environment = ways.environment(cluster)
    listed = call(sys.executable, JOBS, "list", env=environment, cwd=buggy_project).stdout
    assert re.search(r" \([2-9] runs\) ", listed), listed


def submissions(project: Path) -> list[Path]:
    return sorted((folder_of(project) / "submissions").iterdir())


def assert_is_one_array_of_which_one_failed(found: dict[str, dict[str, str]]) -> None:
    states = {name: row["state"] for name, row in found.items()}
    assert states.pop(FAILED) == "failed" and set(states.values()) == {"done"}
    assert most_at_once([*found.values()]) == 2
    (array,) = {row["place"].partition("_")[0] for row in found.values()}
    assert {row["place"] for row in found.values()} == {f"{array}_{index}" for index in range(4)}


def test_sweep_script_takes_a_program_and_refuses_index_beyond_grid(cluster, tmp_path):
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:])")
    argv = [*ways.SBATCH, "--array=1,18", f"--output={tmp_path / '%a.out'}"]
    argv += [str(CHECKOUT / "slurm" / "sweep.sh"), "--", "train.py", "--lr", "1"]
    code, _, err = ways.call(cluster, argv, tmp_path)
    outputs = [(tmp_path / f"{point}.out").read_text() for point in (1, 18)]
    assert code == 2 and "error: array index 18, but the grid has 18 points: " in outputs[1], err
    assert "['--lr', '1', '--batch-size', '128', '--precision', 'fp32']" in outputs[0]


@pytest.mark.slow
def test_requeued_task_of_array_goes_on_as_next_attempt(cluster, buggy_project):
    (buggy_project / "train.py").write_text(
        "import json, os, sys, time\n"
        "attempt = int(os.environ['MUSTER_ATTEMPT'])\n"
        "print(json.dumps({'attempt': attempt}), flush=True)\n"
        "time.sleep(10_000 if sys.argv[2] == '2' and attempt == 0 else 0)\n"
    )
    argv = [sys.executable, SWEEP, "--launcher", "slurm", *MANUAL, "--at-once", "2"]
    process = ways.start(cluster, [*argv, "--over", "seed=1,2", "--", "train.py"], buggy_project)
    try:
        output = "logs/sweeps/*/runs/train-seed-2/workers/rank_00000.out"
        wait_until(lambda: any(path.stat().st_size for path in buggy_project.glob(output)))
        place = cells(buggy_project)["train-seed-2"]["place"]
        assert cluster.run("scontrol", "requeue", place).returncode == 0
        code, out, err = finish(process)
    finally:
        ways.cancel_all(cluster)
    assert code == 0, out + err
    attempts = {name: row["attempt"] for name, row in rows(buggy_project).items()}
    assert attempts == {"train-seed-1": "0", "train-seed-2": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ON_CLUSTERS, ids=lambda words: words[words.index("--launcher") + 1]
)
def test_example_of_sweeps_page_runs_on_a_cluster(cluster, tmp_path, words):
    (tmp_path / "train.py").write_text(SHOWN_PROGRAM)
    (tmp_path / "hosts.txt").write_text("\n".join(cluster.hosts))
    config = ["--ssh-config", str(cluster.ssh_config)] if "ssh" in words else []
    out, _ = ways.succeed(cluster, [sys.executable, SWEEP, *config, *words], tmp_path)
    assert "4 of 4 done" in out and "0.4994" in out
