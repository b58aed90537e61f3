"""A leader in a job: one srun starts its agents, which connect to it; no Slurm is used here."""

import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from configs.settings.launch import PortRange
from launch.agent import led_run
from launch.in_job import run_job
from launch.in_job.job_nodes import JobNodes, _with_addresses
from launch.in_job.run_job import Notice
from launch.leading import leader
from launch.leading.leader import conclude
from launch.nodes.channel import Channel
from launch.nodes.messages import Assign, ChosenPort, Connected, Listening
from launch.runs import run_record
from launch.slurm import controller, node_health
from launch.slurm.current_job import CurrentJob
from launch.spec import Facts, LaunchSpec, Program
from muster import run_files
from muster.checkout import CHECKOUT
from muster.errors import MusterError
from muster.writing import read_json
from tests.commands import begin, ended
from tests.launch import pretended
from tests.launch.submit import wait_until
from tests.written import executable, write

# Like srun, it starts a task on each node and tells it its place.
SRUN = """
for ((first = 1; first <= $#; first++)); do
    [[ ${!first} == */python* ]] && break
    [[ ${!first} == --nodelist=* ]] && IFS=, read -ra hosts <<< "${!first#*=}"
done
for rank in "${!hosts[@]}"; do
    [[ -v KILLED && ${hosts[rank]} == node1 ]] && mkdir "$KILLED" 2> /dev/null && eval "$KILL"
    SLURM_PROCID=$rank SLURM_STEP_NUM_NODES=2 SLURMD_NODENAME=${hosts[rank]} \\
        SLURM_SRUN_COMM_HOST=127.0.0.1 "${@:$first}" &
done
wait
"""


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """Two nodes of a job whose srun is a script."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(srun: str = SRUN, **more) -> JobNodes:
        executable(tmp_path / "srun", f"#!/bin/bash\n{srun}\n")
        executable(tmp_path / "scontrol", "#!/bin/sh\nexit 1\n")
        return job_nodes(**more)

    return make


def job_nodes(counts=(1, 1), env=None, network="127.0.0.0/8", **more) -> JobNodes:
    job = {"nproc": counts, "network": network, "master_port": None, "exclude": "auto"}
    env = {**os.environ, "SLURM_JOB_ID": "12"} if env is None else env
    current = CurrentJob(job_id="12", name="12", num_nodes=2, cluster="here", env=env)
    vars(current)["nodes"] = ["node0", "node1"]  # otherwise Slurm would be asked for them
    return JobNodes(current, job, sys.executable, **more)


def spec_of(folder: Path, *argv: str, **more) -> LaunchSpec:
    program = Program(("--exec", *argv), cwd=str(folder))
    run_dir = folder / "run"
    run_dir.mkdir(exist_ok=True)
    return LaunchSpec("run", run_dir, program, **{"workers": "manual", "join_s": 300.0, **more})


def below() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def lead(nodes: JobNodes, spec: LaunchSpec, world_size: int = 2) -> int:
    job = nodes.launch(spec, nodes.probe())
    assert (job.job_id, job.cluster) == ("12", "here")
    return conclude(job, world_size, spec)


def test_the_agents_of_a_step_come_to_their_leader(nodes, tmp_path, monkeypatch, capsys):
    """Each agent counts its GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    spec, before = spec_of(tmp_path, "sh", "-c", "echo $RANK of $WORLD_SIZE"), len(below())
    assert lead(nodes(counts=["gpu", "gpu"]), spec, 4) == 0
    outputs = sorted((tmp_path / "run" / "workers").glob("*.out"))
    assert [path.read_text() for path in outputs] == [f"{rank} of 4\n" for rank in range(4)]
    wait_until(lambda: len(below()) <= before)
    assert "0 of 4" in capsys.readouterr().out
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(MusterError, match="node0: --nproc-per-node gpu, "):
        lead(nodes(counts=["gpu", "gpu"]), spec)


def test_agents_hear_their_leader_while_it_waits_for_slurm_s_answer(nodes, tmp_path, monkeypatch):
    beats, beat = [], Channel.beat

    def counted(channel):
        beats.append(channel)
        beat(channel)

    def slow_squeue(job_id, env):
        before = len(beats)
        wait_until(lambda: len(beats) >= before + 4)

    monkeypatch.setattr(Channel, "beat", counted)
    monkeypatch.setattr(controller, "end_unix_s", slow_squeue)
    assert lead(nodes(), spec_of(tmp_path, "true")) == 0


def test_program_that_catches_sigterm_saves_before_the_time_of_its_job_is_up(
    nodes, tmp_path, monkeypatch
):
    monkeypatch.setattr(controller, "end_unix_s", lambda job_id, env: time.time() + 300)
    # the notice comes once both ranks catch SIGTERM
    ready = [tmp_path / f"ready-{rank}" for rank in (0, 1)]
    made = nodes(is_nearly_over=lambda: all(path.exists() for path in ready))
    script = "trap 'touch saved-$RANK; exit' TERM; touch ready-$RANK; while :; do sleep 0.1; done"
    spec = spec_of(tmp_path, "sh", "-c", script, stop_grace_s=300.0)
    assert lead(made, spec) == 128 + signal.SIGTERM
    message = run_record.read_end(spec.run_dir)["message"]
    assert message.endswith("its job has nearly reached its time limit")
    assert all((tmp_path / f"saved-{rank}").exists() for rank in (0, 1))


