"""Read and write the records of a run: how it was started, as which job, and how it ended.

`launch.json` has the plan, `job.json` the present leader, `exit.json` the end. One folder has
symbolic links to all runs of this user, in any project; `launch/jobs.py` lists them.
"""

import hashlib
import os
import pwd
import shlex
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from configs.settings.launch import RunConfig
from launch.ends import Kind
from launch.spec import LaunchSpec, NodeCommand
from muster import json_output, records, run_files
from muster.command import command_hint, split_env_values
from muster.errors import (
    MusterError,
    UsageError,
    at_limit,
    explained,
    is_full,
    lost_reader,
    name_of,
)
from muster.printable import counted, duration, on_one_line, printable, signal_name
from muster.writing import (
    CannotWrite,
    open_plain,
    tail,
    write_json,
    write_text,
)

END_FIELDS = ("code", "message")  # what each record of an end has
JOB_FIELDS = ("launcher", "job_id", "host", "pid")  # what each record of a leader has
NOT_YET = ""  # the job id of a run that is about to get one
# The folder for the links, in the state folder. A user without a home, as in some containers, has
# no state folder.
LINKS = "runs"
BOOT = Path("/proc/sys/kernel/random/boot_id")
Run = TypeVar("Run", bound=RunConfig)


def with_folder(run: Run, what: str, size: str, *, make: bool) -> Run:
    """The run with its id, or with a new id if it has none; with `make`, its folder is created.

    Raises:
        UsageError: the folder is in use, or cannot be created.
    """
    if run.run_id is None:
        run_id = run_files.new_run_id(run.logs_root, what, size, make=make)
        return replace(run, run_id=run_id)
    if make:
        run_files.claim(
            run.logs_root / run.run_id,
            run.inputs(),
            overwrite=run.overwrite,
            resumed=run.is_resumed,
        )
    return run


def record_launch(
    spec: LaunchSpec, plan: Sequence[NodeCommand], launcher: str, config: str
) -> None:
    """Record, before the start, the settings that repeat the run, its leader, and every command."""
    write_text(run_files.CONFIG.path(spec.run_dir), config, forced=True)
    planned = {
        "command": shlex.join(["python", *split_env_values(sys.argv)[0]]),
        "run_id": spec.run_id,
        "launcher": launcher,
        "stop_grace_s": spec.stop_grace_s,
        "nodes": [asdict(command) for command in plan],
    }
    write_json(run_files.LAUNCH.path(spec.run_dir), planned)
    remember(spec.run_dir)
    begin(spec, launcher, NOT_YET)


def begin(spec: LaunchSpec, launcher: str, job_id: str, *, cluster: str | None = None) -> None:
    """Record the run's leader; a process is identified by its pid and its start time.

    A job is identified by its number and its cluster's name, since several clusters may share a
    home directory.
    """
    job = {"launcher": launcher, "job_id": job_id, "cluster": cluster, **this_process()}
    write_json(run_files.JOB.path(spec.run_dir), job)


def record_submission(spec: LaunchSpec, launcher: str, job_id: str, cluster: str | None) -> None:
    """Record the number of a job that this process has submitted.

    The job's leader may have started already; then its own record also has the number.
    """
    job = read_job(spec.run_dir) or {}
    if job.get("job_id", NOT_YET) == NOT_YET:
        begin(spec, launcher, job_id, cluster=cluster)


def end(
    run_dir: Path,
    code: int,
    message: str,
    rank: int | None = None,
    cause: str = "",
    output: str = "",
) -> None:
    """Record that the run is over; see `end_record`."""
    record = end_record(code, message, rank, cause, output)
    write_end(run_files.EXIT.path(run_dir), record)


