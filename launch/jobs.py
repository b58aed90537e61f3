"""Manage runs, however they were started: `launch/jobs.py list|status|logs|...`."""

if __name__ == "__main__":  # as a script, which has no module of ours on its path yet
    from pathlib import Path
    from runpy import run_path

    run_path(f"{Path(__file__).resolve().parents[1]}/muster/run_module.py")["start"](__file__)

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from rich.filesize import decimal

from configs.help_page import Parser, at_login, describe
from configs.raw import with_home
from launch.agent.inspection import questions
from launch.deadlines import FOLLOWED_JOB_TICK_S
from launch.runs import leftovers, node_history, run_record, run_state, waiting
from launch.runs.log_tail import Follower
from launch.runs.run_state import Watchers
from launch.runs.watching import run_activity, run_document
from muster import json_output, records, run_files
from muster.command import this_command
from muster.errors import UsageError
from muster.printable import on_one_line, printable
from muster.run_files import own_logs, project_of
from muster.terminal import TIP

PIPE_WIDTH = 200  # lines in a file or a pipe need not be broken
# The settings of `clean` that name nodes with their own disk, as for `muster run`.
NODE_FLAGS = {
    "hosts": ("HOSTS", "nodes with their own disk, as for muster run"),
    "on": ("CLUSTER", "cluster in muster.toml with these nodes"),
    "ssh_config": ("FILE", "ssh configuration file"),
    "user": ("NAME", "user name on the nodes"),
    "remote_dir": ("FOLDER", "Muster's folder on the nodes"),
}


def main() -> int:
    parser = _parser()
    args = parser.parse_args()
    if args.verb is None:
        parser.print_help(sys.stderr)
        raise UsageError("no verb given\ntip: choose one of these, as in muster jobs list")
    if args.json:
        json_output.begin()
    root = args.logs_dir
    match args.verb:
        case "list":
            _list(_runs(root), args.number, None if args.all else _project_logs(root))
        case "nodes":
            _nodes(args.clear)
        case "status":
            _status(_find(root, args.run))
        case "wait":
            patience_s = None if args.patience is None else waiting.seconds(args.patience)
            return waiting.wait(_find(root, args.run), patience_s)
        case "logs":
            run = _find(root, args.run)
            files = _attempt(run, args.attempt)
            if args.tail is not None and args.tail < 0:
                raise UsageError(f"--tail must be at least 0 (got {args.tail})")
            return _logs(run, files, args.rank, follow=args.follow, tail=args.tail)
        case "stacks":
            questions.stacks(_find(root, args.run), full=args.full)
        case "clean":
            return _clean(args)
        case "fetch":  # `muster` itself takes it to the login node
            raise UsageError("fetch copies runs from a login node\ntip: use muster jobs fetch RUN")
        case _:
            run = _only_active(root) if args.run is None else _find(root, args.run)
            run_state.cancel(run, lambda line: print(printable(line)))
            json_output.emit("run", **run_document.all_fields(run, run_state.state_of(run)))
    return 0


