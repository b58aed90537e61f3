"""The options of sbatch that `--slurm` refuses, since the job would be none of our runs.

All others go to sbatch as they are: its own test of a job finds what is wrong with them.

The same options can be set as sbatch's variables, such as SBATCH_OUTPUT. The variable of a refused
option does not reach sbatch either.
"""

from collections.abc import Collection, Iterator

FORM = "use KEY=VALUE, such as --slurm mail-type=END"
OUTPUT = "what the job prints is in the run folder; --logs-dir chooses where"
WORKERS = "Muster starts one task on each node; --nproc-per-node is the number of its workers"
GPUS = "use --gpus-per-node, the GPUs of each node"
VARIABLES = "use --env, --env-file, or --prologue"
SUBMITS_NOTHING = "it submits nothing; --dry-run shows the batch script"
CONTAINER = "use --container IMAGE, or with another engine --wrap, a command before each worker"
# What to use in place of other options that the job of a run cannot have.
REFUSED = {
    "array": "use muster sweep, whose runs are a job array",
    "chdir": "the program starts in the folder in which the command is called",
    "container": CONTAINER,
    "container-id": CONTAINER,
    "error": OUTPUT,
    "export": VARIABLES,
    "export-file": VARIABLES,
    "external": "it is for jobs without a program",
    "get-user-env": VARIABLES,
    "gid": "submit it as that user",
    "gpus": GPUS,
    "gpus-per-socket": GPUS,
    "gpus-per-task": GPUS,
    "help": SUBMITS_NOTHING,
    "input": "the program reads no input\ntip: give it a file's name",
    "no-requeue": "set MUSTER_MAX_REQUEUES=0, and the job is not restarted",
    "ntasks": WORKERS,
    "ntasks-per-core": WORKERS,
    "ntasks-per-gpu": WORKERS,
    "ntasks-per-node": WORKERS,
    "ntasks-per-socket": WORKERS,
    "open-mode": OUTPUT,
    "output": OUTPUT,
    "parsable": "use --json",
    "quiet": "use --quiet",
    "requeue": "the job has it already; MUSTER_MAX_REQUEUES is how often it is restarted",
    "signal": "Muster has Slurm say when the job's time is nearly over\ntip: see --stop-grace-s",
    "tasks-per-node": WORKERS,  # means ntasks-per-node; no list of sbatch has it
    "test-only": SUBMITS_NOTHING,
    "tres-per-task": GPUS,
    "uid": "submit it as that user",
    "usage": SUBMITS_NOTHING,
    "version": SUBMITS_NOTHING,
    "wrap": "the program follows after --: -- train.py",
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
# Only one of each group can be asked for.
ALTERNATIVES = (
    frozenset(("mem", "mem-per-cpu", "mem-per-gpu")),
    frozenset(("cpus-per-task", "cpus-per-gpu")),
)


def problems(key: str, value: str | None, with_flag: Collection[str]) -> Iterator[str]:
    """A line if `--slurm key=value` is not passed on to sbatch; `value` None: without one.

    `with_flag`: options with a flag of ours, which does more than pass them on.
    """
    given = f"--slurm {key}" if value is None else f"--slurm {key}={value}"
    if key in with_flag:
        yield f"{given}: use --{key}, a flag of Muster's own"
    elif key in REFUSED:
        yield f"{given}: {REFUSED[key]}"
    elif key != "job-name" and any(
        name.startswith(key) for name in (*with_flag, *REFUSED, "job-name")
    ):
        # sbatch would take the key for the short form of one that is refused, or that Muster sets
        yield f"{given}: no option of sbatch has this name\ntip: write it in full"


def variable(option: str) -> str:
    """sbatch's variable for an option: `SBATCH_TIMELIMIT` for `time`."""
    return f"SBATCH_{NAMES.get(option, option.replace('-', '_').upper())}"


# sbatch does not get these variables of a user, for the reason given; Muster names jobs itself.
UNUSED = {variable(name): why for name, why in REFUSED.items()}
UNUSED |= {
    "SBATCH_JOB_NAME": "--run-id names the job and its run",
    "SBATCH_WAIT": "use --wait",
}
