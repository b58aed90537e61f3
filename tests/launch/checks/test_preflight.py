"""Real guests on this machine: nodes that answer, do not, or have gone meanwhile."""

import sys

import pytest

from configs.settings.launch import SlurmConfig
from launch.checks import transports
from launch.checks.examination import proof, quick, request_here
from launch.checks.survey import Survey
from launch.checks.transports import Transport


def test_this_machine_as_three_nodes_is_well():
    with proof() as path:
        request = {**request_here(sys.executable), "proof": str(path)}
        found = quick(transports.here(3), request=request)
    assert found.problems == []
    lines = {row.check: row.found[0] for row in found.rows}
    assert lines["every pair"].startswith("6 of 6 ways work")
    assert lines["code"].startswith("the same on all")
    assert lines["clocks"] == "within 1 ms of this machine"


def test_probes_that_are_there_are_not_asked_for_again():
    with proof() as path, Survey(transports.here(1)) as survey:
        from launch.checks.examination import _source
        from launch.nodes import node_facts

        request = {**request_here(sys.executable), "proof": str(path)}
        reply = survey.ask(30, do="describe", request=request, source=_source(node_facts.__file__))
    one = reply[0].reply["probe"]
    found = quick(transports.here(2), probes=[one, one])
    assert found.problems == [] and len(found.rows) == 16


def test_a_node_that_cannot_start_is_named_and_the_others_are_looked_at():
    well = transports.here(3)
    broken = (*well.commands[:2], ("sh", "-c", "cat >/dev/null & echo no python >&2; exit 127"))
    with proof() as path:
        request = {**request_here(sys.executable), "proof": str(path)}
        found = quick(Transport("local", 3, broken, well.explain), request=request)
    assert found.problems == ["reach: node2: python failed: no python; see above"]
    assert {row.check: row.found[0] for row in found.rows}["every pair"].startswith("2 of 2")


def test_an_answer_longer_than_srun_passes_on_at_once_comes_whole():
    with Survey(transports.here(2)) as survey:
        source = "def describe(request): return {'long': 'x' * request['length']}"
        answers = survey.ask(30, do="describe", request={"length": 5000}, source=source)
    assert [answers[i].reply["probe"]["long"] for i in (0, 1)] == ["x" * 5000] * 2


def test_what_fails_on_a_node_is_an_answer():
    with Survey(transports.here(1)) as survey:
        (answer,) = survey.ask(30, do="listen", addresses={"0": "192.0.2.1"}, ports=[]).values()
    assert "assign" in answer.reply["failed"]


def test_srun_is_asked_as_sbatch_would_be():
    config = SlurmConfig(partition="gpu", gpus_per_node="4", slurm="licenses=a\narray=1-3")
    transport = transports.through_slurm(4, config, {"PATH": "/bin", "SLURM_CONF": "/c"})
    (argv,) = transport.commands
    assert {"--nodes=4", "--ntasks-per-node=1", "--partition=gpu", "--gpus-per-node=4"} < set(argv)
    assert "--licenses=a" in argv and not any(word.startswith("--array") for word in argv)
    assert transport.env == {"PATH": "/bin", "SLURM_CONF": "/c"} and "--overlap" not in argv


def test_inside_a_job_the_step_is_part_of_it():
    transport = transports.through_slurm(2, SlurmConfig(partition="gpu"), {"SLURM_JOB_ID": "7"})
    assert "--overlap" in transport.commands[0] and "--partition=gpu" not in transport.commands[0]
    assert transport.env == {"SLURM_JOB_ID": "7"}


@pytest.mark.parametrize("reply", ["srun: error: Unable to allocate resources: busy\nmore", ""])
def test_why_srun_failed_is_reported_once_for_all_nodes(reply):
    transport = transports.through_slurm(2, SlurmConfig(), {})
    assert transport.explain(0, reply) == transport.explain(1, reply)
    assert ("Unable to allocate resources: busy" in transport.explain(0, reply)) == bool(reply)
