"""The batch script of a job, which requests what its run needs through sbatch options."""

import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from configs.settings.remote import DEFAULT_TIME, TIME, SlurmConfig, is_plain
from configs.settings.sbatch_options import UNUSED, variable
from launch.deadlines import SLURM_ANSWERS_S, SLURM_WARNS_BEFORE_LIMIT_S
from launch.programs.python_choice import say_once
from launch.slurm import controller
from launch.slurm.controller import PartitionNode, scrubbed
from launch.spec import RUN_MODULE, Facts
from muster.checkout import CHECKOUT, nodes_python
from muster.errors import MusterError, UsageError, is_denied, refuse
from muster.terminal import TIP

DAY_MIN = 24 * 60
NO_LIMIT = ("infinite", "UNLIMITED", "INFINITE")
CORE_OPTIONS = {"cpus_per_task", "cpus_per_gpu"}  # each of these sets the number of cores
# sbatch's messages about a request that exceeds the nodes that are up now.
NOT_NOW = ("Requested node configuration is not available", "Required node not available")
MEGABYTES = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}

# Slurm's signal must not end the batch shell before the leader can receive it.
NOTICES_IGNORED = "trap '' USR1 USR2"

Options = dict[str, str | int | bool]


def user_options(config: SlurmConfig) -> Options:
    """The options that the user gave, by sbatch's own names."""
    from_flags = {
        name: value
        for name, value in vars(config).items()
        if value is not None and name not in ("slurm", "wait")
    }
    from_slurm_flag = {
        option.name.replace("-", "_"): True if option.value is None else option.value
        for option in config.slurm
    }
    return from_flags | from_slurm_flag


def options(config: SlurmConfig, env: Mapping[str, str], run_id: str, facts: Facts) -> Options:
    """sbatch's options by their names; the user's own options override ours."""
    cores = _cores(config, env, facts)
    limit_s = 60 * minutes(_time(config, env) or DEFAULT_TIME)
    # in a short job an early notice would come before the leader can receive it
    notice_s = int(min(SLURM_WARNS_BEFORE_LIMIT_S, limit_s / 4))
    return {
        "job_name": f"muster-{run_id}",
        "nodes": len(facts.nodes),
        "ntasks_per_node": 1,
        "signal": f"B:USR2@{notice_s}",  # to the leader
        "time": DEFAULT_TIME,
        "requeue": True,  # after a node failure, or when its time is over
        "chdir": str(CHECKOUT),
        **({"cpus_per_task": cores} if cores else {}),
        **user_options(config),
    }


def _cores(config: SlurmConfig, env: Mapping[str, str], facts: Facts) -> int | None:
    """The cores that a node's task requests: its share for each GPU, else one for each worker.

    None if the user's options, or the cluster's own DefCpuPerGPU, set the number. Without any of
    these Slurm gives a task one core, even if it has GPUs.
    """
    if CORE_OPTIONS & user_options(config).keys() or any(
        f"SBATCH_{name.upper()}" in env for name in CORE_OPTIONS
    ):
        return None
    if gpus := gpus_asked(config, env):
        partition = config.partition or env.get("SBATCH_PARTITION") or ""
        return gpus * (controller.cores_per_gpu(partition, env) or 0) or None
    counts = [node.nproc.number for node in facts.nodes]
    return max((count for count in counts if count is not None), default=None)


def _time(config: SlurmConfig, env: Mapping[str, str]) -> str | None:
    """The requested time limit; None if it is not a time, which Slurm itself refuses."""
    limit = config.time or env.get(variable("time"), "")
    return limit if TIME.fullmatch(limit) else None


def gpus_asked(config: SlurmConfig, env: Mapping[str, str]) -> int:
    """The GPUs per node in --gpus-per-node or --gres; without these, in sbatch's variables."""
    from_env = (env.get(variable(name)) for name in ("gpus-per-node", "gres"))
    return _gpu_count(config.gpus_per_node, config.gres) or _gpu_count(*from_env)


def _gpu_count(per_node: str | None, gres: str | None) -> int:
    """The GPUs in `per_node`, such as 4 or a100:4, else in `gres`, such as gpu:a100:4 or gpu."""
    of_gres = [entry for entry in (gres or "").split(",") if entry.startswith("gpu")]
    entries = per_node.split(",") if per_node else of_gres
    counts = [entry.rpartition(":")[2] for entry in entries]
    return sum(int(count) if count.isdigit() else 1 for count in counts)


