"""What starts what, as a picture: docs/figures/architecture.svg. The boxes are the tables below.

python -m tests.figures.architecture [--output docs/figures/architecture.svg]
"""

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
SIZE = (10.0, 6.4)  # inches; positions below are in hundredths of the picture
INK, BACKGROUND = "#1b1f24", "white"
COLOURS = {"you": "#fdf1d6", "launch": "#dcebf7", "node": "#e3f3ea", "kept": "#f1e6f3"}


class Box(NamedTuple):
    """A box with its left lower corner, its size, a title and what is in it."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str
    text: str = ""


COMMANDS = tuple(
    Box(2 + 15.1 * at, 86, 13.6, 12, "you", title, text)
    for at, (title, text) in enumerate(
        [
            ("your program", "muster run -- train.py"),
            ("the trainer", "submit.py --sync ddp"),
            ("Slurm script", "sbatch multinode.sh"),
            ("Python", "muster.launch(work)"),
            ("many runs", "muster sweep, study"),
        ]
    )
)
IN_PLAN = "settings and recipes (configs/), checks of every node, network, snapshot of your code"
PLAN = Box(2, 67, 74, 12, "launch", "launch/: one plan of the run", IN_PLAN)
LAUNCHERS = (
    Box(2, 50, 23, 10, "launch", "Slurm", "sbatch, srun, submitit"),
    Box(27.5, 50, 23, 10, "launch", "ssh", "hosts.txt, CloudLab"),
    Box(53, 50, 23, 10, "launch", "this machine", "or a shell on each node"),
)
NODES = tuple(
    Box(2 + 25.5 * at, 9, 23, 34, "node", f"node {at}" if at < 2 else "node N") for at in range(3)
)
PARTS = (
    Box(1.5, 13.5, 20, 11, "launch", "agent", "supervises, names the first failure"),
    Box(1.5, 3, 9.5, 6.5, "you", "worker"),
    Box(12, 3, 9.5, 6.5, "you", "worker"),
)
IN_KEPT = "every step of every rank\nfirst failure, exit codes\ncheckpoints\nthe command and\n"
IN_KEPT += "the code that repeat it"
KEPT = Box(80, 9, 18, 51, "kept", "logs/RUN", IN_KEPT)
IN_READERS = "muster jobs: status, top,\nlogs, stacks\nreport, compare\ndoctor"
READERS = Box(80, 67, 18, 31, "kept", "to look at runs", IN_READERS)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.figures.architecture", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--output", type=Path, default=REPOSITORY / "docs/figures/architecture.svg")
    draw(parser.parse_args(argv).output)


def draw(path: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "muster"
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=SIZE, facecolor=BACKGROUND)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 100), ylim=(0, 100))
    axes.axis("off")
    for box in (*COMMANDS, PLAN, *LAUNCHERS, *NODES, KEPT, READERS):
        _box(axes, box)
    for node in NODES:
        for part in PARTS:
            _box(axes, part._replace(x=node.x + part.x, y=node.y + part.y))
        _arrow(axes, (node.x + 6.2, 22.5), (node.x + 6.2, 18.8))
        _arrow(axes, (node.x + 16.8, 22.5), (node.x + 16.8, 18.8))
    for box in COMMANDS:
        _arrow(axes, (box.x + box.width / 2, 86), (box.x + box.width / 2, 79.4))
    for box in LAUNCHERS:
        middle = box.x + box.width / 2
        _arrow(axes, (middle, 67), (middle, 60.4))
        for node in NODES:
            _arrow(axes, (middle, 50), (node.x + node.width / 2, 43.4))
    _arrow(axes, (76, 27), (79.7, 27))
    _arrow(axes, (89, 60), (89, 66.6))
    for left, right in pairwise(NODES):
        _arrow(axes, (left.x + left.width - 1, 15.2), (right.x + 1.2, 15.2), both=True)
    below = "workers synchronise gradients: muster.sync, or what the program brings"
    _text(axes, 38.5, 4.5, below, 9)
    figure.savefig(path, metadata={"Date": None}, facecolor=BACKGROUND)
    pyplot.close(figure)


def _box(axes, box: Box) -> None:  # type: ignore[no-untyped-def]
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (box.x, box.y), box.width, box.height, boxstyle="round,pad=0,rounding_size=1",
            facecolor=COLOURS[box.kind], edgecolor=INK, linewidth=0.8,
        )
    )  # fmt: skip
    middle, is_high = box.x + box.width / 2, box.height > 20
    if box in NODES:
        _text(axes, middle, box.y + box.height - 4, box.title, 10, fontweight="bold")
    elif not box.text:
        _text(axes, middle, box.y + box.height / 2, box.title, 9)
    else:
        top = box.y + box.height - (6 if is_high else 3.6)
        _text(axes, middle, top, box.title, 10, fontweight="bold")
        where = "top" if is_high else "center"
        _text(axes, middle, top - 4.2, box.text, 8, va=where, linespacing=1.8)


def _text(axes, x: float, y: float, text: str, size: int, **how) -> None:  # type: ignore[no-untyped-def]
    axes.text(x, y, text, fontsize=size, **{"ha": "center", "va": "center", "color": INK, **how})


def _arrow(axes, start, end, both: bool = False) -> None:  # type: ignore[no-untyped-def]
    style = "<->" if both else "->"
    axes.annotate(
        "", xy=end, xytext=start, arrowprops={"arrowstyle": style, "color": INK, "linewidth": 1}
    )


if __name__ == "__main__":
    main()
