"""Losses of the sync modes beside one process, as a report draws them.

    python -m tests.figures.losses [--output docs/figures/report-losses.svg]

The study `quick` runs here; two minutes.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.figures.losses", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--output", type=Path, default=REPOSITORY / "docs/figures/report-losses.svg"
    )
    output = parser.parse_args(argv).output
    study = ["launch/study.py", "configs/studies/quick.yaml"]
    with tempfile.TemporaryDirectory() as logs:
        done = subprocess.run(
            [sys.executable, *study, "--output", logs], cwd=REPOSITORY, check=False
        )
        if done.returncode:
            return done.returncode
        (figure,) = Path(logs).glob("report/figures/first_losses.svg")
        shutil.copyfile(figure, output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
