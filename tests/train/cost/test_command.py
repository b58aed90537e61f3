"""`python -m train.cost` prints the table and leaves prediction.json beside the run."""

import json
import os
import subprocess
import sys

import pytest

from tests.train.cost import made
from tests.train.workers import REPOSITORY

pytestmark = pytest.mark.slow  # each starts a Python


def cost(*argv: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "train.cost", *map(str, argv)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": "160"},
        check=False,
    )


@pytest.fixture
def bench(tmp_path):
    path = tmp_path / "collectives.json"
    path.write_text(json.dumps(made.bench()))
    return path


def test_a_run_is_predicted_beside_what_it_did(tmp_path, bench):
    run_dir = made.run(tmp_path / "run", "all_reduce", 4)
    done = cost(run_dir, "--collectives", bench, "--workers", "8,64")
    assert done.returncode == 0, done.stderr
    assert "gather_scatter" in done.stdout and "Assumed:" in done.stdout
    lines = json.loads((run_dir / "prediction.json").read_text())
    steps = lines["seconds_per_iteration"]
    assert set(steps["all_reduce"]) == {"4", "8", "64"}
    assert steps["all_reduce"]["4"]["measured_s"] == pytest.approx(0.631)
    assert steps["ddp"]["64"]["measured_s"] is None and steps["ddp"]["64"]["predicted_s"] > 0
    assert lines["sync_seconds"]["all_reduce"]["4"]["measured_s"] == pytest.approx(0.5)
    link = lines["fit"]["links"]["all_reduce"]
    assert link["bytes_per_s"] == pytest.approx(117e6) and link["points"] == 9
    assert lines["words"] and lines["assumptions"]


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["nothing-here"], "no run with two steps"),
        (["run", "--collectives", "missing.json"], "missing.json: No such file"),
        (["run", "--collectives", "run/config.yaml"], "config.yaml: not JSON"),
        (["run", "--workers", "8,many"], "--workers '8,many': use numbers"),
        (["run", "--workers", "0"], "--workers '0': use numbers"),
        (["run", "--link-mbit", "-1"], "--link-mbit must be a number above 0"),
    ],
)
def test_mistakes_are_told_in_a_line(tmp_path, bench, argv, what):
    made.run(tmp_path / "run", "all_reduce", 4)
    words = [tmp_path / word if "run" in word or "here" in word else word for word in argv]
    given = [] if "--collectives" in argv else ["--collectives", bench]
    done = cost(*words, *given)
    assert done.returncode == 2 and what in done.stderr and "Traceback" not in done.stderr


def test_no_torch_is_imported():
    code = "import sys, train.cost.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0
