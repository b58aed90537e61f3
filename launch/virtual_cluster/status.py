"""Print which parts of a testbed are alive."""

from rich.console import Console
from rich.table import Table

from launch.virtual_cluster import daemons, lifecycle, namespaces, slurm_daemons, ssh_daemons
from launch.virtual_cluster.options import rate_text


def status() -> int:
    """Print a line for each node; 0 if everything is alive and in service, else 1.

    Raises:
        MusterError: no testbed is up.
    """
    cluster, hosts = lifecycle.present()
    states = slurm_daemons.states()
    rate = rate_text(cluster.options.rate) if cluster.options.rate else "unlimited"
    table = Table("node", "address", "cores", "slurmd", "sshd", "slurm", "rate", box=None)
    shared = {name: daemons.pid(name) for name in (slurm_daemons.MUNGED, slurm_daemons.CONTROLLER)}
    healthy = None not in shared.values()
    for node in hosts:
        state = states.get(node.name, "unknown")
        alive = [
            daemons.pid(daemon) for daemon in (slurm_daemons.daemon(node), ssh_daemons.daemon(node))
        ]
        held = all(map(daemons.pid, namespaces.anchors(node, private=cluster.options.private_home)))
        healthy &= held and all(alive) and slurm_daemons.is_usable(state)
        table.add_row(
            node.name,
            " ".join(address for address in (node.address, node.second, node.control) if address),
            ",".join(map(str, node.cores)),
            *(str(number) if number else "dead" for number in alive),
            state,
            rate,
        )
    console = Console(width=None)
    console.print(f"{cluster.options}, made from {cluster.holder()}", soft_wrap=True)
    for name, pid in shared.items():
        console.print(f"{name}: {pid or 'dead'}")
    console.print(table)
    return 0 if healthy else 1
