"""The report and the figures of a page of docs/results, from its study.

    python -m tests.figures.results NAME [--output FOLDER] [FLAG ...]

runs configs/studies/NAME.yaml with these flags; each page of docs/results states its flags. With
--output, the records are kept there, and the same command resumes after an interruption. From
`quick`, which takes two minutes here, only the figure of the losses in docs/report.md is taken.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from muster.checkout import CHECKOUT

DOCS = CHECKOUT / "docs"
# The figures of each page, by their file names in the report.
SHOWN = {
    "bsc": ["throughput"],
    "cos598d": ["seconds", "speedup"],
    "cos598d_traffic": [],
    "cs744": ["seconds", "speedup"],
    "hetseq_testbed": ["seconds", "speedup"],
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.figures.results",
        description=(__doc__ or "").splitlines()[0],
        epilog="All other flags go to launch/study.py.",
    )
    parser.add_argument("name", choices=sorted([*SHOWN, "quick"]))
    parser.add_argument("--output", metavar="FOLDER", help="keep the records (default: nowhere)")
    args, flags = parser.parse_known_args(argv)
    study = ["launch/study.py", f"configs/studies/{args.name}.yaml", *flags]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.output or temporary
        code = _to_its_end([sys.executable, *study, "--output", folder])
        if code == 0:
            for file, place in taken(args.name).items():
                shutil.copyfile(Path(folder, "report", file), DOCS / place)
        return code


def _to_its_end(command: Sequence[str]) -> int:
    """Run a command and wait for its end, even after Ctrl-C, which the command receives as well."""
    with subprocess.Popen(command, cwd=CHECKOUT) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def taken(name: str) -> dict[str, str]:
    """Return the files to take from the report, and their places in docs/."""
    if name == "quick":
        return {"figures/first_losses.svg": "figures/report-losses.svg"}
    figures = {f"figures/{one}.svg": f"results/figures/{name}-{one}.svg" for one in SHOWN[name]}
    return {"report.pdf": f"results/reports/{name}.pdf", **figures}


if __name__ == "__main__":
    sys.exit(main())
