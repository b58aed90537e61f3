import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.report.folders import make_run, step, traffic
from train.report import live
from train.report.data.reader import read_run

REPOSITORY = Path(__file__).resolve().parents[3]


def growing(path, steps, **more):
    rows = {rank: [step(n, rank) for n in range(1, steps + 1)] for rank in (0, 1)}
    return make_run(path, rows=rows, end={}, **more)


def test_a_finished_run_is_shown_once(tmp_path, capsys):
    path = make_run(tmp_path / "run", max_steps=20, more=[traffic(1)])
    assert live.watch(path) == 0
    message = capsys.readouterr().out
    assert "run: done" in message
    assert "step 20 of 20" in message
    assert "105.0 MB sent" in message


def test_a_failed_run_is_shown_with_its_message(tmp_path):
    end = {"code": 1, "message": "rank 1 crashed", "time_unix_s": 1.0}
    run = read_run(make_run(tmp_path / "run", end=end))
    assert run.over
    assert "failed, exit code 1: rank 1 crashed" in live.headlines(run, live.rank_rows(run))[0]


def test_a_half_written_line_is_read_when_it_is_whole(tmp_path):
    path = growing(tmp_path / "run", 5, max_steps=25)
    run, line = read_run(path), json.dumps(step(6)) + "\n"
    with (path / "metrics" / "rank_00000.jsonl").open("a") as file:
        file.write(line[:50])
        file.flush()
        run.read_on()
        assert run.first_rank("step")[-1]["step"] == 5
        file.write(line[50:])
        file.flush()
        run.read_on()
    assert run.first_rank("step")[-1]["step"] == 6
    assert not run.over
    assert live.remaining_s(run) == pytest.approx(19 * 0.1)


def test_the_end_is_known_after_the_first_epoch(tmp_path):
    assert live.total_steps(read_run(growing(tmp_path / "a", 9))) is None
    assert live.total_steps(read_run(growing(tmp_path / "b", 11))) == 20


def test_a_new_attempt_is_read_from_its_beginning(tmp_path):
    path = growing(tmp_path / "run", 9)
    run = read_run(path)
    file = path / "metrics" / "rank_00000.jsonl"
    file.write_text(json.dumps(step(4)) + "\n")
    run.read_on()
    assert [row["step"] for row in run.first_rank("step")] == [4]


def test_the_rank_that_others_wait_for_is_shown(tmp_path):
    rows = {0: [step(n) for n in range(1, 9)]}
    rows[1] = [step(n, 1, forward_s=0.2) for n in range(1, 9)]
    run = read_run(make_run(tmp_path / "run", sync="all_reduce", rows=rows, end={}))
    assert any("wait for rank 1" in line for line in live.headlines(run, live.rank_rows(run)))


def test_ctrl_c_leaves_with_0(tmp_path):
    path = growing(tmp_path / "run", 5)
    started = subprocess.Popen(
        [sys.executable, "-u", "-m", "train.report", "--live", str(path)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"FORCE_COLOR": "1", "TERM": "xterm"},
        # A shell starts what it runs in the background with Ctrl-C ignored: so may be this test.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert any("running" in line for line in started.stdout)
    started.send_signal(signal.SIGINT)
    message, _ = started.communicate(timeout=300)
    assert started.returncode == 0
    assert "the run goes on" in message
