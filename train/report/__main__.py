"""`python -m train.report`: a report of runs, or the differences between them."""

import argparse
import sys
from pathlib import Path

from configs import cli
from configs.help_page import Parser, at_login
from muster import extras
from muster.command import this_command
from muster.errors import UsageError, refuse
from muster.printable import printable
from muster.run_files import REPORT


def main() -> int:
    prog = this_command("python -m train.report")
    if sys.argv[1:2] == ["compare"]:
        return _compare(f"{prog} compare", sys.argv[2:])
    parser = Parser(
        prog=prog,
        description="Make a report of runs or studies from their records.",
        epilog=f"{prog} compare A B ... shows the differences between runs. {at_login(prog)}",
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folder of a run or study")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder for the report (default: report/ in the first folder)",
    )
    parser.add_argument(
        "--print",
        action="store_true",
        dest="prints_all",
        help="print all tables (default: only the first table and the warnings)",
    )
    parser.add_argument("--live", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.live:
        raise UsageError("--live was removed\ntip: use muster jobs list, or --log-with tensorboard")
    refuse(extras.problems(extras.REPORT))
    from train.report.data.subject import read_subject, run_folder
    from train.report.pages import page

    folders = [run_folder(name) for name in args.folders]
    subject = read_subject(folders)
    folder = args.output or REPORT.path(folders[0])
    try:
        parts, problem = page.write(subject, folder)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written ({error.strerror})"
            "\ntip: choose another folder with --output"
        ) from None
    print(page.markdown(subject, parts) if args.prints_all else page.beginning(subject))
    print(printable(f"report: {folder / 'index.html'}"))
    if problem:
        print(problem, file=sys.stderr)
    return 0


def _compare(prog: str, argv: list[str]) -> int:
    parser = Parser(
        prog=prog,
        description="Show how runs differ in configuration, environment, code and losses.",
    )
    parser.add_argument("base", metavar="FOLDER", help="folder of a run")
    parser.add_argument(
        "others", nargs="+", metavar="FOLDER", help="folders of the runs to compare it with"
    )
    parser.add_argument(
        "--assert-equal-losses",
        type=float,
        metavar="TOLERANCE",
        help="exit with code 1 if losses differ by more than this, or cannot be compared",
    )
    args = parser.parse_args(argv)
    refuse(extras.problems(extras.REPORT))
    from train.report import compare
    from train.report.data.subject import run_folder

    return compare.main([*map(run_folder, [args.base, *args.others])], args.assert_equal_losses)


if __name__ == "__main__":
    cli.run(main)
