"""A run is asked through its folder; earlier requests and invalid lines are ignored."""

from concurrent.futures import ThreadPoolExecutor

from launch.agent.inspection import questions
from launch.runs import log_tail
from launch.runs.log_tail import Request, RequestFile
from muster.run_files import REQUESTS
from muster.writing import write_text
from tests.launch.submit import wait_until


def test_a_question_comes_once_and_its_answer_back(tmp_path, monkeypatch):
    monkeypatch.setattr(log_tail, "REQUESTS_READ_EVERY_S", 0.0)
    write_text(REQUESTS.path(tmp_path), '{"id": "old", "ask": "stacks"}\n')
    requests, came = RequestFile(tmp_path), []
    assert requests.new() == []
    assert questions.ask(tmp_path, 0.2, ask="stacks") is None
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(questions.ask, tmp_path, 300, ask="stacks")
        wait_until(lambda: came.extend(requests.new()) or len(came) == 2)
        assert [one.ask for one in came] == ["stacks", "stacks"] and requests.new() == []
        requests.answer(came[0].id, sentences=[])  # the process that asked has gone
        requests.answer(came[1].id, sentences=["all is well"])
        assert asked.result() == {"sentences": ["all is well"]}
    assert len(list((tmp_path / "requests").iterdir())) == 1


def test_line_that_is_no_request_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(log_tail, "REQUESTS_READ_EVERY_S", 0.0)
    requests = RequestFile(tmp_path)
    with REQUESTS.path(tmp_path).open("ab", buffering=0) as file:
        file.write(b'not json\n["a"]\n{"id": "../x"}\n{"id": 3}\n{"id": "a1", "as')
        assert requests.new() == []
        file.write(b'k": "stacks"}\n')
        assert requests.new() == [Request("a1", "stacks")]
