"""Real probes are asked what they find on this machine."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import vermin
from msgspec import Raw

from launch.nodes import channel, node_data, node_facts, resources, survey
from launch.nodes.answers import answer_to
from launch.nodes.messages import OddMessage
from launch.nodes.survey import (
    CONNECTION_BROKE,
    ConnectionBroken,
    Survey,
    Transport,
    facts_request,
    local_transport,
)
from muster.terminal import in_one_line
from tests.launch.submit import wait_until
from tests.written import write

SENT = (resources, node_data, node_facts)
GLOBAL = r"^(?:def |class |(?=[A-Z_]+ = ))(\w+)"


@pytest.mark.needs("ip")
def test_an_answer_longer_than_srun_passes_on_at_once_comes_whole():
    with facts_request("/nowhere" + 1000 * "/x") as request, Survey(local_transport(2)) as survey:
        probes, silent = survey.probes(request)
    assert silent == {}
    assert [probes[i].folder for i in (0, 1)] == ["/nowhere" + 1000 * "/x"] * 2


def test_failed_question_is_named_and_the_next_is_answered(monkeypatch):
    monkeypatch.setattr("launch.nodes.survey.NODE_LEAVES_SURVEY_S", 300.0)
    with Survey(local_transport(2)) as survey:
        addresses = {"0": "127.0.0.1", "1": "192.0.2.1"}
        answers = survey.ask(node_facts.listen, addresses=addresses)
        assert answers.keys() == {0}
        ((node, line),) = survey.silent(answers).items()
        assert node == 1 and re.match(r"node1: its Python could not .*assign", line)
        assert survey.ask(node_facts.listen) == {}
        assert survey.silent({})[0] == "node0: its Python could not examine the node: 'addresses'"
        assert survey.ask(node_facts.tell_time).keys() == {0, 1}
        processes = [process for process, _, _ in survey._starts]
    assert [process.returncode for process in processes] == [0, 0]  # they end with the survey


def test_silent_node_does_not_delay_answers_of_others():
    well = local_transport(2)
    transport = Transport(well.names, [well.commands[0], ["sleep", "10000"]], well.explain)
    with Survey(transport) as survey:
        assert survey.ask(node_facts.tell_time, [0]).keys() == {0}
        wait_until(lambda: survey.ask(node_facts.tell_time, timeout_s=1).keys() == {0})
        assert survey.silent([0])[1].startswith("node1: no answer within 1 s; is it over")


def test_survey_sleeps_while_nodes_are_silent(monkeypatch, tmp_path):
    """Even if a node does not read its input, which is more than a pipe holds."""
    turns = []

    def receive(self):
        turns.append(self)
        return receive_all(self)

    receive_all = channel.Channel.receive
    monkeypatch.setattr(channel.Channel, "receive", receive)
    monkeypatch.setattr(survey, "BEAT_EVERY_S", 300.0)
    monkeypatch.setattr(
        node_data, "__file__", str(write(tmp_path, {"long.py": 200_000 * "#"}) / "long.py")
    )
    silent = ["sleep", "10000"]
    two = Transport(["node0", "node1"], [silent, silent], local_transport(2).explain)
    with Survey(two, node_data) as asked:
        assert asked.ask(node_facts.tell_time, timeout_s=1.0) == {}
        assert all(channel.waiting_bytes for _, channel, _ in asked._starts)
    assert len(turns) <= 10  # for two channels


@pytest.mark.needs("ip")
def test_a_checkout_that_cannot_be_written_is_seen_by_this_machine(tmp_path, monkeypatch):
    checkout, temporary = tmp_path / "checkout", tmp_path / "tmp"
    temporary.mkdir()
    write(checkout, {"logs": ""})  # in place of a folder, which not even root can create
    monkeypatch.setattr(survey, "CHECKOUT", checkout)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with facts_request() as request, Survey(local_transport(1)) as asked:
        ((probe,), _) = (list(one.values()) for one in asked.probes(request))
    assert probe.shared and probe.folder == str(checkout)
    assert not list(temporary.iterdir())


@pytest.mark.needs("ip")
def test_named_node_folder_is_used_even_where_checkout_is_shared(tmp_path):
    with Survey(local_transport(1)) as survey:
        with facts_request() as request:
            (usual,), _ = (list(one.values()) for one in survey.probes(request))
        with facts_request(str(tmp_path / "own")) as request:
            (named,), _ = (list(one.values()) for one in survey.probes(request))
    assert usual.shared and usual.folder == request["here"]
    assert not named.shared and named.folder == str(tmp_path / "own")


@pytest.fixture
def installation(tmp_path, monkeypatch) -> Path:
    """A checkout's folders as pip installs them, used from a project elsewhere."""
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    write(packages, {"muster-0.3.0.dist-info/RECORD": "a list", "muster/_checkout/setup.cfg": ""})
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(survey, "IS_INSTALLED", True)
    monkeypatch.setattr("muster.checkout.IS_INSTALLED", True)
    monkeypatch.setattr("muster.checkout.CHECKOUT", packages / "muster" / "_checkout")
    monkeypatch.setattr(survey, "CHECKOUT", packages / "muster" / "_checkout")
    return packages / "muster" / "_checkout"


