"""The ssh launcher reads hosts for any user, even one for whom this machine has no name."""

import pytest

from configs.settings.launch import ONE_PER_GPU, LaunchConfig, Sending
from configs.settings.remote import Settings, SlurmConfig, SshConfig
from launch.launchers.ssh import Ssh
from muster.errors import MusterError
from tests.launch.planned import node


@pytest.mark.parametrize(
    ("workers", "given"), [((ONE_PER_GPU,), "--nproc-per-node gpu"), (None, "slots=gpu")]
)
def test_node_without_gpu_is_refused_by_what_was_given(workers, given):
    launch = LaunchConfig(launcher="ssh", hosts="node0", nproc_per_node=workers)
    launcher = Ssh(Settings(launch, SshConfig(), SlurmConfig()))
    nodes = [node("node0", 0, "10.10.1.1"), node("node1", 2, "10.10.1.2")]
    with pytest.raises(MusterError, match=f"^node0: {given}, .*GPU"):
        launcher._refuse_without_gpus(nodes)


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_name_has_hosts(tmp_path):
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("node0\nnode1 slots=2\n")
    launch = LaunchConfig(launcher="ssh", hosts=str(hosts))
    launcher = Ssh(Settings(launch, SshConfig(), SlurmConfig()))
    assert [spec.name for spec in launcher.specs()] == ["node0", "node1"]


def test_rsync_that_this_machine_lacks_is_named_with_other_problems(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    launch = LaunchConfig(launcher="ssh", send=Sending("data"))
    problems = [*Ssh(Settings(launch, SshConfig(), SlurmConfig())).problems()]
    assert len(problems) == 2 and problems[1] == (
        "--send needs rsync, which is not installed here\ntip: run: sudo apt-get install rsync"
    )
