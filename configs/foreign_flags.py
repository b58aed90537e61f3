"""Flags of other launchers, which users give by habit: what Muster has in their place.

Options of sbatch that `--slurm` refuses are in `sbatch_options`. A flag that Muster has, too, is
not here.
"""

import shlex

from configs.raw import OF_ACCELERATE
from configs.settings.sbatch_options import CONTAINER, REFUSED

NODES = "use --nodes {value}"  # the value as the user gave it
EACH = "use --nproc-per-node {value}"
TOTAL = "use --nodes and --nproc-per-node, the number of workers of each node"
HOSTS = "use --hosts {value}"
MEETING = "leave it out: Muster lets the nodes find each other"
PLACE = "leave it out: Muster starts the workers of all nodes"
NETWORK = "leave it out, or choose the network: --network 10.10.1.0/24"
PYTHON = "activate it before, name its Python with --python, or use --prologue"
MODULE = "it follows after --: -- -m {value}"
NAME = "use --run-id {value}, the name of the run and of its job"
LOGS = "use --logs-dir {value}"
OUTPUT = "leave it out: what workers print is in the run folder, for which there is --logs-dir"
VARIABLE = "use --env {value}"
OF_SBATCH = frozenset(  # those that users give most
    "begin comment cpus-per-gpu deadline dependency distribution exclusive gpu-bind hint hold "
    "licenses mail-type mail-user mem-bind mem-per-cpu mem-per-gpu nice no-kill prefer priority "
    "switches threads-per-core tmp wckey".split()
)
# For Muster's own trainer.
OF_TRAINER = {"mixed-precision": "use --precision {value}"}
TEXTS = {
    # torchrun
    "nnodes": NODES,
    "nproc": EACH,
    **dict.fromkeys(("node-rank", "machine-rank"), PLACE),
    **dict.fromkeys("rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone".split(), MEETING),
    **dict.fromkeys(("master-addr", "main-process-ip", "local-addr"), MEETING),
    **dict.fromkeys(("m", "module"), MODULE),
    "log-dir": LOGS,
    **dict.fromkeys(("tee", "redirects"), OUTPUT),
    # accelerate
    "num-machines": NODES,
    "num-processes": TOTAL,
    "main-process-port": "use --master-port {value}",
    "multi-gpu": "use --nproc-per-node gpu",
    "gpu-ids": "use --env CUDA_VISIBLE_DEVICES={value}",
    "mixed-precision": "use --env ACCELERATE_MIXED_PRECISION={value}",
    "num-cpu-threads-per-process": "use --env OMP_NUM_THREADS={value}",
    "config-file": f"use --config {{value}} for a file of Muster's settings; {OF_ACCELERATE}",
    # mpirun, horovodrun
    **dict.fromkeys(("n", "np", "num-proc"), TOTAL),
    **dict.fromkeys(("npernode", "ppn", "perhost"), EACH),
    **dict.fromkeys(("H", "host", "hostfile", "host-file", "machinefile"), HOSTS),
    **dict.fromkeys(("genv", "envs"), VARIABLE),
    "allow-run-as-root": "leave it out: nothing has to be allowed",
    "oversubscribe": "leave it out: any --nproc-per-node is allowed",
    # srun and sbatch
    **dict.fromkeys(("ntasks", "nprocs"), TOTAL),
    **dict.fromkeys(("ntasks-per-node", "tasks-per-node"), EACH),
    "G": REFUSED["gpus"],
    **dict.fromkeys(("J", "job-name", "name"), NAME),
    **dict.fromkeys(("o", "e", "output", "error"), OUTPUT),
    "d": "use --detach, or --slurm dependency={value}",
    # deepspeed, SkyPilot
    "num-nodes": NODES,
    "num-gpus": EACH,
    "detach-run": "use --detach",
    # environments and containers
    **dict.fromkeys(("conda", "conda-env", "venv", "virtualenv"), PYTHON),
    **dict.fromkeys("image image-id container-image docker apptainer".split(), CONTAINER),
    "singularity": CONTAINER,
    # other names of ours
    "port": "use --master-port {value}",
    "num-workers": "use --nproc-per-node {value}, or give it to the program, after its name",
    **dict.fromkeys(("cwd", "workdir", "D"), REFUSED["chdir"]),
    "background": "use --detach",
    **dict.fromkeys(("walltime", "time-limit"), "use --time {value}"),
    "debug": "leave it out: muster jobs logs and muster jobs stacks show more of a run",
    "verbose": "leave it out: muster jobs logs shows what each worker prints",
}


def advice(name: str, value: str, *, trains: bool) -> str:
    """What to use in place of a flag; empty if it is not known. `name` has no dashes in front.

    `trains`: Muster's own trainer runs.
    """
    quoted = shlex.quote(value) if value else "..."
    if text := (OF_TRAINER.get(name) if trains else None) or TEXTS.get(name):
        return text.format(value=quoted)
    if name in REFUSED:
        return REFUSED[name]
    if name in OF_SBATCH:
        return f"give this option of sbatch as --slurm {name}{f'={quoted}' if value else ''}"
    return ""
