"""Real probes on this machine are asked for what they find there."""

import re
import sys
from pathlib import Path

import psutil
import pytest
import vermin

from launch.nodes import node_facts, survey
from launch.nodes.survey import Survey, Transport, facts_request, here
from tests.written import write


@pytest.mark.needs("ip")
def test_an_answer_longer_than_srun_passes_on_at_once_comes_whole():
    with facts_request("/nowhere" + 1000 * "/x") as request, Survey(here(2)) as survey:
        probes, silent = survey.probes(request)
    assert silent == {}
    assert [probes[i]["folder"] for i in (0, 1)] == ["/nowhere" + 1000 * "/x"] * 2


def test_what_fails_on_a_node_is_named_and_the_next_question_is_answered():
    with Survey(here(2)) as survey:
        addresses = {"0": "127.0.0.1", "1": "192.0.2.1"}
        answers = survey.ask(node_facts.listen, addresses=addresses)
        assert answers.keys() == {0}
        ((node, line),) = survey.silent(answers).items()
        assert node == 1 and re.match(r"node1: its Python could not report .*assign", line)
        assert survey.ask(node_facts.listen) == {}
        assert survey.silent({})[0] == "node0: its Python could not report on the node: 'addresses'"
        assert survey.ask(node_facts.tell_time).keys() == {0, 1}
        processes = [process for process, _, _ in survey._starts]
    assert [process.returncode for process in processes] == [0, 0]  # they end with the survey


def test_a_node_that_is_silent_does_not_hold_those_that_are_asked_for():
    well = here(2)
    transport = Transport(well.names, [well.commands[0], ["sleep", "10000"]], well.explain)
    with Survey(transport) as survey:
        assert survey.ask(node_facts.tell_time, [0]).keys() == {0}
        answers = survey.ask(node_facts.tell_time, timeout_s=5)
        assert answers.keys() == {0}
        assert survey.silent(answers)[1].startswith("node1: no answer within 90 s; is it over")


@pytest.mark.needs("ip")
def test_a_checkout_that_cannot_be_written_is_seen_by_this_machine(tmp_path, monkeypatch):
    checkout, temporary = tmp_path / "checkout", tmp_path / "tmp"
    temporary.mkdir()
    write(checkout, {"logs": ""})  # where a folder is to be: it cannot be made, not even by root
    monkeypatch.setattr(survey, "REPOSITORY", checkout)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with facts_request() as request, Survey(here(1)) as asked:
        ((probe,), _) = (list(one.values()) for one in asked.probes(request))
    assert probe["shared"] and probe["folder"] == str(checkout)
    assert not list(temporary.iterdir())


@pytest.mark.needs("ip")
def test_a_folder_that_was_named_is_meant_also_where_this_one_is_seen(tmp_path):
    with Survey(here(1)) as survey:
        with facts_request() as request:
            (usual,), _ = (list(one.values()) for one in survey.probes(request))
        with facts_request(str(tmp_path / "own")) as request:
            (named,), _ = (list(one.values()) for one in survey.probes(request))
    assert usual["shared"] and usual["folder"] == request["here"]
    assert not named["shared"] and named["folder"] == str(tmp_path / "own")


def test_nothing_that_is_sent_to_a_node_is_newer_than_python_3_8():
    visitor = vermin.visit(Path(node_facts.__file__).read_text())
    assert visitor.minimum_versions()[1] <= (3, 8), f"vermin -vvv {node_facts.__file__} says where"


def test_an_older_python_is_told_in_one_line():
    older = survey.LOAD.replace("sys.version_info", "(3, 6)")
    names, explain = here(1).names, here(1).explain
    with Survey(Transport(names, [[sys.executable, "-c", older]], explain)) as asked_nodes:
        _, silent = asked_nodes.probes({})
    assert "python3 is older than 3.8 there" in silent[0]


@pytest.mark.needs("ip")
def test_addresses_are_those_of_the_machine_with_their_interfaces():
    with facts_request(disks={"data": Path("/nowhere/data")}) as request:
        found = node_facts.describe({"request": request})
    own = {(one["name"], one["address"]) for one in found["interfaces"]}
    assert ("lo", "127.0.0.1") in own
    assert own <= {(n, a.address) for n, all_ in psutil.net_if_addrs().items() for a in all_}
    first = found["interfaces"][0]
    assert ":" not in first["address"]
    assert not found["disks"]["data"]["exists"] and found["disks"]["data"]["free_bytes"] > 0
