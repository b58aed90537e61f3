"""`python launch/doctor.py` as a user runs it, on this machine."""

import json
import re
import shlex
import sys

import pytest

import launch.doctor
from tests.commands import call, refused
from tests.fork_server import interpreter
from tests.launch.submit import DOCTOR, alive
from tests.written import executable, write


def doctor(*flags, cwd="/"):
    words = [interpreter(), DOCTOR, "--launcher", "local", *flags]
    done = call(*words, cwd=cwd, env={"COLUMNS": "150"})
    return done.returncode, done.stdout, done.stderr


@pytest.mark.needs("ip")
def test_two_pretended_nodes_are_looked_at_and_measured(tmp_path):
    code, out, err = doctor("--nodes", "2", "--logs-dir", str(tmp_path))
    assert code == 0 and err == "", (out, err)
    assert "FAIL" not in out and re.search(r"every pair +ok +2 of 2 connections work", out)
    assert re.search(r"all_reduce +1048576 +262144 +float +sum", out) and "busbw(GB/s)" in out
    assert re.search(r"all pairs reach [\d. to]+ Gbit/s; slowest: node0-node1\n", out)
    assert re.search(r"\n(all ok: \d+ |no failure, but 1 of \d+ )", out)
    (run_dir,) = tmp_path.iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-doctor-2x1", run_dir.name)
    measured = json.loads((run_dir / "network.json").read_text())
    # 1 MiB each way; 16 MiB where that is not too slow
    assert {(one["from"], one["to"]) for one in measured["pairs"]} == {(0, 1), (1, 0)}
    assert json.loads((run_dir / "exit.json").read_text())["code"] == 0
    assert alive(tmp_path) == []


@pytest.mark.needs("ip")
def test_quick_measures_nothing_and_writes_nothing(tmp_path):
    code, out, err = doctor("--quick", "--nodes", "2", "--logs-dir", str(tmp_path))
    assert code == 0 and err == "" and "every pair" in out and "Gbit/s" not in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("ip")
def test_doctor_takes_the_flags_of_a_run(tmp_path):
    flags = ["--quick", "--nodes", "2", "--threads", "1", "--logs-dir", str(tmp_path)]
    code, out, err = doctor(*flags, "--lr", "1e-3", "--max-restarts", "1")
    assert code == 0 and err == "", (out, err)
    first, _, table = out.partition("\n")
    assert first.endswith(": --lr, --max-restarts")
    assert "every pair" in table


@pytest.mark.needs("ip")
def test_doctor_checks_program_and_its_python(tmp_path):
    write(tmp_path, {"train.py": "", "broken.py": "def f(:"})
    bare = executable(tmp_path / "bare", f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    quick = ["--quick", "--backend", "gloo", "--env", "X=1"]
    code, out, _ = doctor(*quick, "--", "python", "train.py", "--lr", "1", cwd=tmp_path)
    assert code == 0 and re.search(r"program +ok +train\.py --lr 1, with \S+python", out)
    assert out.partition("\n")[0].endswith(": --env")
    code, out, _ = doctor(*quick, "--", "broken.py", cwd=tmp_path)
    assert code == 1 and re.search(r"program +FAIL +broken\.py:1: .*invalid syntax", out)
    code, out, _ = doctor(*quick, "--python", bare, "--", "train.py", cwd=tmp_path)
    assert code == 1 and re.search(r"python +FAIL +node0:", out) and "2 checks fail" in out


@pytest.mark.slow
@pytest.mark.needs("ip")
def test_a_measurement_that_fails_is_not_started_again(tmp_path, monkeypatch):
    """--max-restarts applies only to the run itself."""
    specs = []
    monkeypatch.setattr(
        launch.doctor, "lead_or_submit", lambda launcher, spec, *_, **__: specs.append(spec) or 1
    )
    flags = ["--launcher=local", "--nodes=2", f"--logs-dir={tmp_path}", "--max-restarts=2"]
    monkeypatch.setattr(sys, "argv", [DOCTOR, *flags])
    assert launch.doctor.main() == 1
    assert [spec.max_restarts for spec in specs] == [0]


def test_doctor_refuses_what_the_run_would(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for words, message in [
        (["--quick", "--epochs", "2", "--", "train.py"], "--epochs "),
        (["--nproc-per-node", "gpu"], "--nproc-per-node gpu"),
        (["--quick", "--partition", "gpu"], "--partition "),
        (["--dry-run"], "leave out --dry-run"),
    ]:
        assert message in refused(launch.doctor.main, "--launcher", "local", *words)


@pytest.mark.needs("ip")
def test_config_that_is_a_pipe_is_read_once(tmp_path):
    command = shlex.join([sys.executable, DOCTOR, "--quick", "--launcher", "local"])
    piped = f"--config <(echo 'nodes: 3') --logs-dir {tmp_path}"
    done = call("bash", "-c", f"{command} {piped}", env={"COLUMNS": "150"})
    assert "6 of 6 connections work" in done.stdout, done.stdout + done.stderr