def end_record(
    code: int,
    message: str,
    rank: int | None = None,
    cause: str = "",
    output: str = "",
    value: Mapping[str, Any] | None = None,
    sentence: str = "",
) -> dict[str, Any]:
    """The record of a run that is over.

    `rank`: the rank that failed first. `cause`: the word of a `Kind`, or of the exit code.
    `output`: the last lines that this rank printed, if it left no traceback. `value`: the cause, an
    `ends.End`, as JSON. `sentence`: a sentence about that end, without a traceback.
    """
    return {
        "code": code,
        "message": message,
        "time_unix_s": time.time(),
        "rank": rank,
        "cause": cause or name_of(code),
        "output": output,
        "end": value,
        "sentence": sentence,
    }


def write_end(path: Path, record: Mapping[str, Any]) -> None:
    """Record how a run, or a part of it, ended; if this fails, print the reason on stderr."""
    try:
        write_json(path, record)
    except CannotWrite as error:
        with suppress(OSError):  # stderr may be a file on the same disk
            print(f"error: {error}", file=sys.stderr, flush=True)


@contextmanager
def ending(spec: LaunchSpec) -> Iterator[None]:
    """A context manager that records an error inside it as the end of the run."""
    try:
        yield
    except MusterError as error:
        cause = Kind.FULL.word if is_full(error.__cause__ or error) else ""
        end(spec.run_dir, error.exit_code, str(error), cause=cause)
        raise
    except OSError as error:
        if number := lost_reader(error):
            end(spec.run_dir, 128 + number, f"stopped by {signal_name(number)}")
        else:
            is_denied = isinstance(error, PermissionError) and error.filename is not None
            code = UsageError.exit_code if is_denied else MusterError.exit_code  # as `entry` ends
            cause = Kind.FULL.word if is_full(error) else ""
            end(spec.run_dir, code, explained(error), cause=cause)
        raise
    except Exception as error:
        text = at_limit(error) or f"{type(error).__name__}: {error}"
        end(spec.run_dir, MusterError.exit_code, text)
        raise


def print_next_commands(spec: LaunchSpec, where: str) -> None:
    """Print how to follow a run that continues on its own."""
    print(printable(f"{where}; run folder: {spec.run_dir}"))
    for verb in ("status", "logs -f", "cancel"):
        print(f"  muster jobs {verb} {spec.run_id}")
    sys.stdout.flush()


def size_and_time(run_dir: Path) -> str:
    """A run's size, and its time so far: `2 workers on 2 nodes, 3 min`; "" if not known."""
    ranks = nodes_of_ranks(run_dir)
    if not ranks or not run_files.CONFIG.path(run_dir).exists():
        return ""
    workers = f"{counted(len(ranks), 'worker')} on {counted(len({*ranks.values()}), 'node')}"
    return f"{workers}, {duration(time.time() - started_unix_s(run_dir))}"


def folder_line(run_dir: Path) -> str:
    """Where to look after a failure: `run folder: logs/a (2 workers on 2 nodes, 3 min)`."""
    about = size_and_time(run_dir)
    return f"run folder: {run_dir}{f' ({about})' if about else ''}"


def started_unix_s(run_dir: Path) -> float:
    """When the run was started, or submitted."""
    return changed_at_ns(run_files.CONFIG.path(run_dir)) / 1e9


def print_done(run_dir: Path) -> None:
    """Print how large the run was, how long it took, and a command that shows more."""
    if json_output.has_begun():
        return
    look = _report_command(run_dir, [run_dir]) or f"muster jobs logs {run_dir.name}"
    about = size_and_time(run_dir)
    print(f"done: {about}: {look}" if about else f"done: {look}", file=sys.stderr, flush=True)


def print_report_command(folder: Path, run_dirs: Iterable[Path]) -> None:
    """Print the command that makes a report of the records in `folder`, if one of the runs has any.

    Notes about anything that a report lacks come first. The command works from any folder. With
    --json, nothing is printed.
    """
    if not json_output.has_begun() and (command := _report_command(folder, run_dirs)):
        print(command, flush=True)


def _report_command(folder: Path, run_dirs: Iterable[Path]) -> str:
    """See `print_report_command`; "" if the runs have no records."""
    if not any(run_files.METRICS.find(run_dir) for run_dir in run_dirs):
        return ""
    from muster import extras  # imported here, since most users of records do not need it

    for problem in extras.problems(extras.REPORT):
        print(f"note: {on_one_line(problem)}", file=sys.stderr, flush=True)
    return on_one_line(command_hint("report", str(folder.absolute())))


