"""Look after runs, however they were started: `launch/jobs.py list|top|status|logs|...`."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# A script's own folder comes first on the path, and a file in it could hide a library: the
# repository takes its place.
sys.path[: not sys.flags.safe_path] = [str(Path(__file__).resolve().parent.parent)]

from muster import errors

errors.begin()

import argparse
import json
import time
from dataclasses import asdict

from configs.plugins import REPOSITORY
from launch.agent.inspection import questions
from launch.runs import run_record, run_state
from launch.runs.log_tail import Follower
from launch.runs.watching import overview, run_activity
from launch.runs.watching.step_progress import last_steps
from muster import run_files
from muster.errors import UsageError
from muster.run_files import project_of
from muster.writing import read_json

POLL_S = 0.5


def main() -> int:
    args = _parser().parse_args()
    root = args.logs_dir
    match args.verb:
        case "list":
            return _list(root, args.number)
        case "top":
            return overview.top(lambda: _runs(root), number=args.number, once=args.once)
        case "status":
            return (_status_json if args.json else _status)(_find(root, args.run))
        case "logs":
            return _logs(_find(root, args.run), args.rank, follow=args.follow)
        case "stacks" if args.native:
            raise UsageError(
                "there is no --native any more; --full names each rank's process, of which "
                "py-spy dump --native --pid PID shows C frames on its node"
            )
        case "stacks":
            questions.stacks(_find(root, args.run), full=args.full)
            return 0
        case "debug":
            raise UsageError(
                "there is no jobs debug any more; jobs stacks says where each rank is, and "
                "breakpoint() works in a program that runs alone: python train.py"
            )
        case _:
            run_state.cancel(_find(root, args.run), print)
            return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python launch/jobs.py", description="Look after runs.")
    parser.add_argument(
        "--logs-dir",
        type=Path,
        help="where run folders are (default: wherever your runs are)",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="the latest runs, newest first")
    listing.add_argument("-n", dest="number", type=int, default=20, help="how many (default: 20)")
    table = verbs.add_parser("top", help="all runs and what they do, refreshed; Ctrl-C ends it")
    table.add_argument("-n", dest="number", type=int, default=50, help="of so many (default: 50)")
    table.add_argument("--once", action="store_true", help="show it once, as in a script")
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument("run", nargs="?", help="run id, its beginning, or job id; default: the latest")
    status = verbs.add_parser("status", parents=[one], help="what one run is doing")
    status.add_argument("--json", action="store_true", help="as one object, for programs")
    logs = verbs.add_parser("logs", parents=[one], help="what its workers print")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run is over")
    logs.add_argument("--rank", type=int, help="of this rank only")
    stacks = verbs.add_parser("stacks", parents=[one], help="where each rank is, and what hangs")
    stacks.add_argument("--full", action="store_true", help="all threads of all ranks, too")
    stacks.add_argument("--native", action="store_true", help=argparse.SUPPRESS)
    verbs.add_parser("debug", parents=[one]).add_argument("--rank")
    verbs.add_parser("cancel", parents=[one], help="end it, and everything it started")
    return parser


def _runs(root: Path | None) -> list[Path]:
    """The run folders, newest first; without a `root` those of this user that are known."""
    roots = [root] if root else [REPOSITORY / "logs", project_of(Path.cwd()) / "logs"]
    found = {path for one in roots for path in one.glob(f"*/{run_files.CONFIG.pattern}")}
    if root is None:
        found |= {run_files.CONFIG.path(run_dir) for run_dir in run_record.run_folders()}
    times = {}
    for path in found:
        with suppress(OSError):  # a run that is being removed, or another user's
            times[path.parent] = path.stat().st_mtime
    return sorted(times, key=times.__getitem__, reverse=True)


def _find(root: Path | None, wanted: str | None) -> Path:
    """One run folder.

    Raises:
        UsageError: none fits, or several do; lists them.
    """
    runs = _runs(root)
    if not runs:
        raise UsageError(
            f"no runs in {root or REPOSITORY / 'logs'}; start one with python launch/submit.py"
        )
    if wanted is None:
        return runs[0]
    fits = [run for run in runs if run.name == wanted] or _newest_of_job(runs, wanted)
    fits = fits or [run for run in runs if run.name.startswith(wanted)]
    if len(fits) != 1:
        names = ", ".join(run.name for run in (fits or runs)[:5])
        which = "fits several runs" if fits else "fits no run"
        raise UsageError(f"{wanted!r} {which}: {names}")
    return fits[0]


def _newest_of_job(runs: Sequence[Path], job_id: str) -> list[Path]:
    """The newest run of a job, which may have been requeued; one for each cluster's job."""
    newest: dict[str | None, Path] = {}
    for run in runs:
        job = run_record.read_job(run) or {}
        if job.get("job_id") == job_id:
            newest.setdefault(job.get("cluster"), run)
    return list(newest.values())


def _list(root: Path | None, number: int) -> int:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("run", "through", "job", "state", "more"):
        table.add_column(column, no_wrap=column != "more")
    watchers = run_state.Watchers()
    for run in _runs(root)[:number]:
        job, state = run_record.read_job(run) or {}, run_state.of(run, watchers)
        where = (str(job.get("launcher", "")), str(job.get("job_id", "")))
        table.add_row(run.name, *where, state.word, state.detail)
    # a file or a pipe has no width that lines must be broken for
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    return 0


def _status(run: Path) -> int:
    state = run_state.of(run)
    print(f"{run.name}: {state.word}{f' ({state.detail})' if state.detail else ''}")
    for line in run_activity.lines(run, state):
        print(line, flush=True)
    print(f"run folder: {run}")
    for path in run_files.AGENT.find(run):
        here = read_json(path, "ranks", "node", "address", "interface")
        if here is None:
            continue
        ranks = ", ".join(map(str, here["ranks"]))
        print(f"{here['node']}: {here['address']} on {here['interface']}, rank {ranks}")
    if steps := last_steps(run_files.METRICS.path(run, rank=0)):
        last = steps[-1]
        print(f"step {last['step']}, epoch {last['epoch']}, loss {last['loss']:.6f}")
    return 0


def _status_json(run: Path) -> int:
    state = run_state.of(run)
    notes = list(run_activity.lines(run, state))
    print(json.dumps({"run_id": run.name, "run_dir": str(run), **asdict(state), "notes": notes}))
    return 0


def _logs(run: Path, rank: int | None, *, follow: bool) -> int:
    follower = Follower(run, prefixes=True, only=rank, consequences=True)
    watchers = run_state.Watchers()
    while True:
        over = run_state.of(run, watchers).over
        follower.nodes = run_record.nodes_of_ranks(run)
        follower.poll(last=over or not follow)
        if over or not follow:
            if rank is not None and follower.nodes and rank not in follower.nodes:
                known = f"{min(follower.nodes)} to {max(follower.nodes)}"
                raise UsageError(f"--rank {rank}: {run.name} has ranks {known}")
            return 0
        time.sleep(POLL_S)


if __name__ == "__main__":
    errors.run(main)
