"""The sbatch options that `--slurm` refuses, since the job would not be one of our runs.

All other options are passed to sbatch unchanged; its own test of a job finds errors in them.

The same options can be set through sbatch's variables, such as SBATCH_OUTPUT. The variable of a
refused option does not reach sbatch either.
"""

from collections.abc import Collection, Iterator

from muster.terminal import TIP

FORM = "expected KEY=VALUE, such as mail-type=END"
OUTPUT = "leave it out: the job's output is saved in the run folder; --logs-dir chooses where"
WORKERS = "use --nproc-per-node, the number of workers on each node; each node gets one task"
GPUS = "use --gpus-per-node, the number of GPUs on each node"
VARIABLES = "use --env, --env-file, or --prologue"
SUBMITS_NOTHING = "use --dry-run, which shows the batch script and submits nothing"
CONTAINER = "use --container IMAGE, or for another container engine --wrap COMMAND"
# What to use in place of options that the job of a run cannot have.
REFUSED = {
    "array": "use muster sweep, which submits its runs as a job array",
    "chdir": "go to the folder first (cd): the program starts in the current folder",
    "container": CONTAINER,
    "container-id": CONTAINER,
    "error": OUTPUT,
    "export": VARIABLES,
    "export-file": VARIABLES,
    "external": "leave it out: it is for jobs without a program",
    "get-user-env": VARIABLES,
    "gid": "submit the job as that user",
    "gpus": GPUS,
    "gpus-per-socket": GPUS,
    "gpus-per-task": GPUS,
    "help": SUBMITS_NOTHING,
    "input": "give the program a file name instead: it gets no standard input",
    "no-requeue": "set MUSTER_MAX_REQUEUES=0, so that the job is not restarted",
    "ntasks": WORKERS,
    "ntasks-per-core": WORKERS,
    "ntasks-per-gpu": WORKERS,
    "ntasks-per-node": WORKERS,
    "ntasks-per-socket": WORKERS,
    "open-mode": OUTPUT,
    "output": OUTPUT,
    "parsable": "use --json",
    "quiet": "use --quiet",
    "requeue": "leave it out: jobs are requeued by default; MUSTER_MAX_REQUEUES limits how often",
    "signal": "use --stop-grace-s: Slurm already warns Muster before the time limit",
    "tasks-per-node": WORKERS,  # means ntasks-per-node; sbatch lists it nowhere
    "test-only": SUBMITS_NOTHING,
    "tres-per-task": GPUS,
    "uid": "submit the job as that user",
    "usage": SUBMITS_NOTHING,
    "version": SUBMITS_NOTHING,
    "wrap": "put the program after --: -- train.py",
}
# sbatch's variables that do not have the names of their options.
NAMES = {
    "array": "ARRAY_INX",
    "bb": "BURST_BUFFER",
    "cpu-freq": "CPU_FREQ_REQ",
    "mem": "MEM_PER_NODE",
    "switches": "REQ_SWITCH",
    "time": "TIMELIMIT",
    "verbose": "DEBUG",
}
# Only one option of each group can be given.
ALTERNATIVES = (
    frozenset(("mem", "mem-per-cpu", "mem-per-gpu")),
    frozenset(("cpus-per-task", "cpus-per-gpu")),
)


def problems(key: str, value: str | None, with_flag: Collection[str]) -> Iterator[str]:
    """A line if `--slurm key=value` is not passed on to sbatch; `value` None: the key alone.

    `with_flag`: options for which Muster has a flag, which does more than pass them on.
    """
    given = f"--slurm {key}" if value is None else f"--slurm {key}={value}"
    if key in with_flag:
        yield f"{given} is not passed on to sbatch{TIP}use Muster's own flag --{key}"
    elif key in REFUSED:
        yield f"{given} is not passed on to sbatch{TIP}{REFUSED[key]}"
    elif key != "job-name" and any(
        name.startswith(key) for name in (*with_flag, *REFUSED, "job-name")
    ):
        # sbatch would take the key as short for an option that is refused, or that Muster sets
        yield f"{given}: sbatch has no option with this name{TIP}write the name in full"


def variable(option: str) -> str:
    """sbatch's variable for an option: `SBATCH_TIMELIMIT` for `time`."""
    return f"SBATCH_{NAMES.get(option, option.replace('-', '_').upper())}"


# A user's variables that sbatch does not get, with the reason; Muster names jobs itself.
UNUSED = {variable(name): why for name, why in REFUSED.items()}
UNUSED |= {
    "SBATCH_JOB_NAME": "--run-id names the job and its run",
    "SBATCH_WAIT": "use --wait",
}