@pytest.mark.needs("ip")
def test_node_uses_equal_installation_at_the_same_place(installation, tmp_path):
    with facts_request() as request, Survey(local_transport(1)) as asked:
        ((probe,), _) = (list(one.values()) for one in asked.probes(request))
        assert probe.shared and probe.folder == str(installation)
        assert probe.python == sys.executable
        write(tmp_path, {"lib/python3.12/site-packages/muster-0.3.0.dist-info/RECORD": "another"})
        ((probe,), _) = (list(one.values()) for one in asked.probes(request))
    assert not probe.shared and probe.folder == str(Path.home() / survey.FOLDER)
    assert not [*installation.glob("logs")] and not [*(tmp_path / "project").iterdir()]


def test_where_some_nodes_see_an_installation_all_get_their_own(installation):
    """A run on both kinds of nodes would have its folder in the installation."""

    def answer(shared):
        return SimpleNamespace(value=SimpleNamespace(shared=shared))

    class Mixed(Survey):
        def __init__(self) -> None:
            self.markers: list[str] = []
            self.transport = local_transport(2)

        def ask(self, function, *_, request, **__):
            self.markers.append(request["disk_marker"])
            return {0: answer(bool(request["disk_marker"])), 1: answer(shared=False)}

        def silent(self, answers):
            return {}

    mixed = Mixed()
    with facts_request() as request:
        probes, _ = mixed.probes(request)
    assert [probe.shared for probe in probes.values()] == [False, False]
    assert mixed.markers == [request["disk_marker"], ""]


def test_probe_of_a_node_runs_on_python_3_8():
    config = vermin.Config()
    config.set_eval_annotations(False)
    for module in SENT:
        visitor = vermin.visit(Path(module.__file__).read_text(), config)
        assert visitor.minimum_versions()[1] <= (3, 8), f"vermin -vvv {module.__file__} says where"


def test_probe_is_one_text_without_a_name_of_two_meanings():
    texts = [Path(module.__file__).read_text() for module in SENT]
    names = [name for text in texts for name in re.findall(GLOBAL, text, re.MULTILINE)]
    assert sorted(names) == sorted(set(names))
    with Survey(local_transport(1), node_data) as asked:
        found = asked.ask(resources.node_resources)[0].value
        assert asked.ask(node_facts.tell_time)
    assert found.cores == resources.usable_cores()


def test_an_older_python_is_told_in_one_line():
    older = survey.LOAD.replace("sys.version_info", "(3, 6)")
    names, explain = local_transport(1).names, local_transport(1).explain
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


