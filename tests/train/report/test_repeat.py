"""The commands that a report and the end of a run print."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from muster.command import command_hint
from tests.commands import call
from tests.train.report.folders import make_run
from train.report.data.subject import read_subject
from train.report.pages import repeat
from train.report.pages.repeat import repeating

MUSTER = Path(sys.executable).with_name("muster")
OLD = "python /x/launch/submit.py --run-id a --logs-dir=/b --overwrite --quiet --resume auto"


@pytest.mark.parametrize(
    ("recorded", "printed"),
    [
        (f"{OLD} --nodes 2", "muster run --nodes 2"),
        ("python submit.py --logs_dir b --resume=c.pt", "muster run --resume=c.pt"),
        (f"{OLD} -- train.py --run-id 'a b'", "muster run -- train.py --run-id 'a b'"),
        ("python study.py --output o a.yaml", "muster study a.yaml --output logs/studies/a-again"),
        (
            "python sweep.py --over a=1 --name=b -- x.py --name c",
            "muster sweep --over a=1 --name again -- x.py --name c",
        ),
        ("python /x/launch/submit.py -- --function /tmp/gone", ""),
        ("python /x/launch/leading/batch_job.py new --nodes 2", ""),
        ("python 'half", ""),
    ],
)
def test_repeating_command_names_no_folder_of_the_old_run(recorded, printed):
    assert repeating(recorded) == printed


def test_run_without_a_recorded_command_is_repeated_from_its_settings(tmp_path):
    folder = make_run(tmp_path / "by hand")
    (folder / "launch.json").unlink()
    subject = read_subject([folder])
    assert repeat.commands(subject) == []
    assert repeat.from_settings(subject) == [
        f"muster run --config {shlex.quote(str(folder / 'config.yaml'))}"
    ]


def test_printed_command_has_full_path_where_path_lacks_muster(monkeypatch):
    monkeypatch.setenv("PATH", str(MUSTER.parent))
    assert command_hint("report", "a b") == "muster report 'a b'"
    monkeypatch.setenv("PATH", "/nowhere")
    assert command_hint("report", "a b") == f"{MUSTER} report 'a b'"


@pytest.mark.slow
@pytest.mark.parametrize("is_users", [True, False])
def test_printed_commands_work(tmp_path, is_users):
    """The command in a run's last line makes its report; the report's commands repeat the run."""
    env = {"PATH": f"{MUSTER.parent}:{os.environ['PATH']}", "XDG_STATE_HOME": str(tmp_path / "s")}
    program = ["--task", "synthetic", "--max-steps", "1", "--evaluate", "never", "--no-save-model"]
    if is_users:
        text = "import muster, torch\nmuster.record(loss=torch.tensor(1.0))\n"
        (tmp_path / "train.py").write_text(text, encoding="utf-8")
        program = ["--", "train.py"]
    logs = tmp_path / "logs"
    words = ["--run-id", "old", "--logs-dir", logs, "--launcher", "local", "--nodes", "1"]
    done = call("muster", "run", *words, *program, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    about, _, last = done.stderr.splitlines()[-1].rpartition(": ")
    assert re.fullmatch(r"done: 1 worker on 1 node, \d+ s", about), about
    assert last == f"muster report {shlex.quote(str(logs / 'old'))}"
    made = call("bash", "-c", last, cwd="/", env=env)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[-1] == f"report: {logs}/old/report/index.html"
    text = (logs / "old" / "report" / "report.md").read_text(encoding="utf-8")
    _, _, after = text.partition("## How to repeat it\n\n```bash\n")
    commands = [line for line in after.partition("```")[0].splitlines() if line[0] != "#"]
    assert len(commands) == 2
    for command in commands:
        line = command if is_users else f"{command} --dry-run"
        ran = call("bash", "-c", line, cwd=tmp_path, env=env)
        assert ran.returncode == 0, (command, ran.stderr)
    if is_users:
        ends = [*tmp_path.glob("logs/*/exit.json")]
        assert len(ends) == 3
