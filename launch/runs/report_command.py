"""The last line of a run, a study or a sweep: the command that makes its report."""

import sys
from collections.abc import Iterable
from pathlib import Path

from muster import extras, json_output
from muster.command import to_type
from muster.printable import on_one_line
from muster.run_files import METRICS


def print_report_command(folder: Path, run_dirs: Iterable[Path]) -> None:
    """Print the command, if one of these runs has records; before it, what a report needs.

    It works from any folder. With --json nothing is printed.
    """
    if json_output.has_begun() or not any(METRICS.find(run_dir) for run_dir in run_dirs):
        return
    for problem in extras.problems(extras.REPORT):
        print(f"note: {on_one_line(problem)}", file=sys.stderr, flush=True)
    print(on_one_line(to_type("report", str(folder.absolute()))), flush=True)