def _parser() -> argparse.ArgumentParser:
    prog = this_command()
    parser = Parser(prog=prog, description="Show, follow and end runs.", epilog=at_login(prog))
    of_logs = "folder with run folders (default: all of your known runs)"
    parser.add_argument("--logs-dir", type=Path, metavar="FOLDER", help=of_logs)
    verbs = parser.add_subparsers(
        dest="verb", title="verbs", description=f"each has a help: {prog} VERB --help",
        metavar="VERB",
    )  # fmt: skip
    printed = Parser(add_help=False)
    printed.add_argument("--json", action="store_true", help="print one JSON object per line")
    located = Parser(add_help=False, parents=[printed])  # for verbs that look for runs
    located.add_argument(
        "--logs-dir", type=Path, metavar="FOLDER", default=argparse.SUPPRESS, help=of_logs
    )
    listing = verbs.add_parser(
        "list", parents=[located], help="list the latest runs, and their state"
    )
    listing.add_argument(
        "-n",
        dest="number",
        type=int,
        default=20,
        metavar="N",
        help="how many to list (default: 20)",
    )
    listing.add_argument("--all", action="store_true", help="include runs of other projects")
    nodes = verbs.add_parser("nodes", parents=[printed], help="list nodes that caused failures")
    nodes.add_argument(
        "--clear", nargs="*", metavar="NODE", help="forget the failures of these nodes, or all"
    )
    named = Parser(add_help=False, parents=[located])  # for verbs that name a run
    named.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="run id or its beginning, run folder, or job id (default: this project's latest "
        "active run, or else its latest run)",
    )
    verbs.add_parser("status", parents=[named], help="show what a run is doing")
    wait = verbs.add_parser(
        "wait", parents=[named], help="wait until a run ends, and exit with its exit code"
    )
    wait.add_argument(
        "--for",
        dest="patience",
        metavar="TIME",
        help="wait at most this long: 90 (seconds), 30m or 2h; then exit with code 124",
    )
    logs = verbs.add_parser("logs", parents=[named], help="show the output of a run's workers")
    until = logs.add_mutually_exclusive_group()
    until.add_argument(
        "-f", "--follow", action="store_true", help="keep printing until the run is over"
    )
    until.add_argument(
        "--attempt", type=int, metavar="N",
        help="attempt of a restarted run: 1 is the first (default: the last)",
    )  # fmt: skip
    logs.add_argument(
        "--tail",
        type=int,
        metavar="N",
        help="show only the last N lines of each rank's stdout and stderr",
    )
    logs.add_argument("--rank", type=int, metavar="N", help="show only the output of this rank")
    stacks = verbs.add_parser(
        "stacks", parents=[named], help="show what each rank of a run is doing or waiting for"
    )
    stacks.add_argument("--full", action="store_true", help="also show all threads of all ranks")
    cancel = verbs.add_parser(
        "cancel", parents=[located], help="end a run, and everything it started"
    )
    cancel.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="run id or its beginning, run folder, or job id (default: this project's active run, "
        "if there is exactly one)",
    )
    clean = verbs.add_parser(
        "clean",
        parents=[printed],
        help="show or remove what runs left behind outside their run folders",
    )
    clean.add_argument(
        "--remove", action="store_true", help="remove what would otherwise be listed"
    )
    for name, (metavar, text) in NODE_FLAGS.items():
        clean.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)
    verbs.add_parser("fetch", parents=[printed], help="copy a run's files here from its login node")
    describe(verbs)
    return parser


def _runs(root: Path | None) -> list[Path]:
    """The run folders, newest first; without a `root`, all known run folders of this user."""
    roots = [root] if root else [own_logs(), project_of(Path.cwd()) / "logs"]
    paths = {path for logs in roots for path in logs.glob(f"*/{run_files.CONFIG.pattern}")}
    if root is None:
        paths |= {run_files.CONFIG.path(run_dir) for run_dir in run_record.run_folders()}
    times = {}
    for path in paths:
        with suppress(OSError):  # a run that is being removed, or another user's
            times[path.parent] = path.stat().st_mtime
    return sorted(times, key=times.__getitem__, reverse=True)


def _find(root: Path | None, wanted: str | None) -> Path:
    """The folder of the run `wanted`, which is its path, its id or the beginning, or a job id.

    If `wanted` is None, see `_latest`.

    Raises:
        UsageError: no run matches, or several do; the message lists them.
    """
    if wanted is not None and "/" in wanted:
        return _run_in(wanted)
    runs = _runs(root)
    if not runs:
        where = f" in {root}" if root else ""
        raise UsageError(f"no runs found{where}\ntip: start one with muster run")
    if wanted is None:
        return _latest(_project_logs(root), runs)
    fits = [run for run in runs if run.name == wanted] or _newest_of_job(runs, wanted)
    fits = fits or [run for run in runs if run.name.startswith(wanted)]
    if len(fits) != 1:
        names = ", ".join(run.name for run in (fits or runs)[:5])
        if fits:
            raise UsageError(f"{wanted!r} matches several runs: {names}")
        raise UsageError(f"no run is named {wanted!r}; the latest runs: {names}")
    return fits[0]


def _run_in(folder: str) -> Path:
    """The run folder with this path.

    Raises:
        UsageError: it is not a run folder.
    """
    run = Path(with_home(folder)).absolute()
    config = run_files.CONFIG.path(run)
    try:
        config.stat()
    except OSError as error:
        raise UsageError(f"{folder} is not a run folder: {config}: {error.strerror}") from None
    return run


