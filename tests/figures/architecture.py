"""What starts what, as a picture: docs/figures/architecture.svg. The boxes are the tables below.

python -m tests.figures.architecture [--output docs/figures/architecture.svg]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
WIDTH, HEIGHT = 324, 516  # points; a phone shows them at about 1.2 pixels each
TITLE, TEXT = 9.5, 8.5  # points
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
    Box(6 + 159 * (at % 2), 474 - 42 * (at // 2), 153, 36, "you", title, text)
    for at, (title, text) in enumerate(
        [
            ("your program", "muster run -- train.py"),
            ("the trainer", "submit.py --sync ddp"),
            ("Slurm script", "sbatch multinode.sh"),
            ("Python", "muster.launch(work)"),
            ("many runs", "muster sweep, muster study"),
            ("a laptop", "muster run --login cluster"),
        ]
    )
)
IN_PLAN = "settings, checks of every node,\nnetwork, copy of your code"
PLAN = Box(6, 322, 312, 48, "launch", "one plan of the run (launch/)", IN_PLAN)
LAUNCHERS = (
    Box(6, 266, 100, 36, "launch", "Slurm", "sbatch, srun"),
    Box(112, 266, 100, 36, "launch", "ssh", "hosts, CloudLab"),
    Box(218, 266, 100, 36, "launch", "this machine", "simulated nodes"),
)
NODES = tuple(Box(6 + 163 * at, 128, 149, 118, "node", f"node {'0N'[at]}") for at in range(2))
PARTS = (
    Box(8, 46, 133, 50, "launch", "agent", "supervises, and names\nthe first failure"),
    Box(8, 8, 62, 24, "you", "worker"),
    Box(79, 8, 62, 24, "you", "worker"),
)
IN_KEPT = "records of every step\nfirst failure, exit codes\ncheckpoints\ncommand and code"
KEPT = Box(6, 8, 149, 84, "kept", "logs/RUN", IN_KEPT)
IN_READERS = "muster jobs: status, top,\nlogs, stacks\nmuster report\nmuster doctor"
READERS = Box(169, 8, 149, 84, "kept", "to look at runs", IN_READERS)


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

    figure = pyplot.figure(figsize=(WIDTH / 72, HEIGHT / 72), facecolor=BACKGROUND)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")
    for box in (*COMMANDS, PLAN, *LAUNCHERS, *NODES, KEPT, READERS):
        _box(axes, box)
    for node in NODES:
        agent, *workers = [part._replace(x=node.x + part.x, y=node.y + part.y) for part in PARTS]
        for part in (agent, *workers):
            _box(axes, part)
        for worker in workers:
            _down(axes, worker, agent.y, worker.y + worker.height)
        _down(axes, node, LAUNCHERS[0].y, node.y + node.height)
    _arrow(axes, (WIDTH / 2, COMMANDS[-1].y), (WIDTH / 2, PLAN.y + PLAN.height))
    for box in LAUNCHERS:
        _down(axes, box, PLAN.y, box.y + box.height)
    _arrow(axes, (145, 148), (179, 148), both=True)
    _arrow(axes, (15, NODES[0].y), (15, KEPT.y + KEPT.height))
    _arrow(axes, (KEPT.x + KEPT.width, 50), (READERS.x, 50))
    _text(axes, 171, 110, "workers synchronise gradients: muster.sync, or DDP", TEXT)
    figure.savefig(path, metadata={"Date": None}, facecolor=BACKGROUND)
    pyplot.close(figure)


def _box(axes, box: Box) -> None:  # type: ignore[no-untyped-def]
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (box.x, box.y), box.width, box.height, boxstyle="round,pad=0,rounding_size=3",
            facecolor=COLOURS[box.kind], edgecolor=INK, linewidth=0.8,
        )
    )  # fmt: skip
    middle, top = box.x + box.width / 2, box.y + box.height
    if box.text:
        _text(axes, middle, top - 10, box.title, TITLE, fontweight="bold")
        _text(axes, middle, top - 19, box.text, TEXT, va="top", linespacing=1.4)
    elif box in NODES:
        _text(axes, middle, top - 10, box.title, TITLE, fontweight="bold")
    else:
        _text(axes, middle, box.y + box.height / 2, box.title, TITLE)


def _text(axes, x: float, y: float, text: str, size: float, **how) -> None:  # type: ignore[no-untyped-def]
    axes.text(x, y, text, fontsize=size, **{"ha": "center", "va": "center", "color": INK, **how})


def _down(axes, box: Box, start: float, end: float) -> None:  # type: ignore[no-untyped-def]
    """An arrow in the middle of `box`."""
    middle = box.x + box.width / 2
    _arrow(axes, (middle, start), (middle, end))


def _arrow(axes, start, end, both: bool = False) -> None:  # type: ignore[no-untyped-def]
    style = "<->" if both else "->"
    axes.annotate(
        "", xy=end, xytext=start, arrowprops={"arrowstyle": style, "color": INK, "linewidth": 1}
    )


if __name__ == "__main__":
    main()
