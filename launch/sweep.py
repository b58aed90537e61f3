"""Run a program with every combination of some values: `muster sweep --over lr=1,2 -- train.py`."""

if __name__ == "__main__":  # as a script, which has no module of ours on its path yet
    from pathlib import Path
    from runpy import run_path

    run_path(f"{Path(__file__).resolve().parents[1]}/muster/run_module.py")["start"](__file__)

import argparse
import os
import sys
from pathlib import Path

from configs.cli import dashed_flags
from configs.help_page import Parser, at_login
from launch.programs.command_line import split_program
from launch.runs import run_record
from launch.studies import around_runs, array_job, cell_runs, cells
from launch.studies.progress_table import conclude
from muster import json_output, run_files
from muster.command import VALUES, own_arguments, this_command
from muster.errors import UsageError
from muster.run_files import own_logs, project_of


def main() -> int:
    own, program = split_program(own_arguments())
    args, flags = _parser().parse_known_args(dashed_flags(own))
    if args.json:
        json_output.begin()
    if args.at_once < 1:
        raise UsageError(f"--at-once must be at least 1 (got {args.at_once})")
    if args.cells is not None:
        sweep = cells.from_file(args.cells, flags, args.name)
    else:
        sweep = cells.from_grid(args.over, flags, program, args.name)
    # as for a single run: logs/ of a program's project, or of the checkout for our trainer
    logs = project_of(Path.cwd()) / "logs" if sweep.first.words else own_logs()
    root = args.logs_dir or sweep.first.run.logs_dir or logs
    sweep.folder = root.absolute() / run_files.SWEEPS / sweep.name
    is_array = array_job.can_use_job_array(sweep, args.at_once)
    groups = [] if is_array else cell_runs.host_groups(sweep, args.at_once)
    if args.dry_run:
        if is_array:
            print("note: these will be the tasks of one job array", file=sys.stderr)
        hosts = f"--hosts={cell_runs.hosts_file(sweep, 0)}"
        cell_runs.print_commands(sweep, [hosts] if groups else [])
        return 0
    sweep.require_trainer_packages()
    with cell_runs.sweep_lock(sweep.folder):
        if not is_array:
            cell_runs.wait_for_last(sweep)
        cell_runs.begin(sweep, fresh=args.fresh)
        if is_array:
            os.environ.pop(VALUES, None)  # each run has them; its job does not need them
            if not array_job.run(sweep, args.at_once, wait=not args.detach):
                json_output.emit("submitted", folder=str(sweep.folder))
                return 0
            code = conclude(sweep)
        elif args.detach and not _go_on_in_background(sweep.folder):
            return 0
        else:
            code = conclude(sweep, around_runs.run(sweep, args.at_once, groups))
        run_record.print_report_command(sweep.folder, map(sweep.run_dir, sweep.cells))
        return code


def _go_on_in_background(folder: Path) -> bool:
    """Fork; true in the child, which has left the terminal and prints to sweep.log."""
    sys.stdout.flush()
    if child := os.fork():
        json_output.emit("submitted", folder=str(folder), pid=child)
        print(f"in the background, as process {child}; sweep folder: {folder}")
        print(f"  to see the results, run the same command; to end it: kill {child}")
        return False
    run_record.leave_terminal(folder / "sweep.log")
    return True


def _parser() -> argparse.ArgumentParser:
    prog = this_command()
    parser = Parser(
        prog=prog,
        usage=f"{prog} --over NAME=VALUE,VALUE [--over ...] [flags] [-- PROGRAM]",
        description="Run a program once with every combination of the values. Without a program "
        "after --, they are settings of Muster's own trainer. If run again, it starts what is "
        "missing or has failed.",
        epilog="All other flags are passed to every run, as with muster run: --nodes 2 --launcher "
        f"ssh --hosts hosts.txt. {at_login(prog)}",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--over",
        action="extend",
        nargs="+",  # words without a comma between them are refused as values, not as flags
        default=[],
        metavar="NAME=VALUE,VALUE",
        help="values of one flag; if values contain commas, separate them with ';'",
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=1,
        metavar="N",
        help="how many runs to have at the same time (default: 1)",
    )
    parser.add_argument(
        "--name", help="name of the sweep (default: from the program and the values)"
    )
    parser.add_argument(
        "--logs-dir",
        type=Path,
        metavar="DIR",
        help="the sweep's folder is DIR/sweeps/NAME (default: logs/ of the project)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="run everything again, from the beginning"
    )
    parser.add_argument(
        "--detach", action="store_true", help="return at once; the runs continue in the background"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands, but run nothing"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    # From muster.map, beside --name: {"cells": [{"id": ID, "words": [arguments of submit.py]}]}
    parser.add_argument("--cells", type=Path, help=argparse.SUPPRESS)
    return parser
