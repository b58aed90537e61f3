"""A terminal view of a run while it goes on, and of one that has ended."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster import run_files
from train.report.data.rank_work import own_work_s, straggler
from train.report.data.reader import Row, Run, read_run
from train.report.data.statistics import numbers
from train.report.data.tables import mean_of, rate

POLL_S = 1.0
SILENT_S = 30.0
WINDOW = 20  # steps that rates are taken over
BARS = "▁▂▃▄▅▆▇█"


def watch(path: Path) -> int:
    """Show the run in `path` until it has ended, or until Ctrl-C; 0 either way."""
    from rich.console import Console
    from rich.live import Live

    run, console = read_run(path), Console()
    try:
        with Live(view(run), console=console, auto_refresh=False) as live:
            while not run.over:
                time.sleep(POLL_S)
                run.read_on()
                live.update(view(run), refresh=True)
    except KeyboardInterrupt:
        console.print("left; the run goes on")
    return 0


def view(run: Run) -> Any:
    """Everything on one screen, as rich draws it."""
    from rich.console import Group
    from rich.text import Text

    ranks = rank_rows(run)
    return Group(*map(Text, headlines(run, ranks)), _ranks(ranks))


def headlines(run: Run, ranks: list[Row]) -> list[str]:
    """Where the run is, its losses, what it waits for, what it sends."""
    steps = run.first_rank("step")
    found = [f"{run.name}: {_state(run)}"]
    if not steps:
        return [*found, "no steps on record yet"]
    total, left = total_steps(run), remaining_s(run)
    place = f"step {steps[-1]['step']}" + (f" of {total}" if total else "")
    if not run.over:
        place += f", {clock(left)} left" if left is not None else ", end not known yet"
    losses = numbers(row["loss"] for row in steps)
    if losses:
        place += f", loss {losses[-1]:.6f}"
        found += [place, f"loss   {sparkline(losses)}  {losses[0]:.4f} -> {losses[-1]:.4f}"]
    else:
        found.append(place)
    for row in run.first_rank("eval")[-1:]:
        known = {k: v for k, v in (row["metrics"] or {}).items() if numbers([v])}
        values = "  ".join(f"{name} {value:.4f}" for name, value in known.items())
        found.append(f"evaluated after step {row['step']}: {values}")
    if slow := straggler(ranks):
        row, mean_s = slow
        times = row["own_work_s"] / mean_s
        found.append(
            f"the others wait for rank {row['rank']}: its work takes {times:.2f} times theirs"
        )
    return [*found, *_traffic(run)]


def _state(run: Run) -> str:
    end = run.end
    if end:
        code = end.get("code")
        message = (str(end.get("message") or "").strip().splitlines() or [""])[-1]
        words = "done" if code == 0 else "stopped" if code == 75 else f"failed, exit code {code}"
        return f"{words}: {message}" if message else words
    if run.over:
        return "done"
    quiet = silent_s(run.path)
    return f"no record for {clock(quiet)}" if quiet and quiet > SILENT_S else "running"


def _traffic(run: Run) -> list[str]:
    """What the network carried, where a host measured it; else what was handed to collectives."""
    parts: dict[str, list[float]] = {}
    for row in run.rows("traffic"):
        known = numbers([row["observed_sent_bytes"], row["observed_received_bytes"]])
        if len(known) == 2:
            total = parts.setdefault(str(row["host"]), [0.0, 0.0])
            total[0], total[1] = total[0] + known[0], total[1] + known[1]
    if parts:
        return [
            f"traffic of {host}: {sent / 1e6:.1f} MB sent, {received / 1e6:.1f} MB received"
            for host, (sent, received) in parts.items()
        ]
    sizes = numbers(row["payload_bytes"] for row in run.first_rank("step")[-1:])
    return [f"gradients: {sizes[0] / 1e6:.2f} MB a step and rank"] if sizes and sizes[0] else []


def _ranks(ranks: list[Row]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("rank", "step", "samples/s", "own work s", "sync s"):
        table.add_column(column, justify="right")
    for row in ranks:
        values = [row["samples_per_s"], row["own_work_s"], row["sync_s"]]
        words = [f"{value:.4g}" if value is not None else "-" for value in values]
        table.add_row(str(row["rank"]), str(row["step"] or "-"), *words)
    return table


def total_steps(run: Run) -> int | None:
    """Of the whole run; None until the length of an epoch is known."""
    config, steps = run.config, run.first_rank("step")
    most = config.get("max_steps")
    by_epochs = None
    ends: dict[int, int] = {}
    for row in steps:
        if isinstance(row["epoch"], int):
            ends[row["epoch"]] = row["step"]
    if ends and isinstance(config.get("epochs"), int):
        first, last = min(ends), max(ends)
        if first < last:
            by_epochs = round(ends[first] / first) * int(config["epochs"])
    if isinstance(most, int):
        return min(most, by_epochs) if by_epochs else most
    return by_epochs


def remaining_s(run: Run) -> float | None:
    """At the pace of the last steps; None where the end is not known."""
    steps, total = run.first_rank("step"), total_steps(run)
    pace_s = mean_of(steps[1:][-WINDOW:], "step_s")
    if not steps or total is None or pace_s is None:
        return None
    return max(0, total - int(steps[-1]["step"])) * pace_s


def rank_rows(run: Run) -> list[Row]:
    """Each rank's step, throughput and work over its last steps."""
    found = []
    for rank, kinds in run.ranks.items():
        last = kinds["step"][1:][-WINDOW:] or kinds["step"]
        found.append(
            {
                "rank": rank,
                "step": last[-1]["step"] if last else None,
                "samples_per_s": rate(last, "local_samples"),
                "own_work_s": own_work_s(last, str(run.config.get("sync"))),
                "sync_s": mean_of(last, "sync_s"),
            }
        )
    return found


def silent_s(path: Path) -> float | None:
    """Since the newest record was written, by this machine's clock and the disk's."""
    times = []
    for file in run_files.METRICS.find(path):
        with suppress(OSError):  # put aside as we look
            times.append(file.stat().st_mtime)
    return max(0.0, time.time() - max(times)) if times else None


def sparkline(values: list[float], width: int = 48) -> str:
    """The course of `values` in one line, in at most `width` means."""
    size = max(1, -(-len(values) // width))
    groups = [values[at : at + size] for at in range(0, len(values), size)]
    means = [sum(group) / len(group) for group in groups]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def clock(seconds: float) -> str:
    """`1 h 02 min`, `3 min 20 s` or `12 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
