"""Who this worker is among the others: read once, from torchrun's variables or from flags."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from muster.errors import UsageError, refuse

MIN_PORT, MAX_PORT = 1024, 65535  # below, only root may listen
TORCHRUN_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
)


@dataclass(frozen=True, kw_only=True)
class World:
    """One worker's place; the words are torchrun's, and `node_rank` is its GROUP_RANK."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    master_addr: str = ""
    master_port: int = 0
    host: str = ""
    run_id: str | None = None  # the launcher's, where it gave one
    attempt: int = 0  # how often torchrun restarted the group
    agent_store: bool = False  # torchrun's agent, not rank 0, serves the store on master_port

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @classmethod
    def find(
        cls,
        env: Mapping[str, str],
        *,
        rank: int | None = None,
        world_size: int | None = None,
        master_ip: str | None = None,
        master_port: int = 0,
    ) -> "World":
        """The world that the flags describe, else the environment, else one process alone.

        Raises:
            UsageError: either of them is incomplete or contradicts itself.
        """
        if (rank, world_size, master_ip) != (None, None, None):
            return cls.from_flags(rank, world_size, master_ip, master_port)
        if "RANK" in env or "WORLD_SIZE" in env:
            return cls.from_env(env)
        return cls(host=socket.gethostname())

    @classmethod
    def from_flags(
        cls, rank: int | None, world_size: int | None, master_ip: str | None, master_port: int
    ) -> "World":
        """The world of workers that were started by hand, one command on each node.

        Raises:
            UsageError: a flag that the others need is missing.
        """
        if rank == -1 or world_size == 1:
            return cls(host=socket.gethostname())
        needed = {
            "--rank": (rank, "which worker this is, from 0"),
            "--world-size": (world_size, "how many workers there are"),
            "--master-ip": (master_ip, "the address of rank 0"),
        }
        refuse(
            f"{flag} is missing: to start workers by hand, say {what} on each node"
            for flag, (value, what) in needed.items()
            if value is None
        )
        assert rank is not None and world_size and master_ip
        return cls(
            rank=rank,
            world_size=world_size,
            node_rank=rank,  # one worker per node until the workers have met
            num_nodes=world_size,
            master_addr=master_ip,
            master_port=master_port,
            host=socket.gethostname(),
        )

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "World":
        """The world that torchrun, `accelerate launch` or a script with their variables made.

        Raises:
            UsageError: a variable is missing or not a number, or RANK is not below WORLD_SIZE.
        """
        alone = env.get("WORLD_SIZE") == "1"
        needed = [*TORCHRUN_VARIABLES, *([] if alone else ["MASTER_ADDR", "MASTER_PORT"])]
        missing = [name for name in needed if not env.get(name)]
        if missing:
            raise UsageError(
                f"environment: {', '.join(missing)} not set, though "
                f"{', '.join(name for name in needed if name not in missing)} is; "
                "start workers with torchrun, or by hand with --rank --world-size --master-ip"
            )
        number = {name: _number(name, env[name]) for name in TORCHRUN_VARIABLES}
        port = _number("MASTER_PORT", env.get("MASTER_PORT", "0"))
        if number["RANK"] >= number["WORLD_SIZE"]:
            raise UsageError(
                f"environment: RANK {number['RANK']} is not below "
                f"WORLD_SIZE {number['WORLD_SIZE']}; ranks go from 0"
            )
        if not alone and not MIN_PORT <= port <= MAX_PORT:
            raise UsageError(
                f"environment: MASTER_PORT must be between {MIN_PORT} and {MAX_PORT} (got {port})"
            )
        return cls(
            rank=number["RANK"],
            world_size=number["WORLD_SIZE"],
            local_rank=number["LOCAL_RANK"],
            local_world_size=number["LOCAL_WORLD_SIZE"],
            node_rank=number["GROUP_RANK"],
            num_nodes=number["GROUP_WORLD_SIZE"],
            master_addr=env.get("MASTER_ADDR", ""),
            master_port=port,
            host=socket.gethostname(),
            run_id=_chosen(env.get("TORCHELASTIC_RUN_ID", "none")),
            attempt=_number(
                "TORCHELASTIC_RESTART_COUNT", env.get("TORCHELASTIC_RESTART_COUNT", "0")
            ),
            agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )


def _chosen(run_id: str) -> str | None:
    """The run id if somebody chose it; torchrun makes up "none", or a UUID with --standalone."""
    made_up = run_id == "none" or re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", run_id)
    return None if made_up else run_id


def _number(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise UsageError(f"environment: {name}={text!r} is not a number from 0 up")
    return value
