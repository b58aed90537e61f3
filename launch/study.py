"""Run a study, or go on with one: `python launch/study.py configs/studies/quick.yaml`."""

import sys
from pathlib import Path

# A script's own folder comes first on the path, and a file in it could hide a library: the
# repository takes its place.
sys.path[: not sys.flags.safe_path] = [str(Path(__file__).resolve().parent.parent)]

from configs import activation

activation.end_at_ctrl_c()

try:
    from configs import cli
except ModuleNotFoundError as missing:
    activation.explain(missing)

import argparse
import shlex
from collections.abc import Iterator
from functools import partial

from configs.plugins import REPOSITORY
from configs.raw import dashed_flags
from launch.launchers.base import launcher_of
from launch.programs import user_program
from launch.programs.command_line import CommandLine
from launch.studies import around_runs, progress_record, study_file, study_runs
from launch.studies.progress_record import Note
from launch.studies.progress_table import Watching
from muster import env_values, run_files
from muster.errors import UsageError, refuse


def main() -> int:
    own, program = user_program.split(dashed_flags(env_values.own_arguments()))
    if program:
        raise UsageError(
            f"a study is of the trainer that comes with Muster; {program[0]} with several values: "
            "muster sweep"
        )
    args, more = _parser().parse_known_args(own)
    refuse(_taken(more))
    study = study_file.read(args.file, args.rate)
    if study.cells[0].rate is None:
        launcher_of(CommandLine.of([*study.cells[0].flags(), *more]))
    folder = (args.output or REPOSITORY / "logs" / "studies" / study.name).absolute()
    notes = progress_record.begin(
        [Note(one.id, dict(one.settings), one.nodes, one.repeat, f"runs/{one.id}",
              one.name or None)
         for one in study.cells],
        folder / run_files.STUDY,
        partial(study_runs.is_done, folder),
        name=study.name,
        title=study.title,
        about=study.about,
        command=shlex.join(["python", "launch/study.py", *sys.argv[1:]]),
    )  # fmt: skip
    if args.dry_run:
        for cell in study.cells:
            print(shlex.join(study_runs.command_of(cell, notes.of(cell.id), folder, more)))
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    notes.write(folder / run_files.STUDY)
    with Watching(notes, folder / run_files.STUDY) as watching:
        all_done = study_runs.run_study(study, notes, folder, more, watching.tell, watching.redraw)
    failed = [one for one in notes.cells if one.state == "failed"]
    for one in failed:
        print(
            f"{one.id} failed: {one.message}; see {folder / 'logs' / one.id}.log", file=sys.stderr
        )
    print(f"study folder: {folder}")
    if any(one.state == "done" for one in notes.cells):
        around_runs.predictions(folder)
        around_runs.report(folder)
    return 0 if all_done else 1


def _taken(words: list[str]) -> Iterator[str]:
    """Flags that a study gives to each of its runs itself."""
    for word in words:
        name = word.partition("=")[0]
        if name in ("--logs-dir", "--run-id"):
            yield f"{name} is set by the study for each of its runs; use --output FOLDER"
        if name == "--detach":
            yield "--detach: a study stays with its runs; nohup leaves it to itself"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python launch/study.py",
        description="Run every cell of a study that is not done yet.",
        epilog="All other flags go to launch/submit.py, for every run: --launcher ssh --hosts ...",
        allow_abbrev=False,
    )
    parser.add_argument("file", type=Path, help="a file like those of configs/studies/")
    parser.add_argument("--output", type=Path, help="its folder (default: logs/studies/NAME)")
    parser.add_argument(
        "--rate", help="run all of it on a testbed with this link rate, such as 1gbit (as root)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands, and run nothing"
    )
    return parser


if __name__ == "__main__":
    cli.run(main)
