"""A run goes through few files: each is one that whoever reads the code has to open."""

import sys
from pathlib import Path

from muster import run_files
from muster.writing import read_json
from tests.commands import begin, finish
from tests.launch.submit import REPOSITORY

MOST = 47  # launcher and first agent together; they were 67


def traced(folder: Path) -> dict[str, str]:
    """The environment in which a launcher, a leader and agents write down what they enter."""
    (folder / "notes").mkdir()
    tracer = str(REPOSITORY / "tests" / "launch" / "walked")
    return {"PYTHONPATH": tracer, "MUSTER_TEST_WALK": str(folder / "notes")}


def entered(folder: Path, *pids: int) -> list[str]:
    """Our files that these processes have entered."""
    return sorted({line for pid in pids for line in (folder / "notes" / str(pid)).open()})


def test_a_run_of_two_nodes_enters_few_files(tmp_path):
    (tmp_path / "t.py").write_text("print('here')\n")
    command = [sys.executable, str(REPOSITORY / "muster" / "command.py"), "run", "--run-id", "walk"]
    words = ["--nodes", "2", "--workers", "manual", "--", "t.py"]
    process = begin(*command, *words, cwd=tmp_path, env=traced(tmp_path))
    code, out, err = finish(process)
    assert code == 0 and "here" in out, err
    first = read_json(run_files.AGENT.path(tmp_path / "logs" / "walk", node=0))
    files = entered(tmp_path, process.pid, first["pid"])
    assert len(files) <= MOST, f"{len(files)} files:\n{''.join(files)}"
