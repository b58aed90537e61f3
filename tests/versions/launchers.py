"""A user's program under each launcher, on the Python of an environment: a line of JSON.

tests/cluster/boxed.sh .venv/bin/python -m tests.versions.launchers PYTHON FOLDER     (as root)
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster import ways
from tests.cluster.testbeds import Cluster, bring_up, take_down
from tests.launch.submit import SUBMIT
from tests.train.workers import losses, read_json

PROGRAM = Path(__file__).with_name("program.py")
NODES, LIMIT_S = 2, 600


def main(python: str, folder: Path) -> None:
    cluster = bring_up("--nodes", str(NODES))
    local = [sys.executable, SUBMIT, "--launcher", "local", "--nodes", str(NODES)]
    launchers = {
        "local": local,
        "local, one import": [*local, "--workers", "preload"],
        "ssh": ways.ssh(cluster, NODES),
        "Slurm": ways.slurm(cluster, NODES),
    }
    try:
        found = {
            name: ended(cluster, [*words, "--python", python], folder / f"run{number}")
            for number, (name, words) in enumerate(launchers.items())
        }
        print(json.dumps(found))
    finally:
        take_down()


def ended(cluster: Cluster, words: list[str], project: Path) -> dict[str, Any]:
    """Run the program; return its results, or how the run failed."""
    project.mkdir()
    shutil.copy(PROGRAM, project / "train.py")
    found = project / "found.json"
    run = ways.start(cluster, [*words, "--", "train.py", str(found)], project)
    try:
        code, out, err = ways.finish(run, LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"problem": f"not over after {LIMIT_S} s"}
    if code:
        return {"problem": f"exit code {code}: {(err or out)[-1500:]}"}
    runs = [path.parent for path in project.glob("logs/*/metrics")]
    return {**read_json(found), "records": [losses(one) for one in runs]}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