def test_secrets_are_read_from_their_file_and_not_sent(nodes, tmp_path, monkeypatch):
    spec = spec_of(tmp_path, "sh", "-c", "echo $KEY", secrets={"KEY": "hidden"})
    run_job.write_spec(spec, {})
    here, sent = nodes(), []
    real = Channel.send

    def send(channel, message):
        sent.append(message)
        real(channel, message)

    monkeypatch.setattr(Channel, "send", send)
    assert lead(here, spec) == 0
    assert (tmp_path / "run" / "workers" / "rank_00001.out").read_text() == "hidden\n"
    assigned = [message.assignment for message in sent if isinstance(message, Assign)]
    assert len(assigned) == 2 and not any(b"hidden" in each for each in assigned)


# written in one go: a reader that looks between two lines would see only the first
OWN_WORDS = (
    r"printf 'srun: error: node1: task 1: Exited with exit code 1\nerror: node1 has no address\n'"
)
NO_STEP = "Unable to create step for job 12: Invalid partition"


BROKEN_STEPS = [
    (f"echo 'srun: error: {NO_STEP}'", f"^{NO_STEP}$"),
    ("exit 3", "^srun ended with exit code 3; see "),
    (f"{OWN_WORDS}; exec sleep 100", "^node1 has no address$"),
]


@pytest.mark.parametrize(("srun", "message"), BROKEN_STEPS)
def test_a_step_that_does_not_begin_is_said_and_ended(nodes, tmp_path, srun, message):
    before = len(below())
    started = nodes(srun)
    with pytest.raises(MusterError, match=message):
        started.launch(spec_of(tmp_path, "true"), started.probe())
    wait_until(lambda: len(below()) <= before)


# A signal kills the agent of node1, or srun, before that agent has connected.
KILLED_EARLY = {
    "node1": "echo 'srun: error: node1: task 1: Killed' >&2; continue",
    "node0": "echo 'srun: error: node[0-1]: tasks 0-1: Killed' >&2; kill -KILL $!; break",
    "srun": "kill -KILL $! $$",
}


