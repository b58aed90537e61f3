"""Run a study, or go on with one: `python launch/study.py configs/studies/quick.yaml`."""

import sys
from pathlib import Path

# A script's own folder comes first on the path, and a file in it could hide a library: the
# repository takes its place.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

try:
    from configs import cli
except ModuleNotFoundError as missing:
    from configs import activation

    activation.explain(missing)

import argparse
import shlex
import time

from rich.console import Console
from rich.live import Live
from rich.table import Table

from configs.plugins import REPOSITORY
from launch.studies import around_runs, grid, progress_record, runner
from launch.studies.study_table import table


def main() -> int:
    args, more = _parser().parse_known_args()
    more = [word for word in more if word != "--"]
    study = grid.read(args.file, args.rate)
    folder = (args.output or REPOSITORY / "logs" / "studies" / study.name).absolute()
    notes = progress_record.begin(
        study, folder, shlex.join(["python", "launch/study.py", *sys.argv[1:]])
    )
    if args.dry_run:
        for cell in study.cells:
            print(shlex.join(runner.command_of(cell, notes.of(cell), folder, more)))
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    notes.write(folder)
    with Watching(notes) as watching:
        all_done = runner.run_all(study, notes, folder, more, watching.tell)
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


class Watching:
    """Shows a table, redrawn each second; where there is no terminal, a line for each change."""

    def __init__(self, notes: progress_record.Notes) -> None:
        self._notes, self._console = notes, Console()
        self._since: dict[str, float] = {}
        self._live = Live(
            console=self._console, get_renderable=self._table, refresh_per_second=1, transient=False
        )

    def __enter__(self) -> "Watching":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def tell(self, note: progress_record.Note) -> None:
        """This cell is now in another state."""
        self._since.setdefault(note.id, time.monotonic())
        if not self._console.is_terminal:
            print(f"{note.id}: {note.state} {note.message}".rstrip(), flush=True)

    def _table(self) -> Table:
        now = next((one.id for one in self._notes.cells if one.state == "running"), "")
        return table(self._notes, self._since.get(now))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python launch/study.py",
        description="Run every cell of a study that is not done yet.",
        epilog="All other flags go to launch/submit.py, for every run: --launcher ssh --hosts ...",
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
