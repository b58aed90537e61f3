"""Flags and commands of other launchers that users type by habit, and what Muster has instead.

The sbatch options that `--slurm` refuses are in `sbatch_options`. Flags that Muster has, too, are
not listed here.
"""

import shlex

from configs.raw import ACCELERATE_REMEDY
from configs.settings.sbatch_options import CONTAINER, REFUSED

# Flags, in all spellings, by what to use in place of them: {value} is the value that the user has
# given, and {option} an sbatch option with its value.
FLAGS = {
    "use --nodes {value}": "nnodes num-machines num-nodes",
    "use --nproc-per-node {value}": (
        "nproc npernode ppn perhost ntasks-per-node tasks-per-node num-gpus"
    ),
    "use --nodes, and --nproc-per-node for the number of workers on each node": (
        "num-processes n np num-proc ntasks nprocs"
    ),
    "use --nproc-per-node {value}; a flag of your program goes after the program's name": (
        "num-workers"
    ),
    "use --nproc-per-node gpu": "multi-gpu",
    "use --hosts {value}": "H host hostfile host-file machinefile",
    "use --master-port {value}": "main-process-port port",
    "leave it out: Muster connects the nodes itself": (
        "rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone master-addr main-process-ip "
        "local-addr"
    ),
    "leave it out: Muster starts the workers on all nodes": "node-rank machine-rank",
    "put it after --: -- -m {value}": "m module",
    "use --run-id {value}, which names both the run and its job": "J job-name name",
    "use --logs-dir {value}": "log-dir",
    "leave it out: the workers' output is saved in the run folder; --logs-dir chooses where": (
        "tee redirects o e output error"
    ),
    "leave it out: muster jobs logs shows what each worker prints": "verbose",
    "leave it out: muster jobs logs and muster jobs stacks show more about a run": "debug",
    "use --env {value}": "genv envs",
    "use --env CUDA_VISIBLE_DEVICES={value}": "gpu-ids",
    "use --env ACCELERATE_MIXED_PRECISION={value}": "mixed-precision",
    "use --env OMP_NUM_THREADS={value}": "num-cpu-threads-per-process",
    f"use --config {{value}} for a Muster settings file; {ACCELERATE_REMEDY}": "config-file",
    "activate it first, or in a --prologue script, or give its Python with --python": (
        "conda conda-env venv virtualenv"
    ),
    CONTAINER: "image image-id container-image docker apptainer singularity",
    "use --detach": "detach-run background",
    "use --detach, or --slurm dependency={value}": "d",
    "use --time {value}": "walltime time-limit",
    "leave it out: Muster also runs as root": "allow-run-as-root",
    "leave it out: any --nproc-per-node is allowed": "oversubscribe",
    REFUSED["gpus"]: "G",
    REFUSED["chdir"]: "cwd workdir D",
    "use --slurm constraint={value}": "C",
    "use --slurm nodelist={value}": "w",
    "pass this sbatch option as --slurm {option}": (
        "begin clusters comment cpus-per-gpu deadline dependency distribution exclusive "
        "gpu-bind hint hold licenses mail-type mail-user mem-bind mem-per-cpu mem-per-gpu nice "
        "no-kill prefer priority switches threads-per-core time-min tmp wckey"
    ),
}
TEXTS = {name: text for text, names in FLAGS.items() for name in names.split()}
# For Muster's own trainer.
TRAINER_FLAGS = {"mixed-precision": "use --precision {value}"}

SIZES = "--nodes and --nproc-per-node"
HOSTS = "--nodes or --hosts, and --nproc-per-node"
MPI = (
    *("mpirun", "mpirun.mpich", "mpirun.openmpi", "orterun", "prterun"),
    *("mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi"),
)
# Commands and modules that start workers, with what to use in place of their most common flags.
LAUNCHERS = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), SIZES),
    **dict.fromkeys(
        ("accelerate launch", "accelerate-launch", "accelerate.commands.launch")
        + ("accelerate.commands.accelerate_cli launch",),
        f"{SIZES}; for accelerate's own settings, add --workers accelerate",
    ),
    **dict.fromkeys((*MPI, "horovodrun", "horovod.runner.launch"), HOSTS),
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.runner"), HOSTS),
    "srun": f"{SIZES}; Muster also has --partition and other sbatch options",
    **dict.fromkeys(("muster run", "muster.command run"), SIZES),
}


def advice(name: str, value: str, *, trains: bool) -> str:
    """What to use in place of a flag; empty if it is unknown. `name` has no leading dashes.

    `trains`: Muster's own trainer runs.
    """
    quoted = shlex.quote(value) if value else "..."
    text = (TRAINER_FLAGS.get(name) if trains else None) or TEXTS.get(name) or REFUSED.get(name, "")
    return text.format(value=quoted, option=f"{name}={quoted}" if value else name)
