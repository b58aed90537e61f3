"""Predicted times of steps beside measured ones: `python -m train.cost logs/<run or study> ...`."""

import argparse
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from configs import cli
from configs.help_page import Parser
from muster.errors import UsageError
from muster.run_files import PREDICTION
from muster.writing import write_json
from train.cost.link_fit import Link, read_bench
from train.cost.predict import MODES, Steps, predict, read_steps
from train.report.data.event_tables import prediction
from train.report.data.scaling import same_work
from train.report.data.subject import Entry, Subject, read_subject
from train.report.data.tables import cells, seconds
from train.report.pages.page import markdown_table

GONE = "{} is gone: steps are predicted for the runs that were made, over the links of the bench"


def main() -> int:
    parser = Parser(
        prog="python -m train.cost", description="Seconds of a step, predicted and measured."
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder of a run or study")
    parser.add_argument(
        "--collectives",
        type=Path,
        required=True,
        metavar="FILE",
        help="collectives.json of --program bench_collectives on the same nodes",
    )
    for flag in ("--workers", "--link-mbit"):
        parser.add_argument(flag, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name in ("workers", "link_mbit"):
        if getattr(args, name) is not None:
            raise UsageError(GONE.format(f"--{name.replace('_', '-')}"))
    links, subject = read_bench(args.collectives), read_subject([Path(args.folder)])
    rows = predictions(subject, links)
    if not rows:
        raise UsageError(
            f"{args.folder}: no run of a mode that is predicted ({', '.join(MODES)}), of whose "
            "ranks two steps and more are on record, and whose collectives the bench has"
        )
    path = PREDICTION.path(Path(args.folder))
    fitted = {name: asdict(link) for name, link in links.items()}
    write_json(path, {"seconds_per_iteration": rows, "links": fitted})
    subject.prediction = {"seconds_per_iteration": rows}
    print(markdown_table(prediction(subject).drop(columns="folders")))
    print(f"\n{path}")
    return 0


def predictions(subject: Subject, links: dict[str, Link]) -> list[dict[str, Any]]:
    """A row for each group of repeats, of the largest set of runs that do the same work."""
    groups = same_work([one for one in subject.entries if _is_exact(one, links)], subject.varying)
    chosen = max(groups, key=len, default=[])
    known = {
        one.name: found
        for one in chosen
        if (found := read_steps(one.run, one.sync, one.workers)) is not None
    }
    measured = {row["run"]: row["mean_s"] for row in seconds(subject).to_dict("records")}
    rows = []
    for label, entries in cells(subject):
        entry, own = entries[0], [known[one.name] for one in entries if one.name in known]
        if not own or label not in measured:
            continue
        # computing time comes from runs on as many workers, best of those that send only afterwards
        of_width = [one.name for one in chosen if one.workers == entry.workers]
        alike = [known[name] for name in of_width if name in known]
        alike = [one for one in alike if not one.is_mixed] or alike
        computing_s = fmean(one.computing_s for one in alike)
        backward_s = fmean(one.backward_s for one in alike)
        steps = Steps(computing_s, backward_s, own[0].buckets_bytes, is_mixed=False)
        overlaps = entry.run.config.get("overlap") is True
        made = predict(entry.sync, entry.workers, steps, links, overlaps=overlaps)
        folders = [one.run.name for one in entries]
        row: dict[str, Any] = {"run": label, "folders": folders, "mode": entry.sync}
        row |= {"workers": entry.workers, "predicted_s": made.step_s}
        rows.append(row | {"measured_s": measured[label], **asdict(made)})
    return rows


def _is_exact(entry: Entry, links: dict[str, Link]) -> bool:
    """Whether its mode has a model, and no setting is outside the model."""
    settings = entry.settings
    return (
        entry.sync in MODES
        and (entry.workers == 1 or set(MODES[entry.sync]) <= links.keys())
        and settings.get("compress") in (None, "none")
        and settings.get("split") in (None, "even")
        and not settings.get("busy")
    )


if __name__ == "__main__":
    cli.run(main)
