"""The benchmark as a figure: a bar for each case that has a title, with its seconds."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from tests.benchmarks.cases import BASE, OURS, Case
from tests.benchmarks.results import Results
from train.report.pages.units import link_rate

COLOURS = {"others": "#8c8c8c", "one line changed": "#56B4E9", "Muster's trainer": "#0072B2"}
INK = "#1b1f24"


def draw(found: Sequence[Results], cases: Sequence[Case], path: Path) -> None:
    """Draw the seconds of a step at each rate into an SVG file; what does not count is left out."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "muster"
    from matplotlib import patches, pyplot

    shown = [case for case in cases if case.title and any(_counts(case, one) for one in found)]
    # the slowest on top, at the first rate that has them all
    shown.sort(
        key=lambda case: [fmean(one.seconds(case.name)) for one in found if _counts(case, one)]
    )
    size = (7.6 * len(found), 0.42 * len(shown) + 1.2)
    figure, grid = pyplot.subplots(1, len(found), figsize=size, sharey=True, squeeze=False)
    for axes, results in zip(grid[0], found, strict=True):
        base = fmean(results.seconds(BASE))
        for at, case in enumerate(shown):
            if not _counts(case, results):
                continue
            mean = fmean(results.seconds(case.name))
            axes.barh(at, mean, color=COLOURS[_side(case)], height=0.7)
            axes.text(mean, at, f"  {mean:.2f} s   {mean / base:.2f} x", va="center", color=INK)
        axes.set(xlabel="seconds per step", title=f"links of {link_rate(results.rate)}")
        axes.set_xlim(right=axes.get_xlim()[1] * 1.25)
        axes.set_yticks(range(len(shown)), [case.title for case in shown])
        axes.spines[["top", "right"]].set_visible(False)
    handles = [patches.Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    grid[0][-1].legend(handles=handles, frameon=False, loc="lower right")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    pyplot.close(figure)


def _counts(case: Case, results: Results) -> bool:
    return case.name in results.runs and results.same_loss(case.name)


def _side(case: Case) -> str:
    if case.kind == OURS:
        return "Muster's trainer"
    return "one line changed" if case.name.endswith("_with_muster") else "others"
