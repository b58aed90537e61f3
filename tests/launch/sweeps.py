"""Sweeps of a small program, as a user starts them, and what they leave."""

import json
import subprocess
from pathlib import Path

from tests import commands
from tests.fork_server import interpreter
from tests.launch.submit import SWEEP
from tests.pages import DOCS, commands_of, python_of

LOCAL = ["--launcher", "local", "--workers", "manual"]
# It uses nothing of Muster except folders, and records each start of each combination.
PROGRAM = """
import argparse, json, os, time
from pathlib import Path
parser = argparse.ArgumentParser()
for name in ("lr", "seed", "betas"):
    parser.add_argument("--" + name)
args = parser.parse_args()
with open(Path(__file__).with_name("begun"), "a") as file:
    file.write(f"{args.lr} {args.seed} {args.betas}\\n")
saved = Path(os.environ["MUSTER_CHECKPOINTS"], "state")
step = int(saved.read_text()) if saved.exists() else 0
saved.parent.mkdir(parents=True, exist_ok=True)
saved.write_text(str(step + 1))
if Path("block").exists() and args.seed == "2":
    time.sleep(10_000)
if args.seed == "3" and not Path("repaired").exists():
    raise ValueError("sample 17 is empty")
print("a line that is no JSON {")
print(json.dumps({"loss": float(args.lr) * int(args.seed), "begun": step + 1, "note": "a, b"}))
print("the end")
"""
# The examples of docs/sweeps.md; tests/cluster/test_sweeps.py runs the examples for clusters.
PAGE = DOCS / "sweeps.md"
EXAMPLES = [words[2:] for words in commands_of(PAGE) if words[:2] == ["muster", "sweep"]]
(SHOWN_PROGRAM,) = python_of(PAGE)


def new_project(folder: Path) -> Path:
    root = folder / "project"
    root.mkdir()
    (root / "train.py").write_text(PROGRAM)
    return root


def start(project: Path, *words: str, python: str | None = None) -> subprocess.Popen:
    return commands.begin(python or interpreter(), SWEEP, *words, cwd=project)


def sweep(project: Path, *words: str, python: str | None = None) -> tuple[int, str, str]:
    return commands.finish(start(project, *words, python=python))


def folder_of(project: Path) -> Path:
    (folder,) = (project / "logs" / "sweeps").iterdir()
    return folder


def cells(project: Path) -> dict[str, dict]:
    record = json.loads((folder_of(project) / "sweep.json").read_text())
    return {one["id"]: one for one in record["cells"]}


def begun(project: Path) -> list[str]:
    path = project / "begun"
    return sorted(path.read_text().splitlines()) if path.exists() else []
