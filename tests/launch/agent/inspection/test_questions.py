"""A run is asked through its folder: what was asked before is not taken, nor what is no request."""

from launch.agent.inspection.questions import Asking
from launch.runs import log_tail
from launch.runs.log_tail import RequestFile
from muster.run_files import REQUESTS


def test_a_question_comes_once_and_its_answer_back(tmp_path, monkeypatch):
    monkeypatch.setattr(log_tail, "LOOK_S", 0.0)
    (tmp_path / "requests").mkdir()
    REQUESTS.path(tmp_path).write_text('{"id": "old", "ask": "stacks"}\n')
    requests = RequestFile(tmp_path)
    assert requests.new() == []
    asking = Asking(tmp_path, ask="stacks")
    (request,) = requests.new()
    assert request["ask"] == "stacks" and requests.new() == []
    assert asking.wait(0.2) is None
    requests.answer(request["id"], sentences=["all is well"])
    assert asking.wait(300) == {"sentences": ["all is well"]}
    asking.close()
    requests.answer(request["id"], sentences=[])  # whoever asked has gone
    assert len(list((tmp_path / "requests").iterdir())) == 1


def test_what_is_no_request_is_passed_over_and_half_a_line_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(log_tail, "LOOK_S", 0.0)
    requests = RequestFile(tmp_path)
    with REQUESTS.path(tmp_path).open("ab", buffering=0) as file:
        file.write(b'not json\n["a"]\n{"id": "../x"}\n{"id": 3}\n{"id": "a1", "as')
        assert requests.new() == []
        file.write(b'k": "stacks"}\n')
        assert requests.new() == [{"id": "a1", "ask": "stacks"}]
