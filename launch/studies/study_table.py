"""What ran, what runs and what is left, in one table that is redrawn in place."""

import time

from rich.table import Table

from launch.studies.progress_record import Note, Notes

STATES = {"waiting": "dim", "running": "bold", "done": "green", "failed": "red"}
MOST_ROWS = 20


def table(notes: Notes, running_since: float | None) -> Table:
    """The cells around the one that runs, and how long the rest may take."""
    done = [one for one in notes.cells if one.state == "done"]
    left = sum(one.state in ("waiting", "running") for one in notes.cells)
    title = f"{notes.title}: {len(done)} of {len(notes.cells)} done"
    if done and left:
        remaining_s = sum(one.seconds for one in done) / len(done) * left
        title += f", about {max(1, round(remaining_s / 60))} min left"
    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("run", "state", "seconds", ""):
        drawn.add_column(name, justify="right" if name == "seconds" else "left")
    for one in _around(notes.cells):
        seconds = one.seconds
        if one.state == "running" and running_since is not None:
            seconds = time.monotonic() - running_since
        colour = STATES[one.state]
        drawn.add_row(
            one.id, f"[{colour}]{one.state}[/]", f"{seconds:.1f}" if seconds else "", one.message
        )
    return drawn


def _around(cells: list[Note]) -> list[Note]:
    at = next((n for n, one in enumerate(cells) if one.state in ("waiting", "running")), len(cells))
    first = max(0, min(at - MOST_ROWS // 2, len(cells) - MOST_ROWS))
    return cells[first : first + MOST_ROWS]
