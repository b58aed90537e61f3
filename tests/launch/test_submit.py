"""`launch/submit.py`: what it would run, what it refuses, and how it ends in each case."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from muster.errors import STOPPED
from tests.commands import call
from tests.fork_server import interpreter
from tests.launch.submit import (
    ENDLESS,
    QUICK,
    SUBMIT,
    alive,
    run_well,
    start,
    submit,
    wait_until,
    worker,
)
from tests.required import AS_ANY_USER
from tests.written import write


def test_four_pretend_nodes_train_together(tmp_path):
    out = run_well("--nodes", "4", *QUICK, "--logs-dir", str(tmp_path))
    (run_dir,) = tmp_path.iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-synthetic-ddp-4x1", run_dir.name)
    assert out.startswith(
        f"run {run_dir.name}: 4 simulated nodes x 1 worker on this machine, "
        f"synthetic, ddp -> {run_dir}\n"
    )
    assert "step 5  loss" in out and "epoch 1" in out and "seconds per iteration" in out
    assert json.loads((run_dir / "summary.json").read_text())["world_size"] == 4
    plan = json.loads((run_dir / "launch.json").read_text())["nodes"]
    assert [node["node_rank"] for node in plan] == [0, 1, 2, 3]
    assert len(list((run_dir / "workers").glob("rank_0000[0-3].out"))) == 4
    assert (run_dir / "config.yaml").exists() and (run_dir / "agents" / "node_00003.log").exists()
    assert alive(tmp_path) == []


def test_several_workers_per_node_by_the_planned_lines(tmp_path):
    """The line from --dry-run can be pasted on each node, with its rank; a run starts the same."""
    flags = ["--nodes", "2", "--nproc-per-node", "2", *QUICK, "--sync", "gather_scatter"]
    flags += ["--logs-dir", str(tmp_path), "--run-id", "pasted"]
    line, comment = run_well(*flags, "--dry-run").splitlines()
    assert list(tmp_path.iterdir()) == []
    assert comment == "# the same on the other node, with --node-rank 1"
    assert shlex.split(line)[0] == "cd" and " --node-rank 0 " in line
    lines = [line, line.replace(" --node-rank 0 ", " --node-rank 1 ")]
    shells = [subprocess.Popen(["bash", "-c", line], cwd="/") for line in lines]
    assert [shell.wait(timeout=300) for shell in shells] == [0, 0]
    summary = json.loads((tmp_path / "pasted" / "summary.json").read_text())
    assert summary["world_size"] == 4 and summary["sync"] == "gather_scatter"


def test_a_dry_run_says_first_what_would_happen(tmp_path):
    (tmp_path / "train.py").touch()
    words = ["--nodes", "8", "--logs-dir", str(tmp_path / "logs"), "--run-id", "planned"]
    words += ["--launcher", "local", "--dry-run", "--", "train.py"]
    done = call(sys.executable, SUBMIT, *words, cwd=tmp_path)
    pairs = dict(re.split(": +", line, maxsplit=1) for line in done.stderr.splitlines())
    assert pairs | {"python": ""} == {
        "dry run": "8 simulated nodes x 1 worker on this machine, train.py",
        "start": "--launcher local, --workers torchrun",
        "python": "",
        "network": "127.0.0.1",
        "run folder": f"{tmp_path}/logs/planned",
    }
    command, comment = done.stdout.splitlines()
    assert " --node-rank 0 " in command
    assert comment == "# the same on the other 7 nodes, with --node-rank 1 to 7"


def test_config_that_is_a_pipe_is_read_once(tmp_path):
    command = shlex.join([sys.executable, SUBMIT, "--launcher", "local", "--dry-run"])
    piped = f"--config <(echo 'nodes: 3') --logs-dir {tmp_path}"
    for program, title in (("--task synthetic", "synthetic, ddp"), ("-- true", "true")):
        done = call("bash", "-c", f"{command} {piped} {program}")
        assert f"dry run:    3 simulated nodes x 1 worker on this machine, {title}" in done.stderr


def test_hostile_text_arrives_as_text(tmp_path):
    text = "a b'c\"$(touch pwned)`id`;&\\"
    words = shlex.split(run_well(*QUICK, "--data-dir", text, "--dry-run", cwd=tmp_path))
    of_torchrun = str(tmp_path / text).replace("$", "$$")  # it replaces $$ by $
    assert f"--data-dir={of_torchrun}" in words
    assert list(tmp_path.iterdir()) == []


def test_wrong_flag_is_refused_before_a_run_folder_is_made(tmp_path):
    """The whole output and the exit code; programs/test_command_line.py tests each refusal."""
    flags = ["--nodes", "0", "--lr", "-1", "--logs-dir", str(tmp_path)]
    code, out, err = submit("--task", "synthetic", *flags)
    assert code == 2 and "error: --nodes must be at least 1 (got 0)\n" in err
    assert all(line.startswith("error: ") for line in err.splitlines())
    assert out == "" and list(tmp_path.iterdir()) == []


HERE = ["--launcher", "local"]
SSH = ["--launcher", "ssh", "--hosts"]
# Flags and variables with a path in a folder that may not be entered: LOCKED/...
IN_LOCKED_FOLDER = {
    "script": ([*HERE, "--", "LOCKED/x.py"], {}),
    "VIRTUAL_ENV": ([*HERE, "--", "x.py"], {"VIRTUAL_ENV": "LOCKED/env"}),
    "program": ([*HERE, "--", "LOCKED/x"], {}),
    "folder": ([*HERE, "--", "LOCKED/app/"], {}),
    "prologue": ([*HERE, "--prologue", "LOCKED/x.sh", "--", "x.py"], {}),
    "env_file": ([*HERE, "--env-file", "LOCKED/x.env", "--", "x.py"], {}),
    "container": ([*HERE, "--container", "LOCKED/x.sif", "--", "x.py"], {}),
    "logs_dir": ([*HERE, "--logs-dir", "LOCKED/logs", "--", "x.py"], {}),
    "config": ([*HERE, "--config", "LOCKED/x.yaml", "--", "x.py"], {}),
    "python": ([*HERE, "--python", "LOCKED/env/bin/python", "--", "x.py"], {}),
    "send": ([*HERE, "--send", "LOCKED/data", "--", "x.py"], {}),
    "resume": ([*HERE, "--task", "synthetic", "--resume", "LOCKED/run"], {}),
    "model": ([*HERE, "--task", "quickstart", "--model", "LOCKED/model"], {}),
    "metrics": ([*HERE, "--task", "quickstart", "--metrics", "LOCKED/mine.py"], {}),
    "hosts": ([*SSH, "LOCKED/hosts.txt", "--", "x.py"], {}),
    "ssh_config": ([*SSH, "node0", "--ssh-config", "LOCKED/config", "--", "x.py"], {}),
    "CONDA_PREFIX": ([*HERE, "--", "x.py"], {"CONDA_PREFIX": "LOCKED/env"}),
    "muster.toml": ([*HERE, "--on", "x", "--", "x.py"], {"XDG_CONFIG_HOME": "LOCKED"}),
}


@pytest.mark.parametrize(
    "case",
    [name if name in ("script", "VIRTUAL_ENV") else pytest.param(name, marks=pytest.mark.slow)
     for name in IN_LOCKED_FOLDER],
)  # fmt: skip
def test_path_in_a_locked_folder_is_refused(tmp_path, case):
    """As in a colleague's home, or after `su` while an environment is active."""
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    write(tmp_path, {"x.py": ""})
    flags, variables = IN_LOCKED_FOLDER[case]
    words = [word.replace("LOCKED", str(locked)) for word in flags]
    env = {name: value.replace("LOCKED", str(locked)) for name, value in variables.items()}
    done = call(*AS_ANY_USER, sys.executable, SUBMIT, *words, cwd=tmp_path, env=env)
    assert done.returncode == 2
    error, *tip = done.stderr.splitlines()
    assert len(tip) <= 1 and str(locked) in error and "permission denied" in error.lower()


