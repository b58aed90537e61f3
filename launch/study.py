"""Run a study, or continue one: `python launch/study.py configs/studies/quick.yaml`."""

if __name__ == "__main__":  # as a script, which has no module of ours on its path yet
    from pathlib import Path
    from runpy import run_path

    run_path(f"{Path(__file__).resolve().parents[1]}/muster/run_module.py")["start"](__file__)

import argparse
from pathlib import Path

from configs.cli import dashed_flags
from configs.help_page import Parser, at_login
from launch.programs.command_line import split_program
from launch.runs import run_record
from launch.studies import around_runs, cell_runs, hand_in, study_file
from launch.studies.progress_table import conclude
from muster import extras, json_output
from muster.command import own_arguments, this_command
from muster.errors import UsageError, refuse
from muster.run_files import own_logs

SET_BY_STUDY = " is set by the study for each of its runs\ntip: use --output FOLDER"
WAITS = ": a study waits for its runs\ntip: use nohup to run it in the background"
# Flags that a study sets itself for each of its runs, and why it refuses them.
REFUSED_FLAGS = {"--logs-dir": SET_BY_STUDY, "--run-id": SET_BY_STUDY, "--detach": WAITS}


def main() -> int:
    own, program = split_program(own_arguments())
    if program:
        raise UsageError(
            f"a study always runs Muster's own trainer\ntip: for values of {program[0]}, use "
            "muster sweep"
        )
    args, more = _parser().parse_known_args(dashed_flags(own))
    if args.json:
        json_output.begin()
    flags = (word.partition("=")[0] for word in more)
    refuse(f"{name}{REFUSED_FLAGS[name]}" for name in flags if name in REFUSED_FLAGS)
    study = study_file.read(args.file, more, args.rate)
    study.folder = (args.output or own_logs() / "studies" / study.name).absolute()
    if args.dry_run:
        cell_runs.print_commands(study)
        return 0
    refuse(extras.problems(extras.REPORT))  # refused now, not after all runs
    study.require_trainer_packages()
    with cell_runs.sweep_lock(study.folder):
        cell_runs.wait_for_last(study)
        cell_runs.begin(study)
        count = len(study.cells)
        runs = f"{count} {'run' if count == 1 else 'runs'}"
        print(f"study {study.source}: {runs} -> {study.folder}", flush=True)
        code = conclude(study, around_runs.run(study))
        if len(study.unfinished) < count:
            around_runs.report(study.folder)
            if args.hand_in:
                archive = hand_in.pack(study, args.hand_in)
                print(f"to hand in: {archive} (replace code and text with your own; see README.md)")
        run_record.print_report_command(study.folder, map(study.run_dir, study.cells))
        return code


def _parser() -> argparse.ArgumentParser:
    prog = this_command()
    parser = Parser(
        prog=prog,
        usage=f"{prog} [flags] FILE [flags of muster run]",
        description="Run several trainings that differ in a few settings, and write a report that "
        "compares them. If run again, it starts what is missing or has failed.",
        epilog="All other flags are passed to each run, as with muster run: --launcher ssh --hosts "
        "FILE. "
        f"{at_login(prog)}",
        allow_abbrev=False,
    )
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="study file, or the name of one of Muster's own: quick",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder for the study (default: logs/studies/NAME)",
    )
    parser.add_argument(
        "--rate", help="run the study on a testbed with this link rate, such as 1gbit (as root)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands, but run nothing"
    )
    parser.add_argument(
        "--hand-in", nargs="?", const="zip", type=hand_in.archive, metavar="zip|tar.gz|FILE",
        help="also pack report, code and a folder for each part: zip (default), tar.gz, or a file "
        "name that ends in one",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser
