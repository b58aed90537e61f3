"""The batch script of a job, which requests what its run needs, in sbatch's own options."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from configs.settings.remote import DEFAULT_TIME, TIME, SlurmConfig, is_plain
from configs.settings.sbatch_options import UNUSED, variable
from launch.deadlines import SLURM_IS_SILENT_S, SLURM_WARNS_BEFORE_LIMIT_S
from launch.nodes.survey import last_line
from launch.slurm import controller
from launch.slurm.controller import scrubbed
from launch.slurm.submitit_jobs import NOTICES_IGNORED
from launch.spec import RUN_MODULE, Facts
from muster.checkout import CHECKOUT, nodes_python
from muster.errors import MusterError, UsageError, refuse

DAY_MIN = 24 * 60
ENDLESS = ("infinite", "UNLIMITED", "INFINITE")
CORES = {"cpus_per_task", "cpus_per_gpu"}  # one of these sets the number of cores

Options = dict[str, str | int | bool]


def asked(config: SlurmConfig) -> Options:
    """The options that the user gave, by sbatch's own names."""
    own = {name: value for name, value in vars(config).items() if name not in ("slurm", "wait")}
    more = {
        option.name.replace("-", "_"): True if option.value is None else option.value
        for option in config.slurm
    }
    return {name: value for name, value in own.items() if value is not None} | more


def options(config: SlurmConfig, env: Mapping[str, str], run_id: str, facts: Facts) -> Options:
    """sbatch's options by their names; the user's own come last."""
    cores = _cores(config, env, facts)
    limit_s = 60 * minutes(_time(config, env) or DEFAULT_TIME)
    # not so early that the leader of a short job cannot receive it yet
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
        **asked(config),
    }


def _cores(config: SlurmConfig, env: Mapping[str, str], facts: Facts) -> int | None:
    """A core for each worker of a node; with GPUs, the nodes' cores for each of these.

    None if options, or the cluster's own DefCpuPerGPU, set the number. Without either, Slurm gives
    a task one core, whatever GPUs it has.
    """
    if CORES & asked(config).keys() or any(f"SBATCH_{name.upper()}" in env for name in CORES):
        return None
    if gpus := gpus_asked(config, env):
        wanted = config.partition or env.get("SBATCH_PARTITION") or ""
        return gpus * (controller.cores_per_gpu(wanted, env) or 0) or None
    counts = [node.nproc.number for node in facts.nodes]
    return max((count for count in counts if count is not None), default=None)


def _time(config: SlurmConfig, env: Mapping[str, str]) -> str | None:
    """The limit that is asked for, if that is a time; Slurm itself refuses what is none."""
    limit = config.time or env.get(variable("time"), "")
    return limit if TIME.fullmatch(limit) else None


def gpus_asked(config: SlurmConfig, env: Mapping[str, str]) -> int:
    """The GPUs of a node in --gpus-per-node or --gres; without these, in sbatch's variables."""
    theirs = (env.get(variable(name)) for name in ("gpus-per-node", "gres"))
    return _gpus(config.gpus_per_node, config.gres) or _gpus(*theirs)


def _gpus(each: str | None, gres: str | None) -> int:
    """The GPUs in values such as 4 or a100:4 of `each`, else gpu:a100:4 or gpu of `gres`."""
    named = [one for one in (gres or "").split(",") if one.startswith("gpu")]
    counts = [one.rpartition(":")[2] for one in (each.split(",") if each else named)]
    return sum(int(count) if count.isdigit() else 1 for count in counts)


def refuse_what_slurm_refuses(config: SlurmConfig, env: Mapping[str, str], facts: Facts) -> None:
    """Let Slurm itself check the job, before anything is made.

    Raises:
        UsageError: it would refuse the job; with its own message.
        MusterError: it is not installed, or does not answer.
    """
    given = flags(options(config, env, "test", facts))
    asked = controller.ask(["sbatch", "--test-only", *given, "--wrap=true"], env)
    if "Unable to contact" in asked.stderr:
        raise controller.Silent(
            f"Slurm does not answer: {last_line(asked.stderr)}; try again later, or "
            "train on this machine with --launcher local"
        )
    if asked.returncode:
        lines = [line.rpartition("error: ")[2] for line in asked.stderr.splitlines()]
        lines = [line.removeprefix("allocation failure: ") for line in lines if line]
        found = (f"{line}; sinfo shows what the cluster has" for line in lines)
        refuse(found, "Slurm would not take this job: ")
        raise UsageError("Slurm would not take this job, and gives no reason")
    refuse(dict.fromkeys(_never_starts(config, env)))


