"""What is sent to a node before the environment is there runs on RHEL 8's python3, which is 3.6."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import vermin

from launch.checks import remote_probe
from launch.nodes import node_facts, route
from launch.ssh import folder_marker, node_report

SENT = {
    module.__name__: module.__file__ for module in (remote_probe, folder_marker, node_facts, route)
}
PROBE = node_report.request(None, None, Path("/"))


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

    def run(path: str, *words: str, text: str = "") -> list[str]:
        # as they are sent: read from stdin where the script reads nothing from there
        done = subprocess.run(
            [python, path, *words], input=text, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return [line.removeprefix(node_facts.MARK) for line in done.stdout.splitlines()]

    return run


@pytest.mark.parametrize("name", SENT)
def test_nothing_in_it_is_newer_than_python_3_6(name):
    visitor = vermin.visit(Path(SENT[name]).read_text())
    assert visitor.minimum_versions()[1] <= (3, 6), f"vermin -vvv {SENT[name]} says where"


def test_what_is_newer_would_be_found():
    text = "import subprocess\nsubprocess.run([], capture_output=True)"
    assert vermin.visit(text).minimum_versions()[1] == (3, 7)


def test_the_probe(run):
    (line,) = run(node_facts.__file__, json.dumps(PROBE))
    found = json.loads(line)
    assert found["interfaces"][0]["address"] == "127.0.0.1"
    assert found["interfaces"][0]["netmask"] == "255.0.0.0"


def test_the_claim(run, tmp_path):
    (line,) = run(folder_marker.__file__, str(tmp_path / "new"), "abc")
    assert json.loads(line) == {"identity": "abc"}
    (line,) = run(folder_marker.__file__, str(tmp_path / "new"), "other")
    assert json.loads(line) == {"identity": "abc"}
    (line,) = run(folder_marker.__file__, str(tmp_path), "abc")
    assert json.loads(line) == {"foreign": ["new"]}


def test_the_route(run):
    (line,) = run(route.__file__, json.dumps({"to": ["127.0.0.1"]}))
    assert json.loads(line) == {"127.0.0.1": "127.0.0.1"}


def test_the_guest_in_every_question(run):
    source = Path(node_facts.__file__).read_text()
    asked = [
        {"do": "describe", "request": PROBE, "source": source},
        {"do": "time"},
        {"do": "listen", "addresses": {"0": "127.0.0.1"}, "ports": [1]},
        {"do": "connect", "servers": {"1": ["127.0.0.1", 1]}, "patience_s": 1},
    ]
    lines = [node_facts.MARK + json.dumps({**one, "number": at}) for at, one in enumerate(asked)]
    parts = list(map(json.loads, run(remote_probe.__file__, "0", text="\n".join(lines) + "\n")))
    assert sum(not one["more"] for one in parts) == 4
    text = "".join(one["part"] for one in parts)
    assert '"failed"' not in text and '"connection refused"' in text
