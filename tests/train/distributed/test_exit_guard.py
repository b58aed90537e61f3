"""Our worker reports how it ended, whatever the cause, and no other process does so for it."""

import json
import os

import pytest

from muster.errors import text_of
from muster.worker.lost_peer import CONSEQUENCE
from tests.muster.worker.shims import Mute
from train.distributed.exit_guard import ExitGuard, PeerFailed
from train.distributed.world import World


@pytest.fixture
def guard(tmp_path):
    guard = ExitGuard(World())
    (tmp_path / "exits").mkdir()
    guard.record_in(tmp_path)
    return guard


def record(run_dir):
    return json.loads((run_dir / "exits" / "rank_00000.json").read_text())


def test_error_without_text_is_recorded_as_a_crash(guard, tmp_path):
    with guard:
        raise Mute
    assert guard.code == 1
    end = record(tmp_path)
    assert (end["cause"], end["message"]) == ("crash", f"Mute: {text_of(Mute())}")


@pytest.mark.parametrize("is_led", [False, True])
def test_lost_peer_is_called_a_consequence_under_a_launcher(tmp_path, capsys, is_led):
    with ExitGuard(World(is_led=is_led)) as guard:
        raise PeerFailed("lost rank 1 on a")
    err = capsys.readouterr().err
    assert guard.code == 1 and err.endswith("error: lost rank 1 on a\n")
    assert err.startswith(CONSEQUENCE) == is_led


def test_forked_process_writes_no_exit_record_of_its_rank(guard, tmp_path):
    with guard:
        pid = os.fork()
        if pid == 0:
            try:
                guard.__exit__(KeyError, KeyError("of the forked process"), None)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert not (tmp_path / "exits" / "rank_00000.json").exists()
        raise ValueError("of the worker")
    end = record(tmp_path)
    assert (end["message"], end["pid"]) == ("ValueError: of the worker", os.getpid())