def _never_starts(config: SlurmConfig, env: Mapping[str, str]) -> Iterator[str]:
    """Requests that Slurm accepts, unless it is set up to refuse them, but that wait for ever."""
    wanted = config.partition or env.get("SBATCH_PARTITION") or ""
    limit = _time(config, env)
    shown = controller.ask(["sinfo", "--noheader", "--format=%P %l"], env).stdout
    rows = (line.split() for line in shown.splitlines())
    # a row for each state; the default's ends with a star; others are a site's own words
    for name, allowed in (row for row in rows if len(row) == 2):
        is_wanted = name.rstrip("*") in wanted.split(",") if wanted else name.endswith("*")
        if is_wanted and limit and minutes(limit) > minutes(allowed):
            flag = "--time" if config.time else f"{variable('time')} is"
            yield f"{flag} {limit}, but partition {name.rstrip('*')} allows {allowed}"


def text(given: Options, command: str) -> str:
    """The batch script with these options of sbatch."""
    lines = [f"#SBATCH {flag}" for flag in flags(as_read(given), shlex.quote)]
    return "\n".join(["#!/bin/bash", *lines, "", NOTICES_IGNORED, command, ""])


def as_read(given: Options) -> Options:
    """The options as sbatch reads them in a script: a backslash counts between quotes, too."""
    return {
        name: value.replace("\\", "\\\\") if isinstance(value, str) else value
        for name, value in given.items()
    }


def file_name(folder: Path, pattern: str) -> str:
    """sbatch's pattern of the files in `folder`, in whose own path nothing is replaced.

    Raises:
        UsageError: a character in the path has another meaning for sbatch.
    """
    if "\\" in str(folder) or not is_plain(str(folder)):
        raise UsageError(
            f"{str(folder)!r}: sbatch reads a backslash or line break in a path in another way; "
            "choose another --logs-dir"
        )
    return f"{folder}/".replace("%", "%%") + pattern


def submit(
    folder: Path, given: Options, runs: Sequence[Path], env: Mapping[str, str], at_once: int = 1
) -> list[str]:
    """Submit the leaders of these runs through submitit; return the numbers of their jobs.

    Of several runs they are the parts of one job array, of which `at_once` run at a time. `folder`
    gets submitit's files.

    Raises:
        MusterError: Slurm refuses; with its own message.
        UsageError: submitit is not installed.
    """
    request = {
        "folder": str(folder),
        "python": python(),
        "options": as_read(given),
        "at_once": at_once,
        "runs": [str(run_dir) for run_dir in runs],
    }
    argv = [sys.executable, str(CHECKOUT / RUN_MODULE), "launch.slurm.submitit_jobs"]
    # the process itself waits half as long for sbatch
    asked = controller.ask(argv, env, 2 * SLURM_IS_SILENT_S, stdin=json.dumps(request))
    if asked.returncode:
        message = last_line(asked.stderr).removeprefix("error: ")
        raise (UsageError if asked.returncode == UsageError.exit_code else MusterError)(message)
    answer = json.loads(last_line(asked.stdout))
    if "refusal" in answer:
        raise MusterError(f"Slurm does not take the job: {last_line(answer['refusal'])}")
    job_ids: list[str] = answer["job_ids"]
    return job_ids


def flags(given: Options, quoted: Callable[[str], str] = str) -> list[str]:
    """The options as words of a command line, or of a script if `quoted` quotes their values."""
    return [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={quoted(str(value))}")
        for name, value in sorted(given.items())
    ]


def environment(slurm: SlurmConfig) -> dict[str, str]:
    """The environment of Slurm's commands: without a surrounding job, and defaults of our flags."""
    env = scrubbed(os.environ, asked(slurm))
    cluster = asked(slurm).get("clusters") or env.get("SBATCH_CLUSTERS")
    # for all of them, not sbatch alone
    return {**env, "SLURM_CLUSTERS": str(cluster)} if cluster else env


def notes(env: Mapping[str, str]) -> Iterator[str]:
    """A line for each variable of sbatch that is set, but does not reach it."""
    for name in sorted(UNUSED.keys() & env.keys()):
        yield f"note: {name} is not used: {UNUSED[name]}"


def minutes(text: str) -> float:
    """A time in sbatch's and sinfo's forms: minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s."""
    if text in ENDLESS:
        return float("inf")
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not dash and len(parts) < 3:
        parts.insert(0, 0)  # without days, one or two numbers begin with minutes
    hours, mins, secs = (*parts, 0, 0)[:3]
    return int(days or 0) * DAY_MIN + hours * 60 + mins + secs / 60


def python() -> str:
    """The Python for jobs, which have no activated shell: $MUSTER_PYTHON, else Muster's own.

    Raises:
        MusterError: there is no such program.
    """
    chosen = nodes_python()
    if found := shutil.which(chosen):
        return str(Path(found).absolute())
    raise MusterError(f"MUSTER_PYTHON is {chosen!r}, but there is no such program")