def output_lines(
    run_dir: Path, rank: int | None, output: str, attempt_number: int | None = None
) -> list[str]:
    """The last lines that the failed rank printed, and the command that prints all of them.

    Empty if no rank failed, or if that rank printed nothing. `attempt_number`: from 1, if other
    attempts may follow.
    """
    files = (run_files.OUTPUT, run_files.ERRORS)
    has_log = any(tail(file.path(run_dir, rank=rank), 1) for file in files if rank is not None)
    if rank is None or not (output or has_log):
        return []
    printed = [f"  {line}" for line in str(output).splitlines()]
    head = ["its output ends with:"] if printed else []
    of_attempt = "" if attempt_number is None else f" --attempt {attempt_number}"
    return [
        *head,
        *printed,
        f"all of its output: muster jobs logs {run_dir.name}{of_attempt} --rank {rank}",
    ]


def read_end(run_dir: Path) -> dict[str, Any] | None:
    """How the run ended; None if it has not, or no process was left to record it."""
    return records.read(run_files.EXIT, run_files.EXIT.path(run_dir), *END_FIELDS)


def read_job(run_dir: Path) -> dict[str, Any] | None:
    """The leader of the run."""
    return records.read(run_files.JOB, run_files.JOB.path(run_dir), *JOB_FIELDS)


def why_unreadable(run_dir: Path) -> str:
    """One line if the record of the run's end, or of its leader, is damaged; else ""."""
    of_end = records.why_unreadable(run_files.EXIT, run_files.EXIT.path(run_dir), *END_FIELDS)
    job = run_files.JOB.path(run_dir)
    return of_end or records.why_unreadable(run_files.JOB, job, *JOB_FIELDS)


def own_job(run_dir: Path) -> dict[str, Any] | None:
    """The leader of the run, for a caller that will act on the process or job in the record.

    Raises:
        UsageError: the record belongs to another user.
    """
    path = run_files.JOB.path(run_dir)
    with suppress(OSError), open_plain(path) as file:
        owner = os.fstat(file.fileno()).st_uid
        if owner != os.geteuid():
            raise UsageError(
                f"{path} belongs to {_user(owner)}, and only {_user(owner)} can act on the process "
                "or job that it names"
            )
        return records.record_of(run_files.JOB, file.read(), *JOB_FIELDS)
    return None


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:  # of another machine, or of a container
        return f"user {number}"


def stop_grace_s(run_dir: Path) -> float:
    """The time that the run's workers have to stop cleanly."""
    planned = records.read(run_files.LAUNCH, run_files.LAUNCH.path(run_dir)) or {}
    return float(planned.get("stop_grace_s", LaunchSpec.stop_grace_s))


def all_done(run_dir: Path, world_size: int | None) -> bool:
    """Whether `world_size` workers have recorded that they ended well; false for None."""
    return [end.get("cause") for end in _rank_ends(run_dir)].count("done") == world_size


def unconnected_workers_line(run_dir: Path) -> str:
    """A line if a run had several workers that never connected to each other; else "".

    A worker that is not a Python program, or has no torch, does not record whether it connected.
    """
    has_met = [end.get("process_group") for end in _rank_ends(run_dir)]
    if len(has_met) < 2 or any(value is not False for value in has_met):
        return ""
    return f"none of the {len(has_met)} workers created a process group: each ran alone"


def _rank_ends(run_dir: Path) -> list[dict[str, Any]]:
    paths = run_files.RANK_END.find(run_dir)
    return [records.read(run_files.RANK_END, path) or {} for path in paths]


def change_stamp(run_dir: Path) -> tuple[int, ...]:
    """Values that change when an agent starts or ends, or a job ends: the state may be new then."""
    agents = run_files.AGENT.path(run_dir, node=0).parent
    paths = (agents, run_files.EXIT.path(run_dir), run_files.JOB.path(run_dir))
    return tuple(map(changed_at_ns, paths))


