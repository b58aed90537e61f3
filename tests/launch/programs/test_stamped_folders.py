"""Programs that name their own folders by time, as Hydra does, can use the run folder instead."""

import json
from pathlib import Path

import pytest

from tests.launch.submit import run_well
from tests.launch.sweeps import sweep
from tests.written import write

pytestmark = pytest.mark.slow

# Like Hydra: overrides as arguments, environment variables in them, and a folder named by time.
STAMPS = r"""
import os, re, sys, time
from pathlib import Path
overrides = dict(word.split("=", 1) for word in sys.argv[1:])
folder = overrides.get("hydra.run.dir", f"outputs/{time.time_ns()}")
folder = Path(re.sub(r"\$\{oc\.env:(\w+)\}", lambda match: os.environ[match[1]], folder))
folder.mkdir(parents=True, exist_ok=True)
with (folder / "train.log").open("a") as log:
    log.write(f"attempt {os.environ['MUSTER_ATTEMPT']}, lr {overrides['lr']}\n")
state = Path(os.environ["MUSTER_CHECKPOINTS"], "rank" + os.environ["RANK"])
has_begun = state.exists()
state.parent.mkdir(parents=True, exist_ok=True)
state.touch()
if os.environ["RANK"] == "0" and not has_begun and "fail" in overrides:
    raise ValueError("sample 17 is empty")
"""
# As in docs/own-programs.md.
IN_RUN = "hydra.run.dir=${oc.env:MUSTER_RUN_DIR}/hydra/${oc.env:RANK}"
LOCAL = ["--launcher", "local", "--workers", "manual", "--nodes", "2"]


@pytest.fixture
def stamping_project(tmp_path: Path) -> Path:
    return write(tmp_path / "project", {"train.py": STAMPS})


def logs(folder: Path) -> dict[str, str]:
    """Return what each program has written into its own folder."""
    paths = sorted(folder.rglob("train.log"))
    return {path.parent.relative_to(folder).as_posix(): path.read_text() for path in paths}


def test_each_rank_would_stamp_a_folder_of_its_own(stamping_project):
    run_well(*LOCAL, "--", "train.py", "lr=1", cwd=stamping_project)
    assert len(logs(stamping_project / "outputs")) == 2


def test_all_attempts_of_a_rank_share_one_folder_of_the_run(stamping_project):
    words = ["--max-restarts", "1", "--", "train.py", "lr=1", "fail=once", IN_RUN]
    run_well(*LOCAL, *words, cwd=stamping_project)
    (run_dir,) = (stamping_project / "logs").iterdir()
    found = logs(stamping_project)
    assert [*found] == [f"logs/{run_dir.name}/hydra/{rank}" for rank in (0, 1)]
    assert found[f"logs/{run_dir.name}/hydra/0"] == "attempt 0, lr 1\nattempt 1, lr 1\n"


def test_a_sweep_gives_each_run_its_folders(stamping_project):
    words = ["--name", "all", "--over", "lr=1,2", "--", "train.py", "lr={lr}", IN_RUN]
    code, out, err = sweep(stamping_project, *LOCAL, *words)
    assert code == 0, out + err
    runs = stamping_project / "logs" / "sweeps" / "all" / "runs"
    assert logs(stamping_project / "logs") == {
        f"sweeps/all/runs/train-lr-{lr}/hydra/{rank}": f"attempt 0, lr {lr}\n"
        for lr in "12"
        for rank in "01"
    }
    launch = json.loads((runs / "train-lr-2" / "launch.json").read_text())
    assert "lr=2" in launch["command"] and "--lr" not in launch["command"]
