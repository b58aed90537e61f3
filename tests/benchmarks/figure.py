"""The benchmark as a figure: a bar for each case, a dot for each round."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from tests.benchmarks.cases import OURS, Case
from tests.benchmarks.results import Results

COLOURS = {"ours": "#0072B2", "peer": "#999999", "limit": "#E69F00"}


def draw(found: Sequence[Results], cases: Sequence[Case], path: Path) -> None:
    """Draw the ratios to plain DDP at each rate into an SVG file; what counts not is left out."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "muster"
    from matplotlib import patches, pyplot

    shown = [case for case in cases if any(_counts(case, one) for one in found)][::-1]
    size = (4.2 * len(found) + 1.5, 0.28 * len(shown) + 1)
    figure, grid = pyplot.subplots(1, len(found), figsize=size, sharey=True, squeeze=False)
    for axes, results in zip(grid[0], found, strict=True):
        for at, case in enumerate(shown):
            if not _counts(case, results):
                continue
            ratios = results.ratios(case.name)
            axes.barh(at, fmean(ratios), color=COLOURS[_side(case)], height=0.7)
            axes.scatter(ratios, [at] * len(ratios), s=8, color="black", zorder=3)
        axes.axvline(1, color="black", linewidth=0.8, linestyle="--")
        axes.set(xlabel="seconds per step, x plain DDP", title=results.rate)
        axes.set_yticks(range(len(shown)), [case.name for case in shown])
        axes.spines[["top", "right"]].set_visible(False)
    handles = [patches.Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    grid[0][-1].legend(handles=handles, frameon=False, loc="lower right")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _counts(case: Case, results: Results) -> bool:
    return case.name in results.runs and (case.limit or results.same_loss(case.name))


def _side(case: Case) -> str:
    if case.limit:
        return "limit"
    return "ours" if case.kind == OURS else "peer"
