"""A sweep over ssh has hosts for each run, on Slurm it is one job array; both go on when called."""

import csv
import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.cluster.testbeds import REPOSITORY
from tests.cluster.ways import finish
from tests.commands import call
from tests.launch.submit import wait_until
from tests.launch.sweeps import DOC, EXAMPLES

SWEEP = str(REPOSITORY / "launch" / "sweep.py")
# Of docs/sweeps.md, those that need a cluster.
ON_CLUSTERS = [words for words in EXAMPLES if "--launcher" in words]
WHOLE_MATRIX = pytest.mark.skipif("WHOLE_MATRIX" not in os.environ, reason="of make test-all")
GRID = ["--over", "lr=1e-4,3e-4", "--over", "seed=1,2"]
# It says where and when it ran.
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


@pytest.fixture
def project(tmp_path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text(PROGRAM)
    (root / "text").write_text("with a bug")
    return root


def sweep(cluster, project: Path, *flags: str) -> tuple[int, str, str]:
    # the program needs no torchrun, which would take seconds to start
    argv = [sys.executable, SWEEP, *GRID, "--workers", "manual", "--nodes", "2", *flags]
    words = [*argv, "--", "train.py", "--betas", "0.9,0.999"]
    return finish(ways.start(cluster, words, project), timeout_s=300)


def folder_of(project: Path) -> Path:
    (folder,) = (project / "logs" / "sweeps").iterdir()
    return folder


def rows(project: Path) -> dict[str, dict[str, str]]:
    with (folder_of(project) / "results.csv").open(newline="") as file:
        return {row["run"]: row for row in csv.DictReader(file)}


def most_at_once(found: list[dict[str, str]]) -> int:
    spans = [(float(row["began"]), float(row["ended"])) for row in found if row["began"]]
    return max(sum(a <= began < b for a, b in spans) for began, _ in spans)


def test_over_ssh_each_run_has_hosts_of_its_own(cluster, project):
    hosts = ["--hosts", ",".join(cluster.hosts), "--ssh-config", str(cluster.ssh_config)]
    code, _, err = sweep(cluster, project, *hosts, "--at-once", "4")
    assert code == 2 and "--at-once 4 of 2 nodes each needs 8 hosts, but there are 4" in err
    assert "use --at-once 2" in err and not (project / "logs").exists()

    code, out, err = sweep(cluster, project, *hosts, "--at-once", "2")
    assert code == 1 and "ValueError: sample 17 is empty" in err, out + err
    found = rows(project)
    done = [row for row in found.values() if row["state"] == "done"]
    assert len(found) == 4 and len(done) == 3 and most_at_once(done) == 2
    pairs = set()
    for name in (row["run"] for row in done):
        run_dir = folder_of(project) / "runs" / name
        pairs.add(tuple((run_dir / f"host-{rank}").read_text() for rank in (0, 1)))
    assert pairs == {("node0", "node1"), ("node2", "node3")}
    assert {row["place"] for row in done} == {"node0,node1", "node2,node3"}


def test_on_slurm_it_is_one_array_and_the_second_call_runs_what_failed(cluster, project):
    flags = ["--launcher", "slurm", "--at-once", "2"]
    code, out, err = sweep(cluster, project, *flags, "--detach")
    assert code == 0 and "job " in out and "the same command waits for it" in out, out + err
    code, out, err = sweep(cluster, project, *flags)  # which submits nothing more
    try:
        assert len([*(folder_of(project) / "submissions").iterdir()]) == 1
        assert code == 1 and "ValueError: sample 17 is empty" in err, out + err
        first = rows(project)
        states = {name: row["state"] for name, row in first.items()}
        assert states.pop("train-lr-3e-4_seed-2") == "failed", err
        assert set(states.values()) == {"done"} and most_at_once([*first.values()]) == 2
        (array,) = {row["place"].partition("_")[0] for row in first.values()}
        assert {row["place"] for row in first.values()} == {
            f"{array}_{index}" for index in range(4)
        }

        (project / "text").write_text("repaired")
        code, out, err = sweep(cluster, project, *flags)
        assert code == 0, out + err
    finally:
        ways.cancel_all(cluster)
    second = rows(project)
    changed = {name for name, row in second.items() if row != first[name]}
    assert changed == {"train-lr-3e-4_seed-2"}
    assert second["train-lr-3e-4_seed-2"]["place"].endswith("_3")
    assert float(second["train-lr-3e-4_seed-2"]["loss"]) == 6e-4
    scripts = sorted((folder_of(project) / "submissions").glob("*/array.sh"))
    assert [line for line in scripts[1].read_text().splitlines() if "--array" in line] == [
        "#SBATCH --array=3%2"
    ]
    assert [(path.parent / "snapshot" / "text").read_text() for path in scripts] == [
        "with a bug",
        "repaired",
    ]
    jobs = [sys.executable, REPOSITORY / "launch" / "jobs.py"]
    listed = call(*jobs, "list", env=ways.environment(cluster), cwd=project).stdout
    assert listed.count("train-lr-") >= 4, listed
    record = json.loads((folder_of(project) / "sweep.json").read_text())
    assert record["cells"][3]["state"] == "done"


@WHOLE_MATRIX
def test_a_task_of_the_array_that_is_requeued_goes_on_as_a_single_run_does(cluster, project):
    (project / "train.py").write_text(
        "import json, os, sys, time\n"
        "attempt = int(os.environ['MUSTER_ATTEMPT'])\n"
        "print(json.dumps({'attempt': attempt}), flush=True)\n"
        "time.sleep(10_000 if sys.argv[2] == '2' and attempt == 0 else 0)\n"
    )
    argv = [sys.executable, SWEEP, "--launcher", "slurm", "--workers", "manual", "--at-once", "2"]
    process = ways.start(cluster, [*argv, "--over", "seed=1,2", "--", "train.py"], project)
    try:
        output = "logs/sweeps/*/runs/train-seed-2/workers/rank_00000.out"
        assert wait_until(lambda: any(path.stat().st_size for path in project.glob(output)))
        place = json.loads((folder_of(project) / "sweep.json").read_text())["cells"][1]["place"]
        assert cluster.run("scontrol", "requeue", place).returncode == 0
        code, out, err = finish(process, timeout_s=300)
    finally:
        ways.cancel_all(cluster)
    assert code == 0, out + err
    assert {name: row["attempt"] for name, row in rows(project).items()} == {
        "train-seed-1": "0",
        "train-seed-2": "1",
    }


@WHOLE_MATRIX
@pytest.mark.parametrize(
    "words", ON_CLUSTERS, ids=lambda words: words[words.index("--launcher") + 1]
)
def test_every_example_of_the_documentation_runs(cluster, tmp_path, words):
    script = re.search(r"```python\n(.*?)```", DOC, re.S)
    (tmp_path / "train.py").write_text(script[1])
    (tmp_path / "hosts.txt").write_text("\n".join(cluster.hosts))
    config = ["--ssh-config", str(cluster.ssh_config)] if "ssh" in words else []
    argv = [sys.executable, SWEEP, *config, *words]
    code, out, err = finish(ways.start(cluster, argv, tmp_path), timeout_s=300)
    assert code == 0 and "4 of 4 done" in out and "0.4994" in out, out + err