def test_a_run_folder_in_use_is_refused(tmp_path):
    write(tmp_path, {"mine/thesis.txt": "precious"})
    code, _, err = submit(*QUICK, "--logs-dir", str(tmp_path), "--run-id", "mine")
    assert code == 2 and "is not empty\ntip: use --overwrite or another --run-id" in err
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "thesis.txt"]


def test_second_ctrl_c_waits_for_no_worker(tmp_path):
    script = "trap '' TERM; touch $MUSTER_RUN_DIR/ready; while :; do sleep 1; done"
    flags = ["--launcher", "local", "--workers", "manual", "--logs-dir", str(tmp_path)]
    process = start(*flags, "--stop-grace-s", "10000", "--run-id", "deaf", "--", "sh", "-c", script)
    wait_until((tmp_path / "deaf" / "ready").exists)
    process.send_signal(signal.SIGINT)
    assert any("10000 s" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert alive(tmp_path) == []


@pytest.mark.slow
def test_nohup_holds_and_a_second_ctrl_c_waits_for_nobody(tmp_path):
    flags = [*ENDLESS, "--logs-dir", str(tmp_path), "--run-id", "stubborn"]
    process = start(*flags, "--stop-grace-s", "10000", before=["nohup"])
    lines = tmp_path / "stubborn" / "metrics" / "rank_00000.jsonl"
    wait_until(lambda: lines.exists() and lines.stat().st_size > 0)
    size_bytes = lines.stat().st_size
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: lines.stat().st_size > size_bytes + 50_000)  # it trains on
    held = worker(process, 0)
    reasons = Path(held.environ()["MUSTER_STOPPABLE"])
    held.suspend()  # so that it cannot heed SIGTERM
    process.send_signal(signal.SIGINT)
    wait_until(lambda: any(path.read_text() for path in reasons.iterdir()))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert alive(tmp_path) == []


