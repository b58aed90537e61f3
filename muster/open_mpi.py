"""Find the host of rank 0 of Open MPI's mpirun, from mpirun's own variables alone.

mpirun numbers the machines: 0 is the one it runs on, 1 and up are those of its list, in order. It
gives the machines' names to all ranks except those on machine 0. Machines are filled in that order,
so rank 0 is on machine 0 if mpirun's own machine has ranks, else on machine 1. Each rank finds out
which, from its own machine and its own place. A rankfile or the like may have placed rank 0
elsewhere: rank 0 notices that, and an unclear case is refused.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

MACHINE_0 = "OMPI_MCA_orte_hnp_uri"  # 3636592640.0;tcp://10.10.1.254:56821
OWN_MACHINE = "OMPI_MCA_orte_local_daemon_uri"  # 3636592640.2;tcp://10.10.1.2:41009
MACHINES = "OMPI_MCA_orte_node_regex"  # box,node[1:0-3]@0(5)
MACHINES_WITH_RANKS = "OMPI_MCA_orte_num_nodes"


def host_of_rank_0(env: Mapping[str, str]) -> str | None:
    """An address of that host, or a name that resolves; None if neither is certain."""
    own = re.match(r"\d+\.(\d+);", env.get(OWN_MACHINE, ""))
    if own is None:  # Open MPI 5 has none of these variables
        return None
    own_machine, machines = int(own[1]), names_of(env.get(MACHINES, ""))
    machine = _machine_of_rank_0(env, own_machine, len(machines))
    if machine is None or (env["OMPI_COMM_WORLD_RANK"] == "0" and machine != own_machine):
        return None
    uri = env[OWN_MACHINE] if machine == own_machine else env.get(MACHINE_0, "")
    addresses = _addresses(uri) if machine in (0, own_machine) else []
    if len(addresses) == 1:  # if there are several, one may be of a network that other hosts lack
        return addresses[0]
    name = machines[machine] if machine < len(machines) else socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return None
    return name


def _machine_of_rank_0(env: Mapping[str, str], own: int, known: int) -> int | None:
    """0 or 1, as seen from machine `own`; None if it is unclear."""
    count = int(env.get(MACHINES_WITH_RANKS, "0"))
    if own == 0 or count == known:
        return 0  # all machines have ranks, also mpirun's own
    rank, size = int(env["OMPI_COMM_WORLD_RANK"]), int(env["OMPI_COMM_WORLD_SIZE"])
    local_rank = int(env["OMPI_COMM_WORLD_LOCAL_RANK"])
    local_size = int(env["OMPI_COMM_WORLD_LOCAL_SIZE"])
    if size != count * local_size:
        return None
    found = set()
    if rank % local_size == local_rank:  # ranks are placed machine by machine
        found.add(own - rank // local_size)
    if rank // count == local_rank:  # ranks are placed in turn
        found.add(own - rank % count)
    return found.pop() if found in ({0}, {1}) else None


def names_of(text: str) -> list[str]:
    """`box,node[2:1,3-4].lab@0(4)`, Open MPI's form, is box, node01.lab, node03.lab, ..."""
    found: list[str] = []
    pattern = r"([^,\[\]]*)\[(\d+):([\d,-]+)\]([^,\[\]]*)|[^,\[\]]+"
    for part in re.finditer(pattern, text.rpartition("@")[0] or text):
        before, width, ranges, after = part.groups()
        if ranges is None:
            found.append(part[0])
            continue
        for one in ranges.split(","):
            first, _, last = one.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            found += [f"{before}{number:0{width}}{after}" for number in numbers]
    return found


def _addresses(uri: str) -> list[str]:
    """`3636592640.0;tcp://10.0.0.1,10.10.1.1:56821` has two addresses."""
    return [
        address
        for group in re.findall(r"tcp6?://(.*?):\d+(?:;|$)", uri)
        for address in group.replace("[", "").replace("]", "").split(",")
    ]
