"""The benchmark as a figure: a bar for each case that has a title, with its seconds."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pandas as pd

from tests.benchmarks.cases import BASE, OURS, Case
from tests.benchmarks.results import Results, spread
from train.report.pages import drawing, plots
from train.report.pages.drawing import link_rate

COLOURS = {"others": "#8c8c8c", "one line changed": "#56B4E9", "Muster's trainer": "#0072B2"}


def draw(results: Results, cases: Sequence[Case], path: Path) -> None:
    """Draw the seconds per step into an SVG file; cases that do not count are left out."""
    rows = [
        {
            "title": case.title,
            "side": _side(case),
            "s": fmean(results.seconds(case.name)),
            "spread": spread(results.seconds(case.name), 2),
        }
        for case in cases
        if case.title and case.name in results.runs and results.same_loss(case)
    ]
    table = pd.DataFrame(rows).sort_values("s", ascending=False, ignore_index=True)
    base = fmean(results.seconds(BASE))
    sizes = plots.by_kind(table.set_index("title"), "s", "side")
    unit = f"seconds per step (times DDP's), links of {link_rate(results.rate)}"
    figures = plots.bars(
        "speed", sizes, unit,
        fills=[COLOURS[side] for side in sizes],
        labels=[f"{row.spread} ({row.s / base:.2f})" for row in table.itertuples()], room=2.4,
    )  # fmt: skip
    path.write_text(drawing.alone(figures["speed"]), encoding="utf-8")


def _side(case: Case) -> str:
    if case.kind == OURS:
        return "Muster's trainer"
    return "one line changed" if case.name.endswith("_with_muster") else "others"