@pytest.mark.parametrize("more", [[], pytest.param(["--json"], marks=pytest.mark.slow)])
def test_a_run_that_nobody_watches_any_more_ends(tmp_path, more):
    """`python launch/submit.py ... | head -1`"""
    flags = [*ENDLESS, "--logs-dir", str(tmp_path), "--run-id", "unseen", *more]
    process = start(*flags, python=interpreter())
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    # before or after its first step
    assert process.wait(timeout=300) in (128 + signal.SIGPIPE, STOPPED)
    assert "Traceback" not in err and "stopped" in err.splitlines()[-1]
    assert alive(tmp_path) == []


@pytest.mark.parametrize(
    "words",
    [
        [SUBMIT],
        [CHECKOUT / "train" / "run_glue.py"],
        [CHECKOUT / "muster" / "run_module.py", "launch.programs.shown_settings"],
        [CHECKOUT / "muster" / "run_module.py", "train.report"],
    ],
)
def test_without_the_environment_it_says_what_to_do(words):
    bare = [Path(sys.executable).resolve(), "-I", "-S", *words, "--nodes", "4"]
    done = call(*bare, cwd="/")
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(r"error: .* has no .+\ntip: (activate .+|install): .+\n", done.stderr)


def test_help_shows_what_holds_for_every_program():
    def shown(*flags: str) -> str:
        done = call(sys.executable, SUBMIT, *flags, env={"COLUMNS": "80"})
        assert done.returncode == 0, done.stderr
        return done.stdout

    text = shown("--help")
    assert text.startswith("usage: python ") and len(text.splitlines()) <= 135
    assert "--nodes" in text and "--env-file" in text and "--run-id" in text
    assert "--help-all" in text and "--batch-size" not in text
    assert "--batch-size" in shown("--help-all") and "--nodes" in shown("--help-all")


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["-h"], 0), ([], 2), (["-x"], 2)])
def test_the_shell_script_says_how_it_is_used(words, code):
    done = call(CHECKOUT / "launch" / "ssh.sh", *words)
    assert done.returncode == code
    assert (done.stderr if code else done.stdout).startswith("usage: launch/ssh.sh HOSTS ")


@pytest.mark.needs("git")
def test_output_files_of_jobs_are_ignored_by_git(tmp_path):
    names = ["muster-12.out", "muster-sweep-12_3.out"]  # --output of slurm/*.sh
    shutil.copy(CHECKOUT / ".gitignore", tmp_path)
    assert call("git", "init", "-q", cwd=tmp_path).returncode == 0
    assert call("git", "check-ignore", *names, cwd=tmp_path).stdout.split() == names


PROBE = """
import os, runpy, sys
sys.argv.pop(0)
sys.path.insert(0, "")
try: runpy.run_path(sys.argv[0], run_name="__main__")
finally: os._exit(42 if {"torch", "transformers"} & sys.modules.keys() else 0)
"""


@pytest.mark.parametrize("script", [SUBMIT, "train/worker.py", "train/run_glue.py"])
def test_help_needs_no_torch(script):
    assert call(sys.executable, "-c", PROBE, script, "--help", cwd=CHECKOUT).returncode == 0


@pytest.mark.parametrize(
    ("words", "is_said"),
    [([], True), (["--sync", "ddp"], False), (["--", "ls"], False), (["--quiet"], False)],
)
def test_a_forgotten_program_is_said(tmp_path, words, is_said):
    """If nothing on the command line says what to run, the trainer runs its own task."""
    flags = ["--launcher", "local", "--dry-run", "--logs-dir", str(tmp_path)]
    done = call(sys.executable, SUBMIT, *flags, *words, cwd=tmp_path)
    note = "Muster's own task quickstart\n"
    assert done.returncode == 0 and (note in done.stderr) == is_said, done.stderr
