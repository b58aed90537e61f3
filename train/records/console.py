"""Output for a person during a run: rank 0's lines, one progress bar, a final table."""

import os
import sys
from collections.abc import Mapping, Sequence

from tqdm import tqdm


class Console:
    """Prints on rank 0 only, and nothing at all with --quiet.

    The bar is drawn on a terminal, or if a launcher that shows this output on its own terminal says
    so (MUSTER_TTY, the terminal's width in columns).
    """

    def __init__(self, *, speaks: bool, env: Mapping[str, str] = os.environ) -> None:
        self._speaks = speaks
        self._columns = int(env.get("MUSTER_TTY") or 0) or None
        self._draws = speaks and (sys.stdout.isatty() or self._columns is not None)
        self._colour = self._draws and "NO_COLOR" not in env and env.get("TERM") != "dumb"
        self._bar: tqdm | None = None  # type: ignore[type-arg]

    def line(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if not self._speaks:
            return
        if self._bar is not None:
            self._bar.clear()
        print(text, flush=True)
        if self._bar is not None:
            self._bar.refresh()

    def start(self, total_steps: int, done: int = 0) -> None:
        """Show the bar."""
        if self._draws:
            self._bar = tqdm(
                total=total_steps,
                initial=done,
                file=sys.stdout,
                ncols=self._columns,
                unit="step",
                leave=False,
                mininterval=0.25,
                colour="green" if self._colour else None,
            )

    def advance(self, loss: float) -> None:
        """Move the bar by one step."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
            self._bar.update()

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print names and values."""
        width = max(len(name) for name, _ in rows)
        self.line("".join(f"\n  {name:<{width}}   {value}" for name, value in rows))
