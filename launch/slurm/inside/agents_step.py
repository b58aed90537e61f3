"""One step of srun starts an agent on each of a job's nodes; each connects to this process.

Nothing is said through srun, whose own answer to a signal is to kill: each agent reads, in a file
of the run folder, at which port its leader listens and by which secret it knows it. That it is
reached at the address that srun itself is reached at, Slurm tells it.
"""

import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from configs.plugins import REPOSITORY
from launch.agent.membership.coordinator import TELL_S
from launch.agent.membership.door import Door, Who, listen
from launch.agent.processes import process_tree
from launch.nodes.channel import AgentProcess, Channel, Heartbeat
from launch.nodes.this_machine import among
from launch.spec import RUN_MODULE, LaunchSpec
from muster import run_files
from muster.errors import MusterError
from muster.writing import write_json, writing

TICK_S = 0.05
STOP_S = 2.0
OPTIONS = (
    "--ntasks-per-node=1",
    "--overlap",  # another step, such as the shell that this is called in, may have the cores
    "--unbuffered",
    # An agent or a node that is gone ends no other: what comes of it is the leader's to say.
    *("--kill-on-bad-exit=0", "--wait=0", "--no-kill"),
)


@dataclass(frozen=True)
class StepRequest:
    """What is asked of srun, and what the agents are asked for as they come."""

    hosts: Sequence[str]  # in Slurm's order
    python: str
    name: str
    env: Mapping[str, str]  # that srun sees
    network: str | None = None  # in which node 0 has an address for the others
    counts_gpus: bool = False

    def argv(self, meeting: Path) -> list[str]:
        """The command line of srun."""
        count = len(self.hosts)
        # srun of Slurm 22.05 and 23.02 does not take this from the job. Where it is not set
        # (--cpus-per-gpu, or nothing), a step has all cores that the job has on each node.
        cores = self.env.get("SLURM_CPUS_PER_TASK")
        return [
            *("srun", f"--nodes={count}", f"--ntasks={count}", *OPTIONS),
            *((f"--cpus-per-task={cores}",) if cores else ()),
            *(f"--nodelist={','.join(self.hosts)}", f"--job-name={self.name}"),
            *(self.python, RUN_MODULE, "launch.slurm.task", str(meeting)),
        ]


def start_agents(request: StepRequest, spec: LaunchSpec) -> list[tuple[AgentProcess, Who]]:
    """An agent on each node, in the order of the hosts; and who each says that it is.

    Raises:
        MusterError: one of them does not come; nothing of the step is left.
    """
    token = token_hex(16)
    door = Door(_server(spec), token, len(request.hosts))
    meeting = run_files.LEADER.path(spec.run_dir, name=token_hex(8))
    log = run_files.AGENT_ERRORS.path(spec.run_dir, node=0)
    about = {"port": door.port, "token": token}
    about |= {"network": request.network, "counts_gpus": request.counts_gpus}
    with writing(log):
        log.parent.mkdir(exist_ok=True)
        write_json(meeting, about, mode=0o600)
        output = log.open("wb")
    with output:
        srun = subprocess.Popen(
            request.argv(meeting),
            cwd=REPOSITORY,
            env=dict(request.env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a terminal's Ctrl-C is for this process to answer
        )
    try:
        return [
            (AgentProcess(channel, srun, token), who)
            for channel, who in _gather(request.hosts, spec, door, lambda: _failure(srun, log))
        ]
    except BaseException:
        process_tree.end_started([srun], STOP_S)
        raise
    finally:
        door.close()
        meeting.unlink(missing_ok=True)


def _gather(
    hosts: Sequence[str], spec: LaunchSpec, door: Door, failure: Callable[[], str | None]
) -> list[tuple[Channel, Who]]:
    """The agents of these hosts, when all have come by the door.

    Raises:
        MusterError: one did not start, or has not come for as long as nodes wait.
    """
    heartbeat, began, is_announced = Heartbeat(), time.monotonic(), False
    came: dict[int, tuple[Channel, Who]] = {}
    try:
        while True:
            for link, who in door.admitted():
                if not 0 <= who.index < len(hosts) or who.index in came:
                    raise MusterError(f"an agent on {who.name} says it is task {who.index}")
                came[who.index] = (link.keep(), who)
                heartbeat.add(link.channel)
            missing = ", ".join(host for at, host in enumerate(hosts) if at not in came)
            if not missing:
                return [came[index] for index in range(len(hosts))]
            if why := failure():
                raise MusterError(why)
            waited_s = time.monotonic() - began
            if waited_s > spec.join_s:
                raise MusterError(
                    f"after {spec.join_s:.0f} s still missing: {missing} of {len(hosts)}; see "
                    "sinfo and squeue --steps"
                )
            if waited_s > TELL_S and not is_announced and not spec.quiet:
                is_announced = True
                print(f"waiting for {missing}", flush=True)
            time.sleep(TICK_S)
    except BaseException:
        for channel, _ in came.values():
            channel.close()
        raise
    finally:
        heartbeat.stop()


def _failure(srun: "subprocess.Popen[bytes]", log: Path) -> str | None:
    """Why an agent will not come any more: in its own words, or else in srun's."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    failed = [line for line in lines if line.startswith("srun: error: ")]
    if not failed and srun.poll() is None:
        return None
    own = [line for line in lines if not line.startswith(("srun: ", "slurmstepd: "))]
    why = [line.removeprefix("srun: ").removeprefix("error: ") for line in own or failed]
    return "\n".join(why) or f"srun ended with exit code {srun.poll()}; see {log}"


def _server(spec: LaunchSpec) -> socket.socket:
    """Of all addresses of this machine: by which of them Slurm reaches it is Slurm's to know.

    Raises:
        MusterError: no port of --port-range is free.
    """
    try:
        return listen("", tuple(among(spec.ports)) if spec.ports else (0,))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise MusterError(
            f"no port that agents could connect to: {why}; choose another --port-range"
        ) from None
