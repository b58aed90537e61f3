"""What is sent to a node before the environment is there runs on RHEL 8's python3, which is 3.6."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import vermin

from launch.nodes import hardware_probe, network_probe, node_facts, remote_probe
from launch.nodes.survey import facts_request

MODULES = (remote_probe, node_facts, network_probe, hardware_probe)
SENT = {module.__name__: module.__file__ for module in MODULES}


def old_python() -> str | None:
    """One of 3.6 that starts: a manager of versions may have but its name on PATH."""
    found = shutil.which("python3.6")
    works = found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0
    return found if works else None


@pytest.fixture
def run():
    python = old_python()
    if python is None:
        pytest.skip("no python3.6 on PATH; vermin has looked at the same files")

    def run(*questions: tuple) -> list:
        """What each function returns, asked one after another of one node with number 0."""
        sent = set()
        lines = []
        for number, (function, asked) in enumerate(questions):
            name = function.__module__
            if name not in sent:
                asked = {**asked, "source": Path(SENT[name]).read_text()}
            sent.add(name)
            whole = {"number": number, "module": name, "function": function.__name__, **asked}
            lines.append(remote_probe.MARK + json.dumps(whole) + "\n")
        done = subprocess.run(
            [python, remote_probe.__file__, "0"],
            input="".join(lines),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        parts = [json.loads(line.partition(":")[2]) for line in done.stdout.splitlines()]
        assert {part["node"] for part in parts} == {"0"}
        text = "".join(part["part"] + "\n" * (not part["more"]) for part in parts)
        replies = list(map(json.loads, text.splitlines()))
        assert [reply["to"] for reply in replies] == list(range(len(questions)))
        return [reply.get("value", reply.get("failed")) for reply in replies]

    return run


@pytest.mark.parametrize("name", SENT)
def test_nothing_in_it_is_newer_than_python_3_6(name):
    visitor = vermin.visit(Path(SENT[name]).read_text())
    assert visitor.minimum_versions()[1] <= (3, 6), f"vermin -vvv {SENT[name]} says where"


def test_what_is_newer_would_be_found():
    text = "import subprocess\nsubprocess.run([], capture_output=True)"
    assert vermin.visit(text).minimum_versions()[1] == (3, 7)


def test_what_the_node_is_like(run):
    with facts_request(port=1) as request:
        (found,) = run((node_facts.describe, {"request": request}))
    assert found["interfaces"][0]["address"] == "127.0.0.1"
    assert found["interfaces"][0]["netmask"] == "255.0.0.0"
    assert found["shared"] and found["folder"] == request["here"]


def test_the_claim(run, tmp_path):
    new = {"folders": {"0": str(tmp_path / "new")}, "tokens": {"0": "-a", "1": "-b"}}
    assert run((node_facts.claim, new), (node_facts.claimed_by, new)) == [{}, ["0"]]
    assert [path.name for path in (tmp_path / "new").iterdir()] == [node_facts.MARKER]
    assert run((node_facts.claim, new)) == [{}]
    full = {"folders": {"0": str(tmp_path)}, "tokens": {"0": "-a"}}
    assert run((node_facts.claim, full)) == [{"foreign": ["new"]}]


def test_the_network(run):
    time_unix_s, routes, port, reached = run(
        (network_probe.tell_time, {}),
        (network_probe.routes, {"to": ["127.0.0.1"]}),
        (network_probe.listen, {"addresses": {"0": "127.0.0.1"}}),
        (network_probe.connect, {"servers": {"1": ["127.0.0.1", 1]}, "patience_s": 1}),
    )
    assert abs(time_unix_s - time.time()) < 60 and port > 0
    assert routes == {"127.0.0.1": "127.0.0.1"}
    assert reached == {"1": ["connection refused", None]}