def changed_at_ns(path: Path) -> int:
    """When a file or folder was last changed; 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def nodes_of_ranks(run_dir: Path) -> dict[int, str]:
    """The node of each rank, as far as agents have recorded it."""
    paths = run_files.AGENT.find(run_dir)
    agents = [records.read(run_files.AGENT, path, "node", "ranks") for path in paths]
    return {rank: agent["node"] for agent in agents if agent is not None for rank in agent["ranks"]}


def go_on_in_background(spec: LaunchSpec) -> bool:
    """Fork; return true in the child, which has no terminal: its output goes to the run folder.

    As soon as the child leads the run, the parent prints how to follow the run.
    """
    parent_end, child_end = os.pipe()
    if os.fork():
        os.close(child_end)
        os.read(parent_end, 1)  # no data arrives: the pipe closes when the child leads the run
        print_next_commands(spec, "in the background")
        return False
    job = read_job(spec.run_dir) or {}
    begin(spec, str(job.get("launcher", "")), NOT_YET)
    os.close(child_end)
    os.close(parent_end)
    leave_terminal(run_files.LAUNCHER_LOG.path(spec.run_dir))
    return True


def leave_terminal(log: Path) -> None:
    """Detach this process from its terminal, in a new session; it prints to `log`."""
    json_output.end()
    os.setsid()
    os.chdir("/")
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)


def this_process() -> dict[str, Any]:
    """What identifies this process, as JSON: its host, its pid and its start."""
    return {"host": socket.gethostname(), "pid": os.getpid(), **process_start(os.getpid())}


def process_start(pid: int) -> dict[str, Any]:
    """The start of process `pid`, as JSON; a later process with the same pid has another start.

    The wall time of a start depends on the machine's clock, and changes when somebody sets the
    clock. The kernel's own count since boot does not.

    Raises:
        psutil.Error: there is no such process.
    """
    import psutil  # imported here: --help and --dry-run do not need it

    start: dict[str, Any] = {"started_unix_s": psutil.Process(pid).create_time()}
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # field 22 of the file, the 20th after the process's name
        start["start_ticks"] = int(stat.rpartition(")")[2].split()[19])
        start["boot_id"] = BOOT.read_text(encoding="utf-8").strip()
    except OSError:
        pass  # macOS: its kernel stores the wall time, and does not change it
    return start


def is_same_process(pid: int, record: Mapping[str, Any]) -> bool:
    """Whether process `pid` is the one in `record`, by its `process_start`.

    Raises:
        psutil.Error: there is no such process.
    """
    start = process_start(pid)
    if "boot_id" in record and "boot_id" in start:
        return all(record.get(name) == start[name] for name in ("boot_id", "start_ticks"))
    return abs(float(start["started_unix_s"]) - float(record.get("started_unix_s", 0.0))) < 0.1


def remember(run_dir: Path) -> None:
    """Create a symbolic link to a run folder; without it, the run is found only by its path."""
    digest = hashlib.sha256(str(run_dir).encode()).hexdigest()[:8]
    with suppress(OSError, RuntimeError):
        links = run_files.state_folder(os.environ) / LINKS
        links.mkdir(parents=True, exist_ok=True)
        (links / f"{run_dir.name}-{digest}").symlink_to(run_dir)


def links() -> list[tuple[Path, Path]]:
    """The links to the run folders of this user, each with the folder that it leads to."""
    with suppress(OSError, RuntimeError):
        folder = run_files.state_folder(os.environ) / LINKS
        return [(link, link.readlink()) for link in sorted(folder.iterdir()) if link.is_symlink()]
    return []


def run_folders() -> list[Path]:
    """The existing run folders.

    A link to a missing folder stays: its disk may not be mounted, or may be another machine's.
    """
    paths = [run_dir for _, run_dir in links()]
    return [path for path in paths if os.path.isdir(path)]  # noqa: PTH112 (is_dir raises without permission)
