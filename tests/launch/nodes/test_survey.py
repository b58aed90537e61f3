"""Real probes on this machine are asked for what a module's functions return there."""

import sys
from pathlib import Path

import psutil
import pytest
import vermin

from launch.nodes import network_probe, node_facts, remote_probe, survey
from launch.nodes.survey import Survey, Transport, facts_request, here
from tests.launch.submit import wait_until


def spell(asked):
    return "x" * asked["length"]


def fail(asked):
    raise KeyError(asked["node"])


def pid(asked):
    import os

    return os.getpid()


def test_an_answer_longer_than_srun_passes_on_at_once_comes_whole():
    with Survey(here(2)) as survey:
        answers = survey.ask(spell, length=5000)
    assert [answers[i].value for i in (0, 1)] == ["x" * 5000] * 2


def test_what_fails_on_a_node_is_named_and_the_next_question_is_answered():
    with Survey(here(2)) as survey:
        addresses = {"0": "127.0.0.1", "1": "192.0.2.1"}
        answers = survey.ask(network_probe.listen, addresses=addresses)
        assert answers.keys() == {0}
        (line,) = survey.silent(answers).values()
        assert (
            line.startswith("node1: its Python could not report on the node: ") and "assign" in line
        )
        assert survey.ask(fail) == {}
        assert survey.silent({})[0] == "node0: its Python could not report on the node: '0'"
        assert survey.ask(spell, length=1)[1].value == "x"


def test_one_probe_answers_all_and_ends_with_the_survey():
    with Survey(here(1)) as survey:
        first, second = (survey.ask(pid)[0].value for _ in range(2))
        assert first == second
    assert wait_until(lambda: not Path(f"/proc/{first}").exists())


def test_a_node_that_is_silent_does_not_hold_those_that_are_asked_for():
    well = here(2)
    transport = Transport(well.names, [well.commands[0], ["sleep", "10000"]], well.explain)
    with Survey(transport) as survey:
        assert survey.ask(spell, [0], length=1).keys() == {0}
        answers = survey.ask(spell, timeout_s=5, length=1)
        assert answers.keys() == {0}
        assert survey.silent(answers)[1].startswith("node1: no answer within 90 s; is it over")


def test_a_checkout_that_cannot_be_written_is_seen_by_this_machine(tmp_path, monkeypatch):
    checkout, temporary = tmp_path / "checkout", tmp_path / "tmp"
    checkout.mkdir()
    temporary.mkdir()
    (checkout / "logs").touch()  # where a folder is to be: it cannot be made, not even by root
    monkeypatch.setattr(survey, "REPOSITORY", checkout)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with facts_request() as request, Survey(here(1)) as asked:
        ((probe,), _) = (list(one.values()) for one in asked.probes(request))
    assert probe["shared"] and probe["folder"] == str(checkout)
    assert not list(temporary.iterdir())


def test_a_folder_that_was_named_is_meant_also_where_this_one_is_seen(tmp_path):
    with Survey(here(1)) as survey:
        with facts_request() as request:
            (usual,), _ = (list(one.values()) for one in survey.probes(request))
        with facts_request(str(tmp_path / "own")) as request:
            (named,), _ = (list(one.values()) for one in survey.probes(request))
    assert usual["shared"] and usual["folder"] == request["here"]
    assert not named["shared"] and named["folder"] == str(tmp_path / "own")
    assert usual["code"] == node_facts.code_hash(request["here"]) and named["code"] is None


@pytest.mark.parametrize("module", [remote_probe, node_facts, network_probe])
def test_nothing_that_is_sent_to_a_node_is_newer_than_python_3_8(module):
    visitor = vermin.visit(Path(module.__file__).read_text())
    assert visitor.minimum_versions()[1] <= (3, 8), f"vermin -vvv {module.__file__} says where"


def test_an_older_python_is_told_in_one_line():
    older = survey.LOAD.replace("sys.version_info", "(3, 6)")
    names, explain = here(1).names, here(1).explain
    with Survey(Transport(names, [[sys.executable, "-c", older]], explain)) as asked_nodes:
        _, silent = asked_nodes.probes({})
    assert "python3 is older than 3.8 there" in silent[0]


def test_addresses_are_those_of_the_machine_with_their_interfaces():
    with facts_request(disks={"data": Path("/nowhere/data")}) as request:
        found = node_facts.describe({"request": request})
    own = {(one["name"], one["address"]) for one in found["interfaces"]}
    assert ("lo", "127.0.0.1") in own
    assert own <= {(n, a.address) for n, all_ in psutil.net_if_addrs().items() for a in all_}
    first = found["interfaces"][0]
    assert ":" not in first["address"] and first["state"]
    assert not found["disks"]["data"]["exists"] and found["disks"]["data"]["free_bytes"] > 0


def test_a_folder_is_claimed_once_and_not_where_it_holds_something_else(tmp_path):
    new = {"folders": {"0": str(tmp_path / "new")}, "tokens": {"0": "-a", "1": "-b"}}
    with Survey(here(1)) as asked_nodes:
        assert asked_nodes.ask(node_facts.claim, **new)[0].value == {}
        assert asked_nodes.ask(node_facts.claimed_by, **new)[0].value == ["0"]
        full = {"folders": {"0": str(tmp_path)}, "tokens": {"0": "-a"}}
        assert asked_nodes.ask(node_facts.claim, **full)[0].value == {"foreign": ["new"]}
    assert wait_until(lambda: [p.name for p in (tmp_path / "new").iterdir()] == [node_facts.MARKER])
