"""OpenSSH itself is asked how it reads the options that it gets."""

import json
import re
import sys

import pytest

from configs.settings.launch import ONE_WORKER
from configs.settings.remote import SshConfig
from launch import submit
from launch.launchers.base import launcher_of
from launch.nodes import node_facts
from launch.nodes.survey import Survey
from launch.programs.command_line import CommandLine
from launch.spec import NodeSpec
from launch.ssh import openssh
from muster.errors import UsageError
from tests.commands import call
from tests.launch.ssh.conftest import READS, TITLE
from tests.launch.submit import SUBMIT
from tests.required import need
from tests.written import write


@pytest.fixture
def settings(tmp_path):
    """A function that returns OpenSSH's settings for a node; `text` is the user's configuration."""

    need("ssh")

    def ask(text: str, node: NodeSpec) -> dict[str, str]:
        path = tmp_path / "ssh_config"
        path.write_text(text)
        argv = [*openssh.client(node, SshConfig(ssh_config=path)), "-G", "--", node.host]
        return dict(line.partition(" ")[::2] for line in call(*argv).stdout.splitlines())

    return ask


def test_a_run_never_opens_the_connection_that_other_logins_share(settings):
    """A master opened by a run would end with the run, and so would the user's other logins."""
    config = "Host *\n ControlMaster auto\n ControlPath ~/.ssh/%C\n ControlPersist 10m\n"
    found = settings(config, NodeSpec("node0", ONE_WORKER))
    assert found["controlmaster"] == "false" and found["controlpersist"] == "no"
    assert "controlpath" in found  # one that is open already may spare a second factor


BY_HAND = """Host *
 RemoteCommand tmux
 RequestTTY force
 SessionType none
 StdinNull yes
 ForkAfterAuthentication yes
 PermitLocalCommand yes
 LocalCommand echo in
 Tunnel yes
 LogLevel {level}
"""


@pytest.mark.parametrize(("level", "ours"), [("QUIET", "INFO"), ("DEBUG3", "INFO"), ("ERROR",) * 2])
def test_settings_for_logins_by_hand_do_not_change_what_is_run(settings, level, ours):
    """ssh would refuse the command, run another one, give it no input, or not say why it failed."""
    after = settings(BY_HAND.format(level=level), NodeSpec("node0", ONE_WORKER))
    left = {after.get(name.lower(), "none") for name in openssh.INTERACTIVE_SETTINGS}
    assert left <= {"none", "no", "false", "default"}
    assert after["permitlocalcommand"] == "no" and after["loglevel"] == ours


def test_an_older_ssh_gets_no_setting_that_it_does_not_know(settings):
    settings("", NodeSpec("older", ONE_WORKER))
    assert not {*openssh.INTERACTIVE_SETTINGS} & {*openssh.host_options("older", unknown="yes")}


@pytest.mark.parametrize("tool", ["ssh", "rsync"])
def test_a_program_that_is_missing_here_is_named(tool, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=f" {tool}, .* apt-get install"):
        if tool == "ssh":
            openssh.client(NodeSpec("without-ssh", ONE_WORKER), SshConfig())
        else:
            openssh.rsync(["ssh"], [], "here/", "node0:there/")


def test_a_start_up_file_that_prints_before_an_answer_changes_nothing(hosts, tmp_path):
    (node,) = hosts("a")
    (tmp_path / "homes" / "a" / ".bashrc").write_text(TITLE)
    with Survey(openssh.transport([node.spec], SshConfig())) as survey:
        answers = survey.ask(node_facts.tell_time)
        assert survey.silent(answers) == {}


def test_a_start_up_file_that_reads_the_input_is_named(hosts, tmp_path):
    (node,) = hosts("a")
    (tmp_path / "homes" / "a" / ".bashrc").write_text(READS)
    with Survey(openssh.transport([node.spec], SshConfig())) as survey:
        silent = survey.silent(survey.ask(node_facts.tell_time))
    assert silent[0].startswith("a: the start-up file")


@pytest.mark.parametrize(
    "text",
    [
        "bash: line 1: rsync: command not found",
        "sh: 1: rsync: not found",
        "fish: Unknown command: rsync",
    ]
    + ["zsh:1: command not found: rsync", "rsync: Command not found."],
)
def test_a_node_without_rsync_is_known_whatever_its_shell_says(text):
    assert openssh.rsync_problem(f"{text}\nrsync: connection unexpectedly closed")
    assert openssh.rsync_problem("rsync: link_stat failed: No such file or directory") is None


@pytest.mark.parametrize(("code", "text", "why"), [
    (255, "Connection to 10.0.0.1 closed by remote host.", ".*lost: Connec"),
    (255, "client_loop: send disconnect: Broken pipe", ".*lost: client_loop"),
    (255, "ssh: connect to host a: Connection refused", "connection refused"),
    (137, "", ".*SIGKILL"),
    (-15, "", ".*SIGTERM"),
    (1, "This account is currently not available.", "permission denied"),
    (1, "ImportError: no json", "its Python .*: ImportError: no json"),
])  # fmt: skip
def test_end_of_ssh_before_an_answer_is_explained(hosts, code, text, why):
    transport = openssh.transport([node.spec for node in hosts("a")], SshConfig())
    assert re.match(f"a: {why}", transport.explain(0, code, text))


BREAKS = """
if [[ -e $HOME/breaks ]]; then
    rm "$HOME/breaks"
    echo "Connection to a closed by remote host." >&2
    exit 255
fi
"""


def test_broken_connection_is_tried_again_as_often_as_a_run(hosts, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(submit, "RESTART_ASKS_NODES_AGAIN_S", 0.0)
    (node,) = hosts("a")
    home = write(tmp_path / "homes" / "a", {".bashrc": BREAKS, "breaks": ""})
    flags = ["--hosts", "a", "--remote-dir", node.repository]
    launcher = launcher_of(CommandLine.parse([*flags, "--", "true"]))
    launcher.checks_nodes = False
    flags += ["--workers", "manual", "--run-id", "run"]
    done = call(sys.executable, SUBMIT, *flags, "--", "true", cwd=home)
    end = json.loads((home / "logs/run/exit.json").read_text())
    assert done.returncode == end["code"] == 1
    assert end["message"].endswith("lost: Connection to a closed by remote host")
    write(home, {"breaks": ""})
    assert submit._ask(launcher, 1).nodes[0].spec == node.spec
    assert "trying the nodes again" in capsys.readouterr().err