# A node that answers the first question with `lines`, then waits for the end of the survey.
SAYS = """
import json, sys
stdin = sys.stdin.buffer
stdin.read(int(stdin.readline()))
lines, asked = {lines} * {times}, json.loads(stdin.readline()[len("muster:"):])
for line in lines:
    sys.stdout.write(line.replace("NUMBER", str(asked["number"])) + "\\n")
sys.stdout.flush()
stdin.read()
"""


def with_one_that_says(*lines, times=1):
    """Two nodes, the second of which runs `SAYS`."""
    well = local_transport(2)
    says = [sys.executable, "-c", SAYS.format(lines=lines, times=times)]
    return Transport(well.names, [well.commands[0], says], well.explain, renames=False)


def part(text, node="1", more=False, **others):
    return "muster:" + json.dumps({"node": node, "part": text, "more": more, **others})


def reply(value, to="NUMBER"):
    return f'{{"to": {to}, "value": {json.dumps(value)}}}'


def test_a_node_answers_for_itself_only():
    """Whatever number it gives, its connection identifies it."""
    with Survey(with_one_that_says(part(reply(7.0), node="0"))) as survey:
        answers = survey.ask(node_facts.tell_time)
    assert answers[0].value > 1e9 and answers[1].value == 7.0


ODD = {
    "no part": 'muster:{"node": "1"}',
    "no text": part(7),
    "no end said": part(reply(7.0), more="no"),
    "no JSON": part("{"),
    "nested too deeply": part("[" * 50_000),
    "a list": part("[1]"),
    "no number": part(reply(7.0, to='"1"')),
    "neither value nor failure": part('{"to": NUMBER}'),
    "a failure that is no text": part('{"to": NUMBER, "failed": [1]}'),
    "another value": part(reply("noon")),
    "no finite number": part('{"to": NUMBER, "value": NaN}'),
    "a lone surrogate, and a cursor": part(reply("\ud800\x1b[2J")),
    "a line without end": "x" * 90_000,
}


@pytest.mark.parametrize("line", ODD.values(), ids=ODD)
def test_an_odd_answer_is_its_node_s_silence(line, monkeypatch):
    monkeypatch.setattr("launch.nodes.channel.LINE_BYTES", 50_000)
    with Survey(with_one_that_says(line)) as survey:
        answers = survey.ask(node_facts.tell_time)
        ((node, why),) = survey.silent(answers).items()
        assert survey.ask(node_facts.tell_time).keys() == {0}  # node 1 is no longer waited for
    assert answers.keys() == {0} and node == 1
    assert why.startswith("node1: its answer is not valid: ")
    assert in_one_line(why).isprintable() and len(why) < 1000


def test_an_answer_without_end_is_left(monkeypatch):
    monkeypatch.setattr(survey, "ANSWER_CHARACTERS", 10_000)
    with Survey(with_one_that_says(part("x" * 400, more=True), times=1000)) as asked:
        answers = asked.ask(node_facts.tell_time)
        assert "it does not end: 'xxx" in asked.silent(answers)[1]
        assert not asked._parts


def test_a_probe_that_cannot_start_leaves_none_of_those_before_it(monkeypatch):
    monkeypatch.setattr("launch.nodes.survey.NODE_LEAVES_SURVEY_S", 300.0)  # it is still starting
    well = local_transport(2)
    survey = Survey(Transport(well.names, [well.commands[0], ["/no/such/program"]], well.explain))
    with pytest.raises(FileNotFoundError), survey:
        raise AssertionError("it has begun")
    ((process, channel, errors),) = survey._starts
    assert process.returncode == 0 and channel.ended and errors.closed


def test_probe_that_ignores_sigterm_is_killed(monkeypatch):
    monkeypatch.setattr(survey, "NODE_LEAVES_SURVEY_S", 0.2)
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print('x', flush=True)\nwhile 1: pass"
    one = Transport(["node0"], [[sys.executable, "-c", deaf]], local_transport(1).explain)
    with Survey(one) as asked:
        ((process, channel, _),) = asked._starts
        while not channel.noise and not channel.ended:
            channel.receive()
    assert process.wait(timeout=300) == -9


