"""The cause of a failed run is told from its echoes."""

import json

import pytest

from launch.failure import explain


@pytest.fixture
def ended(tmp_path):
    def write(rank, cause, time_unix_s, message="", traceback="", code=1):
        folder = tmp_path / "exits"
        folder.mkdir(exist_ok=True)
        record = {"rank": rank, "host": f"node{rank}", "cause": cause, "message": message}
        record |= {"traceback": traceback, "time_unix_s": time_unix_s, "code": code}
        (folder / f"rank_{rank:05d}.json").write_text(json.dumps(record))
        return tmp_path

    return write


def test_all_done_is_no_failure(ended):
    ended(0, "done", 1.0, code=0)
    assert explain(ended(1, "done", 2.0, code=0), 2) is None


def test_a_missing_rank_is_a_failure_even_if_the_others_are_done(ended):
    failure = explain(ended(0, "done", 1.0, code=0), 2)
    assert failure.code == 137 and "rank 1 ended without a word" in failure.text


def test_the_first_by_time_of_those_with_a_cause_of_their_own(ended):
    ended(0, "lost_peer", 1.0, "lost another worker")
    ended(1, "crash", 3.0, "boom", "Traceback: late\n")
    ended(2, "signal", 0.5, "stopped by SIGTERM")
    failure = explain(ended(3, "crash", 2.0, "bang", "Traceback: early\n"), 4)
    assert failure.text.splitlines()[-1] == "Traceback: early"
    assert "rank 3 on node3 failed first" in failure.text and "late" not in failure.text


def test_a_refusal_is_its_own_lines_and_code(ended):
    failure = explain(ended(0, "refused", 1.0, "train.tsv:7: bad\ndev.tsv: empty", code=2), 1)
    assert failure.code == 2
    assert failure.text == "error: train.tsv:7: bad\nerror: dev.tsv: empty"


def test_without_any_record_the_agents_log_is_shown(tmp_path):
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "node_00000.log").write_text("one\ntwo: No module named train\n")
    failure = explain(tmp_path, 2)
    assert failure.code == 1 and failure.text.endswith("No module named train")
