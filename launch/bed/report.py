"""One looks at a bed and sees what is alive."""

from rich.console import Console
from rich.table import Table

from launch.bed import cluster, daemons, slurm, ssh, views
from launch.bed.options import rate_text


def status() -> int:
    """Print a line for each node; 0 if everything is alive and in service, else 1.

    Raises:
        MusterError: no bed is up.
    """
    bed, hosts = cluster.present()
    states = slurm.states()
    rate = rate_text(bed.options.rate) if bed.options.rate else "unlimited"
    table = Table("node", "address", "cores", "slurmd", "sshd", "slurm", "rate", box=None)
    healthy = True
    for name in (slurm.MUNGED, slurm.CONTROLLER):
        healthy &= daemons.pid(name) is not None
    for node in hosts:
        said = states.get(node.name, "unknown")
        alive = [daemons.pid(daemon) for daemon in (slurm.daemon(node), ssh.daemon(node))]
        held = all(map(daemons.pid, views.anchors(node, private=bed.options.private_home)))
        healthy &= held and all(alive) and slurm.is_usable(said)
        table.add_row(
            node.name,
            " ".join(address for address in (node.address, node.second, node.control) if address),
            ",".join(map(str, node.cores)),
            *(str(pid) if pid else "dead" for pid in alive),
            said,
            rate,
        )
    console = Console(width=None)
    console.print(f"{bed.options}, made from {bed.holder()}", soft_wrap=True)
    for name in (slurm.MUNGED, slurm.CONTROLLER):
        console.print(f"{name}: {daemons.pid(name) or 'dead'}")
    console.print(table)
    return 0 if healthy else 1
