"""A trace of a few steps on each rank, which https://ui.perfetto.dev opens."""

from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from muster.run_files import PROFILE

# The first step includes one-time costs, and the second one those of the profiler itself.
WAIT, WARM_UP, ACTIVE = 1, 1, 5


class Profiler:
    """Traces steps 3 to 7 into `profile/rank_*.json` of the run folder; the phases have names.

    A shorter run leaves the part that it has.
    """

    def __init__(self, run_dir: Path, rank: int) -> None:
        path = PROFILE.path(run_dir, rank=rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=WAIT, warmup=WARM_UP, active=ACTIVE, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
            record_shapes=True,
        )
        self._profile.start()
        self._running = True

    def stepped(self) -> None:
        """Called after each step."""
        if self._running:
            self._profile.step()
            self._running = self._profile.step_num < WAIT + WARM_UP + ACTIVE
            if not self._running:
                self._profile.stop()

    def close(self) -> None:
        if self._running:
            self._profile.stop()
            self._running = False


def span(name: str) -> AbstractContextManager[object]:
    """Name a part of the program in a trace; without a trace it costs microseconds."""
    return record_function(f"muster.{name}")