@pytest.mark.parametrize(
    "killed", ["node1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("node0", "srun"))]
)
def test_node_lost_before_its_assignment_is_started_again(nodes, tmp_path, capsys, killed):
    env = {"KILLED": str(tmp_path / "killed"), "KILL": KILLED_EARLY[killed]}
    made = nodes(env={**os.environ, "SLURM_JOB_ID": "12", **env})
    spec = spec_of(tmp_path, "true", max_restarts=1)
    assert leader.lead(made, spec, made.probe()) == 0, capsys.readouterr()
    (earlier,) = run_files.attempt_folders(spec.run_dir).values()
    end = run_record.read_end(earlier)
    assert end["cause"] == "node_lost"
    printed = capsys.readouterr().err
    if killed == "srun":
        assert "note: srun was killed by SIGKILL\n" in printed
    else:
        assert end["message"].startswith(f"error: lost contact with {killed}")


@pytest.mark.parametrize("cores", [[], ["4"]])
def test_a_step_has_the_cores_of_its_job_and_ends_nobody(cores):
    """srun takes one core per task where it is told so, whatever the job has."""
    env = dict.fromkeys(["SLURM_CPUS_PER_TASK"] * len(cores), "4")
    asked = job_nodes(env=env).current.command(["a", "b"], ["python"], "muster")
    assert [word for word in asked if "cpus" in word] == [f"--cpus-per-task={n}" for n in cores]
    for word in ("--nodelist=a,b", "--ntasks-per-node=1", "--overlap", "--kill-on-bad-exit=0"):
        assert word in asked


def test_the_leader_listens_within_the_range_of_ports(nodes, tmp_path):
    here = nodes("exec sleep 100")
    facts = here.probe()
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        spec = spec_of(tmp_path, "true", ports=PortRange(port, port), join_s=1.0)
        with pytest.raises(MusterError, match="no port "):
            here.launch(spec, facts)
    with pytest.raises(MusterError, match=r"still missing: node0, node1 \(of 2\); see sinfo"):
        here.launch(spec, facts)


def test_half_of_a_short_job_is_its_notice(nodes, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr("launch.in_job.run_job.time", SimpleNamespace(time=lambda: now_s[0]))
    monkeypatch.setattr("launch.in_job.run_job.running_s", lambda: now_s[0])
    notice, late = Notice(160.0), Notice(10_000.0)
    now_s[0] = 129.0
    assert not notice.has_come()
    now_s[0] = 131.0
    assert notice.has_come()
    assert not late.has_come()
    os.kill(os.getpid(), signal.SIGUSR2)
    wait_until(late.has_come)


def test_a_restart_avoids_a_node_that_was_the_cause_twice(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(node_health, "silent_nodes", lambda hosts, env: [])
    record = {"cluster": "here", "node": "node1", "run_id": "a", "message": "it is gone"}
    failures = 2 * [{**record, "time_unix_s": time.time()}]
    write(tmp_path, {"muster/nodes.json": {"failures": failures}})
    for avoids, least, left in [
        (True, 1, ["node0"]),
        (True, 2, ["node0", "node1"]),  # without node1 there are too few
        (False, 1, ["node0", "node1"]),
    ]:
        made = job_nodes()
        made.least = least
        made.job["exclude"] = "auto" if avoids else None
        first = made.probe()
        assert [node.name for node in first.nodes] == ["node0", "node1"]  # Slurm gave both
        again = made.probe_again(first, lambda node: False)
        assert [node.name for node in again.nodes] == left
    assert capsys.readouterr().err.count("--exclude auto avoids node1") == 1


LINKS = [
    # (peer, own) addresses of each connection, with the leader on the first node or elsewhere
    ([("127.0.1.1", "127.0.1.1"), ("10.0.0.2", "10.0.0.1")], "10.0.0.1"),
    ([("10.0.0.1", "10.0.0.9"), ("10.0.0.2", "10.0.0.9")], "10.0.0.1"),
    ([("10.0.0.1", "10.0.0.1")], "10.0.0.1"),
    ([("fd00::1", "fd00::9"), ("fd00::2", "fd00::9")], "fd00::1"),
]


def with_addresses(links, told=(), count=None, network=None):
    """The facts of a job whose agents connected over these links; `told`: their own addresses."""
    told = told or [peer for peer, _ in links]
    came = [
        (SimpleNamespace(peer_address=peer, own_address=own), SimpleNamespace(address=address))
        for (peer, own), address in zip(links, told, strict=True)
    ]
    nodes = tuple(replace(pretended.FACTS.nodes[0]) for _ in range(count or len(links)))
    return _with_addresses(Facts(nodes, "", network=network), came)


@pytest.mark.parametrize(("links", "address"), LINKS)
def test_the_first_agent_is_met_where_others_reach_its_node(links, address):
    assert with_addresses(links).master_addr == address


ON_NODE_0 = [("127.0.1.1", "127.0.1.1"), ("10.0.0.2", "10.0.0.1"), ("10.0.0.3", "10.0.0.1")]


def test_nodes_that_have_reached_their_leader_on_node_0_do_not_connect_to_it_again():
    facts = with_addresses(ON_NODE_0)
    assert not facts.nodes_connect
    assert [node.address for node in facts.nodes] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


NO_PROOF = {
    "the leader is elsewhere": {"links": [("10.0.0.1", "10.0.0.9"), ("10.0.0.2", "10.0.0.9")]},
    "another network": {"links": ON_NODE_0, "network": "10.1.0.0/16"},
    "two networks": {"links": [*ON_NODE_0[:2], ("10.1.0.3", "10.1.0.1")]},
    "NAT": {"links": ON_NODE_0, "told": ["127.0.1.1", "192.168.0.2", "10.0.0.3"]},
    "a lost node": {"links": ON_NODE_0, "count": 4},
}


@pytest.mark.parametrize("case", NO_PROOF.values(), ids=NO_PROOF)
def test_nodes_connect_where_their_leader_does_not_show_that_they_reach_node_0(case):
    facts = with_addresses(**case)
    assert facts.nodes_connect and {node.address for node in facts.nodes} == {None}


@pytest.mark.parametrize("network", [None, "127.0.0.0/8"])
def test_agents_led_from_node_0_connect_to_it_with_a_network_alone(
    nodes, tmp_path, monkeypatch, network
):
    seen = set()
    check = led_run.check_sender

    def note(message, assignment):
        seen.add(type(message))
        check(message, assignment)

    monkeypatch.setattr(led_run, "check_sender", note)
    assert lead(nodes(network=network), spec_of(tmp_path, "true")) == 0
    assert ChosenPort in seen
    assert ({Listening, Connected} <= seen) == (network is not None)
    agents = [read_json(run_files.AGENT.path(tmp_path / "run", node=node)) for node in (0, 1)]
    assert [agent["address"] for agent in agents] == ["127.0.0.1"] * 2


def test_a_leader_that_is_killed_takes_its_agents_along(tmp_path):
    """The processes that srun started end on their own."""
    script = "from tests.launch.in_job.test_job_nodes import *; killed_leader(Path(sys.argv[1]))"
    begun = tmp_path / "run" / "agents" / "node_00001.json"
    with ended(begin(sys.executable, "-c", script, tmp_path, cwd=CHECKOUT)) as leader:
        wait_until(begun.exists)
        mine = psutil.Process(leader.pid).children(recursive=True)
        assert mine
    wait_until(lambda: not any(one.is_running() for one in mine))


def killed_leader(folder: Path) -> None:
    """Run the leader that is to be killed, with two agents whose workers sleep."""
    executable(folder / "srun", f"#!/bin/bash\n{SRUN}\n")
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    here = job_nodes()
    here.launch(spec_of(folder, "sleep", "1000"), here.probe()).wait()