def _project_logs(root: Path | None) -> Path:
    """The folder of this project's runs; `root`: the folder that the user gave, if any."""
    return (root or project_of(Path.cwd()) / "logs").resolve()


def _latest(logs: Path, runs: Sequence[Path]) -> Path:
    """The newest active run in `logs`, or else the newest run there; `runs`: newest first.

    If all runs are elsewhere, it is the newest of them, and a printed note names its folder.
    """
    own = [run for run in runs if run.resolve().is_relative_to(logs)]
    if not own:
        note = f"note: no runs in {logs}; this is the latest run in {runs[0].parent}"
        print(on_one_line(note), file=sys.stderr)
        return runs[0]
    return (_active(own) or own)[0]


def _active(runs: Sequence[Path]) -> list[Path]:
    """The runs that are not over, except those that only another machine can watch and end."""
    states = zip(runs, run_state.states_of(runs, Watchers()), strict=True)
    return [run for run, state in states if not state.is_over and state.word != "elsewhere"]


def _only_active(root: Path | None) -> Path:
    """The only active run of this project: `cancel` without a name ends it.

    Raises:
        UsageError: several runs are active, or only runs elsewhere are; the message lists them.
    """
    runs = [*{run.resolve(): run for run in _runs(root)}.values()]
    active = _active(runs)
    logs = _project_logs(root)
    own = [run for run in active if run.resolve().is_relative_to(logs)]
    if len(own) == 1:
        return own[0]
    if not active:
        return _find(root, None)  # that run is over already
    which = f"{len(own)} runs are active" if own else f"no run in {logs} is active; elsewhere"
    names = ", ".join(run.name for run in own or active)
    raise UsageError(f"{which}: {names}\ntip: choose the run to end: muster jobs cancel RUN")


def _newest_of_job(runs: Sequence[Path], job_id: str) -> list[Path]:
    """The newest run of a job, which may have been requeued; several if clusters share the id."""
    newest: dict[str | None, Path] = {}
    for run in runs:
        job = run_record.read_job(run) or {}
        if job_id == job.get("job_id"):
            newest.setdefault(job.get("cluster"), run)
    return list(newest.values())


def _status(run: Path) -> None:
    state = run_state.state_of(run)
    known = run_document.all_fields(run, state)
    json_output.emit("run", **known)
    lines = [f"{run.name}: {state.word}{f' ({state.detail})' if state.detail else ''}"]
    lines += [*known["notes"], f"run folder: {run}"]
    for node in known["nodes"]:
        ranks = ", ".join(map(str, node["ranks"]))
        lines.append(f"{node['node']}: {node['address']} on {node['interface']}, rank {ranks}")
    if last := known["step"]:
        pace = run_activity.pace(last["step_s"])
        loss = f"loss {last['loss']:.6f}"
        lines.append(f"step {last['step']}, epoch {last['epoch']}, {loss}, {pace}")
    lines += records.all_unreadable(run)
    if end := known["end"]:
        lines += run_record.output_lines(run, end["rank"], end["output"])
    print(*map(on_one_line, lines), sep="\n")


def _list(runs: Sequence[Path], number: int, logs: Path | None) -> None:
    """Print the newest runs, with the newest last; `logs`: only the runs in this folder.

    The JSON document lists the newest runs of all folders, with the newest first.
    """
    from configs import console
    from launch.runs.watching import run_table

    listed = runs if logs is None else [run for run in runs if run.resolve().is_relative_to(logs)]
    rows = run_table.rows_of(listed)[:number]
    wanted = [*dict.fromkeys([run for row in rows for run in row])]
    if json_output.has_begun():
        wanted = [*dict.fromkeys([*runs[:number], *wanted])]
    states = dict(zip(wanted, run_state.states_of(wanted, Watchers()), strict=True))
    if json_output.has_begun():
        documents = [run_document.few_fields(run, states[run]) for run in runs[:number]]
        json_output.emit("runs", runs=documents)
    shown = [[(run, states[run]) for run in row] for row in reversed(rows)]
    console.show(run_table.table(shown), pipe_width=PIPE_WIDTH)
    if runs and not listed:
        note = f"note: no runs in {logs}{TIP}add --all to see runs of other projects"
        print(printable(note), file=sys.stderr)