def in_json(value):
    return Raw(json.dumps(value).encode())


@pytest.mark.needs("ip")
@pytest.mark.parametrize("change", [
    {"host": "../etc"}, {"host": "node\x1b[2J"}, {"gpus": [""] * 5000}, {"folder": 7},
    {"interfaces": [{"name": "eth0", "address": "x", "netmask": "24"}]}, {"versions": "2.6"},
    {"disks": {"logs": {"folder": "/", "exists": True, "free_bytes": "much"}}}, {"more": 1},
    {"shared": "yes"}, {"python": "/usr/bin/python3\n"}, {"folder": "/home/\u202e"},
    {"foreign": ["\ud800"]},
], ids=str)  # fmt: skip
def test_facts_of_another_form_are_no_facts(change):
    with facts_request(disks={"data": Path("/nowhere/data")}) as request:
        facts = node_facts.describe({"request": request})
    assert answer_to(node_facts.describe, in_json(facts)).host == facts["host"]
    with pytest.raises(OddMessage):
        answer_to(node_facts.describe, in_json({**facts, **change}))


@pytest.mark.parametrize("odd", [
    [], [[[0]]], [[], None], [[[]], None], [[["0"]], None], [[[0]], "1"], [[[0]] * 70_000, None],
    [[[-1]], None], [[[0]], -1.5],
], ids=lambda odd: str(odd)[:20])  # fmt: skip
def test_cores_of_another_form_are_no_cores(odd):
    found = resources.node_resources({})
    limited = answer_to(resources.node_resources, in_json({**found, "cores": [[[0, 1]], 1.5]}))
    assert limited.cores == resources.Cores([[0, 1]], 1.5)
    with pytest.raises(OddMessage):
        answer_to(resources.node_resources, in_json({**found, "cores": odd}))


def test_negative_shared_memory_is_no_answer():
    found = {**resources.node_resources({}), "shared_memory": [7, 0]}
    assert answer_to(resources.node_resources, in_json(found)).shared_memory == (7, 0)
    for odd in ([-1, 0], [7, -1]):
        with pytest.raises(OddMessage):
            answer_to(resources.node_resources, in_json({**found, "shared_memory": odd}))


def test_nodes_with_one_connection_answer_by_their_numbers():
    """The nodes of one srun do so; a number that no node has is ignored."""
    lines = [part(reply(3.0), node="7"), part(reply(3.0), node=1), part(reply(4.0), node="0")]
    lines += [part(reply(5.0), node="1")]
    says = [sys.executable, "-c", SAYS.format(lines=lines, times=1)]
    with Survey(Transport(["node0", "node1"], [says], local_transport(2).explain)) as asked:
        answers = asked.ask(node_facts.tell_time)
    assert {node: answer.value for node, answer in answers.items()} == {0: 4.0, 1: 5.0}


def test_output_of_a_failed_probe_moves_no_cursor():
    fails = [
        sys.executable,
        "-c",
        r"import sys; sys.exit('\x1b[2J' + 'no' + 200_000 * ' ' + 'way')",
    ]
    with Survey(Transport(["node0"], [fails], local_transport(1).explain)) as asked:
        _, silent = asked.probes({})
    assert in_one_line(silent[0]).isprintable() and "\\x1b[2Jno" in silent[0]


def test_connection_that_breaks_between_two_questions_is_noticed():
    well = local_transport(1)
    with Survey(replace(well, explain=lambda *_: f"node0: {CONNECTION_BROKE}")) as asked:
        assert asked.ask(node_facts.tell_time)
        asked.refuse_broken([0])
        ((process, _, _),) = asked._starts
        process.kill()
        assert not asked.ask(node_facts.tell_time)
        with pytest.raises(ConnectionBroken, match="node0"):
            asked.refuse_broken([0])
