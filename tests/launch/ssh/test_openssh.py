"""OpenSSH is asked itself what it makes of the options that it is given."""

import pytest

from configs.settings.launch import SshConfig
from launch.spec import NodeSpec
from launch.ssh import openssh
from tests.commands import call


@pytest.fixture
def settings(tmp_path):
    """What OpenSSH would do for a node, where the user's own configuration says `text`."""

    def ask(text: str, node: NodeSpec) -> dict[str, str]:
        path = tmp_path / "ssh_config"
        path.write_text(text)
        argv = [*openssh.client(node, SshConfig(ssh_config=path)), "-G", "--", node.host]
        return dict(line.partition(" ")[::2] for line in call(*argv).stdout.splitlines())

    return ask


@pytest.mark.needs("ssh")
def test_a_run_never_opens_the_connection_that_other_logins_share(settings):
    """A master that a run opened ended with it, and the user's other logins with that."""
    config = "Host *\n ControlMaster auto\n ControlPath ~/.ssh/%C\n ControlPersist 10m\n"
    found = settings(config, NodeSpec("node0", 1))
    assert found["controlmaster"] == "false" and found["controlpersist"] == "no"
    assert "controlpath" in found  # one that is open already may spare a second factor