def _nodes(clear: Sequence[str] | None) -> None:
    if clear is not None:
        node_history.forget(clear)
    failures = node_history.failures()
    json_output.emit("nodes", failures=failures)
    if not failures:
        print("no node has caused a failure in seven days")
    for failure in failures:
        clock = time.strftime("%Y-%m-%d %H:%M", time.localtime(failure["time_unix_s"]))
        node = f"{failure['node']} ({failure['cluster']})"
        what = f"{node}, {failure['run_id']}: {failure['message']}"
        print(f"{clock}  {on_one_line(what)}")


def _clean(args: argparse.Namespace) -> int:
    """Show or remove what runs have left here and on nodes; return 1 if a part of that failed."""
    # imported here: the other verbs do not need them, and start in two thirds of the time
    from configs import cli
    from configs.settings.launch import LaunchConfig
    from configs.settings.remote import Settings, SlurmConfig, SshConfig
    from launch.launchers.ssh import Ssh
    from launch.ssh import openssh
    from launch.ssh.node_leftovers import on_nodes

    given = {name: text for name in NODE_FLAGS if (text := getattr(args, name)) is not None}
    words = [f"--{name.replace('_', '-')}={text}" for name, text in given.items()]
    classes = [LaunchConfig, SshConfig, SlurmConfig]
    settings = Settings(*cli.parse(classes, words, prog="muster jobs clean", description=""))
    left = leftovers.here()
    failed: list[str] = []
    if args.remove:
        left = [leftover if leftover.stays else leftovers.remove(leftover) for leftover in left]
    if settings.launch.hosts is not None:
        transport = openssh.transport(Ssh(settings).specs(), settings.ssh)
        folder = settings.ssh.remote_dir
        of_nodes, failed = on_nodes(transport, folder, leftovers.running(), remove=args.remove)
        left += of_nodes
    json_output.emit("leftovers", removed=args.remove, leftovers=list(map(asdict, left)))
    _show_leftovers(left, "" if args.remove else shlex.join([*words, "--remove"]))
    failed += [f"{leftover.path}: {leftover.error}" for leftover in left if leftover.error]
    for line in failed:
        print(f"error: {on_one_line(line)}", file=sys.stderr)
    return 1 if failed else 0


def _show_leftovers(left: Sequence[leftovers.Leftover], to_remove: str) -> None:
    """Print `left`; `to_remove`: the words of the command to remove it, "" if it was removed."""
    for leftover in left:
        print(printable(leftover.lines()))
    going = [leftover for leftover in left if not leftover.stays]
    total = f"{len(going)} in total, {decimal(sum(leftover.size_bytes for leftover in going))}"
    if not to_remove:
        print(f"removed: {total}")
    elif going:
        print(f"{total}; to remove them: muster jobs clean {to_remove}")
    else:
        print("there is nothing to remove")


def _attempt(run: Path, number: int | None) -> Path:
    """The folder with the output of an attempt; for the last attempt, the run's folder.

    Raises:
        UsageError: there is no such attempt.
    """
    earlier = run_files.attempt_folders(run)  # their names count from 0
    folders = {attempt + 1: folder for attempt, folder in earlier.items()}
    last = max(folders, default=0) + 1
    if number not in (None, last, *folders):
        raise UsageError(f"--attempt {number}: {run.name} has attempts 1 to {last}")
    return run if number is None else folders.get(number, run)


def _logs(
    run: Path, files: Path, rank: int | None, *, follow: bool, tail: int | None = None
) -> int:
    """Print the output in `files`, the folder of the run or of an earlier attempt.

    `tail`: print only this many lines at the end of each file that already exists.

    Raises:
        UsageError: the run has no such rank.
        OSError: the output cannot be written, as on a full disk.
    """
    as_json = json_output.has_begun()
    follower = Follower(
        files, prefixes=True, only=rank, consequences=True, as_json=as_json, tail=tail
    )
    watchers = run_state.Watchers()
    while True:
        over = run_state.state_of(run, watchers).is_over
        follower.nodes = run_record.nodes_of_ranks(files)
        follower.poll(last=over or not follow)
        if follower.error is not None:
            raise follower.error
        if over or not follow:
            if rank is not None and follower.nodes and rank not in follower.nodes:
                ranks = f"{min(follower.nodes)} to {max(follower.nodes)}"
                raise UsageError(f"--rank {rank}: {run.name} has ranks {ranks}")
            return 0
        time.sleep(FOLLOWED_JOB_TICK_S)
