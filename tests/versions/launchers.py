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
from tests.train.workers import losses

PROGRAM = Path(__file__).with_name("program.py")
NODES, LIMIT_S = 2, 600


def main(python: str, folder: Path) -> None:
    cluster = bring_up("--nodes", str(NODES))
    try:
        print(json.dumps({name: ended(cluster, name, python, folder) for name in LAUNCHERS}))
    finally:
        take_down()


def _local(_: Cluster) -> list[str]:
    return [sys.executable, SUBMIT, "--launcher", "local", "--nodes", str(NODES)]


LAUNCHERS = {
    "local": _local,
    "local, one import": lambda cluster: [*_local(cluster), "--workers", "preload"],
    "ssh": lambda cluster: ways.ssh(cluster, NODES),
    "Slurm": lambda cluster: ways.slurm(cluster, NODES),
}


def ended(cluster: Cluster, name: str, python: str, folder: Path) -> dict[str, Any]:
    """What the program has found, or how the run failed."""
    project = folder / name.replace(", ", "-").replace(" ", "-")
    project.mkdir()
    shutil.copy(PROGRAM, project / "train.py")
    found = project / "found.json"
    argv = [*LAUNCHERS[name](cluster), "--python", python, "--", "train.py", str(found)]
    try:
        code, out, err = ways.finish(ways.start(cluster, argv, project), LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"problem": f"not over after {LIMIT_S} s"}
    if code:
        return {"problem": f"exit code {code}: {(err or out)[-1500:]}"}
    runs = [path for path in (project / "logs").iterdir() if path.is_dir()]
    result: dict[str, Any] = json.loads(found.read_text())
    return {**result, "records": [losses(one) for one in runs if (one / "metrics").is_dir()]}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
