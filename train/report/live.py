"""A terminal view of a run while it goes on, and of one that has ended."""

import time
from pathlib import Path
from typing import Any

from train.report.data.statistics import numbers
from train.report.progress import Watch, rank_rows, remaining_s, silent_s, straggler, total_steps

POLL_S = 1.0
SILENT_S = 30.0
BARS = "▁▂▃▄▅▆▇█"


def watch(path: Path) -> int:
    """Show the run in `path` until it has ended, or until Ctrl-C; 0 either way."""
    from rich.console import Console
    from rich.live import Live

    watched, console = Watch(path), Console()
    try:
        with Live(view(watched), console=console, auto_refresh=False) as live:
            while not watched.over:
                time.sleep(POLL_S)
                watched.poll()
                live.update(view(watched), refresh=True)
    except KeyboardInterrupt:
        console.print("left; the run goes on")
    return 0


def view(watched: Watch) -> Any:
    """Everything on one screen, as rich draws it."""
    from rich.console import Group
    from rich.text import Text

    lines = [Text(line) for line in headlines(watched)]
    return Group(*lines, _ranks(watched))


def headlines(watched: Watch) -> list[str]:
    """Where the run is, its losses, what it waits for, what it sends."""
    run = watched.run
    steps = run.first_rank("step")
    found = [f"{run.name}: {_state(watched)}"]
    if not steps:
        return [*found, "no steps on record yet"]
    total, left = total_steps(run), remaining_s(run)
    place = f"step {steps[-1]['step']}" + (f" of {total}" if total else "")
    if not watched.over:
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
    if slow := straggler(rank_rows(run)):
        found.append(
            f"the others wait for rank {slow[0]}: its work takes {slow[1]:.2f} times theirs"
        )
    return [*found, *_traffic(watched)]


def _state(watched: Watch) -> str:
    end = watched.run.end
    if end:
        code = end.get("code")
        message = (str(end.get("message") or "").strip().splitlines() or [""])[-1]
        words = "done" if code == 0 else "stopped" if code == 75 else f"failed, exit code {code}"
        return f"{words}: {message}" if message else words
    if watched.over:
        return "done"
    quiet = silent_s(watched.path)
    return f"no record for {clock(quiet)}" if quiet and quiet > SILENT_S else "running"


def _traffic(watched: Watch) -> list[str]:
    """What the network carried, where a host measured it; else what was handed to collectives."""
    parts: dict[str, list[float]] = {}
    for row in watched.run.rows("traffic"):
        known = numbers([row["observed_sent_bytes"], row["observed_received_bytes"]])
        if len(known) == 2:
            total = parts.setdefault(str(row["host"]), [0.0, 0.0])
            total[0], total[1] = total[0] + known[0], total[1] + known[1]
    if parts:
        return [
            f"traffic of {host}: {sent / 1e6:.1f} MB sent, {received / 1e6:.1f} MB received"
            for host, (sent, received) in parts.items()
        ]
    sizes = numbers(row["payload_bytes"] for row in watched.run.first_rank("step")[-1:])
    return [f"gradients: {sizes[0] / 1e6:.2f} MB a step and rank"] if sizes and sizes[0] else []


def _ranks(watched: Watch) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("rank", "step", "samples/s", "own work s", "sync s"):
        table.add_column(column, justify="right")
    for row in rank_rows(watched.run):
        values = [row["samples_per_s"], row["own_work_s"], row["sync_s"]]
        words = [f"{value:.4g}" if value is not None else "-" for value in values]
        table.add_row(str(row["rank"]), str(row["step"] or "-"), *words)
    return table


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
