"""Other launchers that start workers: their commands, and the flags of Muster for theirs."""

from collections.abc import Mapping
from dataclasses import dataclass

NODES = "--nodes"
EACH = "--nproc-per-node"
HOSTS = "--hosts"
PORT = "--master-port"
ENV = "--env"
ALL = "workers-of-all-nodes"
MIXED = "--env ACCELERATE_MIXED_PRECISION"


@dataclass(frozen=True)
class OtherLauncher:
    """Another launcher: its commands, and the flag of Muster for each of its flags."""

    calls: tuple[str, ...]
    ours: Mapping[str, str]  # Muster's flag, by the name of the launcher's, with - for _
    switches: frozenset[str] = frozenset()  # its flags without a value
    pairs: frozenset[str] = frozenset()  # its flags with two values


MUSTER = OtherLauncher(("muster run", "-m muster.command run"), {})
LAUNCHERS = (
    MUSTER,
    OtherLauncher(
        ("torchrun", "-m torch.distributed.run", "-m torch.distributed.launch"),
        {"nnodes": NODES, "nproc-per-node": EACH, "nproc": EACH, "master-port": PORT}
        | {"max-restarts": "--max-restarts"},
        frozenset("standalone m module no-python run-path use-env".split()),
    ),
    OtherLauncher(
        (
            *("accelerate launch", "accelerate-launch", "-m accelerate.commands.launch"),
            "-m accelerate.commands.accelerate_cli launch",
        ),
        {"num-machines": NODES, "num-processes": ALL, "main-process-port": PORT}
        | {"mixed-precision": MIXED},
        frozenset(
            "multi-gpu cpu tpu use-mps-device use-xpu ipex same-network use-deepspeed use-fsdp "
            "use-megatron-lm quiet q debug m module no-python downcast-bf16".split()
        ),
    ),
    OtherLauncher(
        tuple("mpirun mpiexec mpiexec.hydra mpirun.openmpi mpiexec.openmpi orterun prterun".split())
        + ("mpirun.mpich", "mpiexec.mpich"),
        dict.fromkeys(("np", "n", "c"), ALL)
        | dict.fromkeys(("npernode", "N", "ppn", "perhost"), EACH)
        | dict.fromkeys(("H", "host", "hosts", "hostfile", "machinefile", "f"), HOSTS)
        | {"x": ENV, "genv": ENV},
        frozenset("oversubscribe allow-run-as-root verbose v tag-output l".split()),
        frozenset(("mca", "gmca", "genv", "env")),
    ),
    OtherLauncher(
        ("srun",),
        dict.fromkeys(("N", "nodes"), NODES)
        | dict.fromkeys(("n", "ntasks"), ALL)
        | dict.fromkeys(("c", "cpus-per-task"), "--cpus-per-task")
        | {"ntasks-per-node": EACH, "p": "--partition", "A": "--account", "t": "--time"}
        | {"w": "--nodelist", "C": "--constraint"}
        | {
            name: f"--{name}"
            for name in (
                "partition account time nodelist exclude constraint qos reservation mem gres "
                "gpus-per-node"
            ).split()
        },
        frozenset("label l unbuffered u pty exclusive overlap exact verbose v".split()),
    ),
    OtherLauncher(
        ("deepspeed", "-m deepspeed.launcher.runner"),
        {"num-nodes": NODES, "num-gpus": EACH, "master-port": PORT, "H": HOSTS, "hostfile": HOSTS},
        frozenset("module no-python no-local-rank force-multi save-pid".split()),
    ),
    OtherLauncher(
        ("horovodrun", "-m horovod.runner.launch"),
        dict.fromkeys(("np", "num-proc"), ALL) | dict.fromkeys(("H", "hosts", "hostfile"), HOSTS),
        frozenset("verbose gloo mpi disable-cache".split()),
    ),
)
# The files of the launchers' modules: Python may start them by these names.
SCRIPTS = frozenset(
    f"{call.split()[1].rpartition('.')[2]}.py"
    for launcher in LAUNCHERS
    for call in launcher.calls
    if call.startswith("-m ")
)
