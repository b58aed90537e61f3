"""This worker's place among the others, read once from its launcher's variables or from flags."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from muster.errors import UsageError, refuse
from muster.rank_variables import torchrun_variables

MIN_PORT, MAX_PORT = 1024, 65535  # only root may listen below 1024


def _number_of(variable: str, default: int) -> Any:
    """A field that `from_env` reads from `variable`."""
    return field(default=default, metadata={"variable": variable})


@dataclass(frozen=True, kw_only=True)
class World:
    """One worker's place; the names are torchrun's, and `node_rank` is its GROUP_RANK."""

    rank: int = _number_of("RANK", 0)
    world_size: int = _number_of("WORLD_SIZE", 1)
    local_rank: int = _number_of("LOCAL_RANK", 0)
    local_world_size: int = _number_of("LOCAL_WORLD_SIZE", 1)
    node_rank: int = _number_of("GROUP_RANK", 0)
    num_nodes: int = _number_of("GROUP_WORLD_SIZE", 1)
    master_addr: str = ""
    master_port: int = _number_of("MASTER_PORT", 0)
    host: str = ""
    run_id: str | None = None  # the launcher's, if it gave one
    attempt: int = _number_of("TORCHELASTIC_RESTART_COUNT", 0)  # how often the group was restarted
    agent_store: bool = False  # torchrun's agent, not rank 0, serves the store on master_port
    store_secret: str = field(default="", repr=False)  # of the attempt, from its agents
    is_led: bool = False  # an agent finds the cause if another worker is lost

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints and saves."""
        return self.rank == 0

    @classmethod
    def find(
        cls,
        env: Mapping[str, str],
        *,
        rank: int | None = None,
        world_size: int | None = None,
        master_ip: str | None = None,
        master_port: int | None = None,
    ) -> "World":
        """The world in the flags, else the one in the environment, else a single process.

        If mpirun, srun or a user has given this process its rank, flags may add the rest.

        Raises:
            UsageError: flags or environment are incomplete, or they contradict each other.
        """
        if rank == -1 or world_size == 1:
            return cls(host=socket.gethostname())
        is_agents = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        is_alone = world_size is None and master_ip is None
        if is_agents and is_alone and env.get("LOCAL_RANK") == str(rank):
            rank = None  # torch.distributed.launch gives each process its local rank as a flag, too
        typed_settings = {
            "--rank": (rank, "this worker's number, from 0"),
            "--world-size": (world_size, "the number of workers"),
            "--master-ip": (master_ip, "the address of rank 0"),
        }
        missing = {
            flag: meaning for flag, (value, meaning) in typed_settings.items() if value is None
        }
        address = {"MASTER_ADDR": master_ip, "MASTER_PORT": master_port}
        given = {name: str(value) for name, value in address.items() if value is not None}
        if not missing:
            return cls.from_env({"RANK": str(rank), "WORLD_SIZE": str(world_size), **given})
        typed = len(missing) < len(typed_settings)
        world = cls.from_env({**env, **given})
        if (typed and world.world_size == 1) or (is_agents and (typed or given)):
            refuse(
                (
                    f"{flag} is missing"
                    f"\ntip: to start workers by hand, set it on each node to {meaning}"
                )
                for flag, meaning in missing.items()
            )
        if world.world_size == 1 and master_port is not None:
            raise UsageError(
                f"--master-port {master_port} has no effect, because this is the only process"
                "\ntip: leave it out, or add --rank, --world-size and --master-ip"
            )
        flags = {"--rank": (rank, world.rank), "--world-size": (world_size, world.world_size)}
        refuse(
            f"{flag} is {asked}, but the launcher of this process has set it to {from_launcher}"
            f"\ntip: leave {flag} out, or give all of --rank, --world-size and --master-ip"
            for flag, (asked, from_launcher) in flags.items()
            if asked not in (None, from_launcher)
        )
        return world

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "World":
        """The world in the variables of torchrun, srun, mpirun, flags or a script.

        Raises:
            UsageError: a variable is missing or not a number, or RANK is not below WORLD_SIZE.
        """
        variables_of_torchrun = torchrun_variables(env)
        if not variables_of_torchrun:
            return cls(host=socket.gethostname())
        texts = {"TORCHELASTIC_RESTART_COUNT": "0", **env, **variables_of_torchrun}
        variables = {variable.name: variable.metadata.get("variable") for variable in fields(cls)}
        numbers = {
            name: _number(variable, texts[variable])
            for name, variable in variables.items()
            if variable
        }
        world = cls(
            **numbers,
            master_addr=variables_of_torchrun.get("MASTER_ADDR", ""),
            host=socket.gethostname(),
            run_id=_chosen(env.get("TORCHELASTIC_RUN_ID", "none")),
            agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            store_secret=env.get("MUSTER_STORE_SECRET", ""),
            is_led="MUSTER_AGENT_PID" in env,
        )
        if world.rank >= world.world_size:
            raise UsageError(
                f"environment: RANK {world.rank} must be below WORLD_SIZE {world.world_size}, as "
                "ranks are counted from 0"
            )
        port = world.master_port
        if world.world_size > 1 and not MIN_PORT <= port <= MAX_PORT:
            raise UsageError(
                f"environment: MASTER_PORT must be between {MIN_PORT} and {MAX_PORT} (got {port})"
            )
        return world


def _chosen(run_id: str) -> str | None:
    """The run id if somebody chose it; torchrun sets "none", or a UUID with --standalone."""
    made_up = run_id == "none" or re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", run_id)
    return None if made_up else run_id


def _number(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise UsageError(f"environment: {name}={text!r} must be a whole number, at least 0")
    return value