def refuse_what_slurm_refuses(config: SlurmConfig, env: Mapping[str, str], facts: Facts) -> None:
    """Let Slurm itself check the job before anything is created.

    Raises:
        UsageError: Slurm would refuse the job; with its own message.
        MusterError: Slurm is not installed, or does not answer.
    """
    refuse(_refusals(config, env, facts))


def _refusals(config: SlurmConfig, env: Mapping[str, str], facts: Facts) -> list[str]:
    """A line for each reason why Slurm would refuse the job, or would let it wait forever.

    sbatch's test also fails if the job only has to wait for nodes that are down or drained. Then a
    note is printed, and nothing is refused.
    """
    script = text(options(config, env, "test", facts), "true")
    result = controller.ask(["sbatch", "--test-only"], env, stdin=script)
    if result.returncode:
        _check_that_slurm_answers(env)
    nodes = controller.nodes_of(_user_value("partition", config, env)[0], env)
    problems = list(dict.fromkeys(_beyond_time_limits(config, env, nodes)))
    if not result.returncode:
        return problems
    if any(text in result.stderr for text in NOT_NOW):
        problems += _beyond_nodes(config, env, facts, nodes)
        count = sum(node.is_out for node in nodes)
        if count and not problems:
            nodes_out = "1 node is" if count == 1 else f"{count} nodes are"
            say_once(
                f"note: {nodes_out} down or drained (sinfo -R); the job will wait for enough nodes"
            )
            return []
    if problems:
        return problems
    lines = [line.rpartition("error: ")[2] for line in result.stderr.splitlines() if line]
    lines = [line.removeprefix("allocation failure: ") for line in lines]
    reason = "; ".join(dict.fromkeys(lines)) or "no reason given"
    return [f"Slurm would refuse this job: {reason}{TIP}sinfo shows what the cluster has"]


def _check_that_slurm_answers(env: Mapping[str, str]) -> None:
    """Distinguish a refused job from a cluster that cannot be reached.

    Raises:
        SlurmNotResponding: Slurm does not answer.
    """
    try:
        controller.name(env, SLURM_ANSWERS_S)
    except controller.SlurmNotResponding as error:
        hint = "try again later, or train on this machine with --launcher local"
        raise controller.SlurmNotResponding(f"{error}{TIP}{hint}") from None


def _user_value(name: str, config: SlurmConfig, env: Mapping[str, str]) -> tuple[str, str]:
    """The value of an option, and the flag or sbatch variable that sets it; "" if none does."""
    if (value := getattr(config, name.replace("-", "_"))) is not None:
        return str(value), f"--{name} {value}"
    value = env.get(variable(name), "")
    return value, value and f"{variable(name)}={value}"


def _beyond_time_limits(
    config: SlurmConfig, env: Mapping[str, str], nodes: Sequence[PartitionNode]
) -> Iterator[str]:
    """A line for each partition, if all of them allow less time: the job would wait forever."""
    value, given = _user_value("time", config, env)
    limit = _time(config, env) if value else DEFAULT_TIME
    if limit and all(minutes(limit) > minutes(node.time_limit) for node in nodes):
        given = given or f"--time {DEFAULT_TIME} (the default)"
        for node in nodes:
            yield f"{given}, but partition {node.partition} allows at most {node.time_limit}"


def _beyond_nodes(
    config: SlurmConfig, env: Mapping[str, str], facts: Facts, nodes: Sequence[PartitionNode]
) -> list[str]:
    """A line for each request that exceeds what these nodes have even if all of them are up.

    A combination that no node has is left to sbatch, which refuses it.
    """
    if not nodes:
        return []
    gpus = gpus_asked(config, env)
    of_gpus = _user_value("gpus-per-node", config, env)[1] or _user_value("gres", config, env)[1]
    cores, of_cores = _user_value("cpus-per-task", config, env)
    if not cores and not gpus:
        cores = str(_cores(config, env, facts) or "")
        of_cores = f"--nproc-per-node {cores}"
    memory, of_memory = _user_value("mem", config, env)
    size = re.fullmatch(r"(\d+)([KMGT]?)B?", memory.upper())
    requests = (
        (of_cores, int(cores) if cores.isdigit() else 0, "cores", "cores"),
        (of_memory, int(size[1]) * MEGABYTES[size[2]] if size else 0, "memory_mb", "MB"),
        (of_gpus, gpus, "gpus", "GPUs"),
    )
    where = f"partition {', '.join(dict.fromkeys(node.partition for node in nodes))}"
    problems = []
    for given, number, field, unit in requests:
        most = max(getattr(node, field) for node in nodes)
        if number > most:
            problems.append(f"{given}, but the nodes of {where} have at most {most} {unit}")
    # a job uses only one of several partitions
    largest = max(Counter(node.partition for node in nodes).values())
    if len(facts.nodes) > largest:
        has = f"{largest} node{'s' * (largest > 1)}"
        problems.append(f"--nodes {len(facts.nodes)}, but {where} has only {has}")
    return problems


