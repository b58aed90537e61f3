"""Hosts are read for whoever calls it, also for a user whom this machine has no name for."""

import pytest

from configs.settings.launch import LaunchConfig
from configs.settings.remote import Settings, SlurmConfig, SshConfig
from launch.launchers.ssh import Ssh


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_name_has_hosts(tmp_path):
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("node0\nnode1 slots=2\n")
    launch = LaunchConfig(launcher="ssh", hosts=str(hosts))
    launcher = Ssh(Settings(launch, SshConfig(), SlurmConfig()))
    assert [spec.name for spec in launcher.specs()] == ["node0", "node1"]
