"""The report and the figures of a page of docs/results, from its study.

    python -m tests.figures.results NAME [--report FOLDER] [FLAG ...]

runs configs/studies/NAME.yaml with these flags, each page of docs/results says with which; with
--report they are taken from the report of a study that was run before. Of `quick`, which runs here
in two minutes, only the losses of docs/report.md are taken.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "docs" / "results"
# The figures that each page shows, as the report names their files.
SHOWN = {
    "bsc": ["throughput"],
    "cos598d": ["seconds", "speedup"],
    "cos598d_traffic": [],
    "cs744": ["seconds", "speedup"],
    "hetseq_testbed": ["seconds", "speedup"],
}
LOSSES = "first_losses.svg", REPOSITORY / "docs" / "figures" / "report-losses.svg"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.figures.results",
        description=(__doc__ or "").splitlines()[0],
        epilog="All other flags go to launch/study.py.",
    )
    parser.add_argument("name", choices=sorted([*SHOWN, "quick"]))
    parser.add_argument("--report", type=Path, help="the report/ of a study that was run before")
    args, flags = parser.parse_known_args(argv)
    if args.report:
        copy(args.name, args.report, RESULTS)
        return 0
    study = ["launch/study.py", f"configs/studies/{args.name}.yaml", *flags]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *study, "--output", folder], cwd=REPOSITORY, check=False
        )
        if done.returncode == 0:
            copy(args.name, Path(folder) / "report", RESULTS)
        return done.returncode


def copy(name: str, report: Path, results: Path) -> None:
    """Put the PDF of `report` and the figures that are shown of it into `results`."""
    if name == "quick":
        shutil.copyfile(report / "figures" / LOSSES[0], LOSSES[1])
        return
    for folder in ("reports", "figures"):
        (results / folder).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(report / "report.pdf", results / "reports" / f"{name}.pdf")
    for figure in SHOWN[name]:
        shutil.copyfile(
            report / "figures" / f"{figure}.svg", results / "figures" / f"{name}-{figure}.svg"
        )


if __name__ == "__main__":
    sys.exit(main())