def text(given: Options, command: str) -> str:
    """The batch script with these options of sbatch."""
    lines = [f"#SBATCH {flag}" for flag in flags(escaped(given), shlex.quote)]
    return "\n".join(["#!/bin/bash", *lines, "", NOTICES_IGNORED, command, ""])


def escaped(given: Options) -> Options:
    """The options with doubled backslashes, since one is an escape for sbatch even in quotes."""
    return {
        name: value.replace("\\", "\\\\") if isinstance(value, str) else value
        for name, value in given.items()
    }


def file_name(folder: Path, pattern: str) -> str:
    """sbatch's file name `pattern` in `folder`; sbatch replaces nothing in the folder's path.

    Raises:
        UsageError: a character in the path has a special meaning for sbatch.
    """
    if "\\" in str(folder) or not is_plain(str(folder)):
        raise UsageError(
            f"{str(folder)!r}: sbatch cannot use a path with a backslash or line break"
            f"{TIP}choose another --logs-dir"
        )
    return f"{folder}/".replace("%", "%%") + pattern


def leader_script(given: Options, python: str, runs: Sequence[Path], at_once: int = 1) -> str:
    """The batch script that becomes the leader of a run.

    The leaders of several runs are the parts of a job array, of which `at_once` run at a time.
    """
    lead = shlex.join([python, RUN_MODULE, "launch.leading.batch_job", "run"])
    folders = [shlex.quote(str(run_dir)) for run_dir in runs]
    if len(runs) == 1:
        return text(given, f"exec {lead} {folders[0]}")
    array = f"0-{len(runs) - 1}%{min(at_once, len(runs))}"
    lines = ["runs=(", *(f"  {folder}" for folder in folders), ")"]
    lines.append(f'exec {lead} "${{runs[SLURM_ARRAY_TASK_ID]}}"')
    return text({**given, "array": array}, "\n".join(lines))


def flags(given: Options, quote: Callable[[str], str] = str) -> list[str]:
    """The options as words of a command line, or of a script if `quote` quotes their values."""
    return [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={quote(str(value))}")
        for name, value in sorted(given.items())
    ]


def environment(slurm: SlurmConfig) -> dict[str, str]:
    """The environment for Slurm's commands.

    It has no variables of a surrounding job, and no sbatch variable for an option that a flag sets.
    """
    env = scrubbed(os.environ, user_options(slurm))
    cluster = user_options(slurm).get("clusters") or env.get("SBATCH_CLUSTERS")
    # SBATCH_CLUSTERS reaches sbatch alone; this one reaches all commands
    return {**env, "SLURM_CLUSTERS": str(cluster)} if cluster else env


def notes(env: Mapping[str, str]) -> Iterator[str]:
    """A line for each variable of sbatch that is set, but not passed on to it."""
    for name in sorted(UNUSED.keys() & env.keys()):
        yield f"note: {name} is ignored; {UNUSED[name]}"


def minutes(text: str) -> float:
    """A time in sbatch's and sinfo's forms: minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s."""
    if text in NO_LIMIT:
        return float("inf")
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if not dash and len(parts) < 3:
        parts.insert(0, 0)  # without days, the first of one or two numbers is minutes
    hours, mins, secs = (*parts, 0, 0)[:3]
    return int(days or 0) * DAY_MIN + hours * 60 + mins + secs / 60


def python() -> str:
    """The Python for jobs, which have no activated shell: $MUSTER_PYTHON, else Muster's own.

    Raises:
        MusterError: there is no such program.
    """
    chosen = nodes_python()
    if path := shutil.which(chosen):
        return str(Path(path).absolute())
    if is_denied(chosen):
        raise UsageError(f"MUSTER_PYTHON={chosen}: permission denied")
    raise MusterError(f"MUSTER_PYTHON={chosen}: no such program{TIP}set it to the path of a Python")
