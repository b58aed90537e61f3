"""Tools of the GPU check's rows: runs of the trainer, of scripts and of other commands."""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.checkout import CHECKOUT
from muster.errors import MusterError
from muster.records import json_objects
from tests.benchmarks import made as making
from tests.benchmarks.cases import OURS, PADDED, Case
from tests.benchmarks.made import Made
from tests.benchmarks.places import SUBMIT, TIMEOUT_S, Place, Steps, printed_until
from tests.commands import call

CASES = ("ddp", "muster", "ddp,compile", "muster,compile")  # of programs/speeds.py
PROGRAMS = "tests.gpu.programs"
TAIL = 6000  # characters kept of a command's output
ROW_S = 150.0  # for each run, on a machine with a GPU
LEAST_S = 5.0  # given to any run


@dataclass
class Bench:
    """Models, data and a folder for one check; `until` is the moment at which it is over."""

    args: argparse.Namespace
    folder: Path
    until: float = float("inf")
    speeds: dict[str, tuple[list[dict[str, Any]], str]] = field(default_factory=dict)
    models: dict[str, Future[Made]] = field(default_factory=dict)

    def prepare(self, pool: ThreadPoolExecutor) -> None:
        """Begin to make each model of the rows."""
        for name in dict.fromkeys((self.args.model, self.args.speed_model)):
            place = self.folder / f"made-{len(self.models)}"
            place.mkdir()
            self.models[name] = pool.submit(making.ready, name, None, place, self.args.seed)

    @property
    def left_s(self) -> float:
        """Seconds that a run may take: a row that hangs must not take the others' time."""
        most = ROW_S if self.args.device == "cuda" else TIMEOUT_S
        return max(LEAST_S, min(most, self.until - time.monotonic()))

    def train(
        self, name: str, workers: int, flags: Sequence[str], logs: Path, *, fast: bool = False
    ) -> Steps:
        """A run of the trainer; `fast`: of the model and the steps of speed rows."""
        return self._run(Case(name, OURS, (*PADDED, *flags)), workers, logs, fast)

    def script(self, shape: str, case: str, workers: int, logs: Path) -> Steps:
        """Steps of one case of programs/speeds.py, whose cases all run in one start.

        Raises:
            MusterError: this case did not run to its end.
        """
        if shape not in self.speeds:
            batch_size = self.args.images if shape == "vgg" else self.args.batch_size
            made = self.models[self.args.speed_model].result()
            words = ["--shape", shape, "--data-dir", str(made.data), "--model", str(made.model)]
            words += ["--steps", str(self.args.speed_steps), "--batch-size", str(batch_size)]
            words += ["--lr", str(self.args.lr), "--seed", str(self.args.seed), "--cases", *CASES]
            log = ""
            try:
                self.program("speeds", workers, logs, *words)
            except MusterError as error:  # cases before it have ended
                log = str(error)
            printed = [path.read_text() for path in logs.glob("*/workers/rank_00000.out")]
            self.speeds[shape] = (printed_lines("\n".join(printed)), log)
        lines, log = self.speeds[shape]
        for line in lines:
            if line["case"] == case:
                return Steps(line["losses"], line["step_s"])
        raise MusterError(log or f"{case} printed nothing")

    def _run(self, case: Case, workers: int, logs: Path, fast: bool) -> Steps:
        made = self.models[self.args.speed_model if fast else self.args.model].result()
        steps = self.args.speed_steps if fast else self.args.steps
        args = argparse.Namespace(**{**vars(self.args), "steps": steps})
        place = Place(workers, 1, cluster=None, timeout_s=self.left_s)
        return place.run(case, made, args, self.folder, logs)

    def images(self, workers: int, batch_size: int, flags: Sequence[str], logs: Path) -> Steps:
        """A run of VGG-11 on generated images."""
        args = self.args
        own = ["--task", "cs744", "--data-dir", "generated", "--batch-size", str(batch_size)]
        own += ["--lr", "1e-3", "--seed", str(args.seed), "--device", args.device]
        own += ["--evaluate", "never", "--no-save-model"]
        place = Place(workers, 1, cluster=None, timeout_s=self.left_s)
        return place.ours([*own, *flags], logs)

    def launch(
        self, workers: int | str, program: Sequence[str], logs: Path, *flags: str, codes: Any = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """A program under the launcher, each worker with torchrun's variables alone."""
        words = [SUBMIT, "--launcher", "local", "--nodes", "1", "--nproc-per-node", str(workers)]
        words += ["--workers", "manual", "--no-snapshot", "--python", sys.executable]
        words += ["--logs-dir", str(logs), *flags]
        return self.command([*words, "--", *program], codes=codes)

    def program(self, name: str, workers: int, logs: Path, *words: str, **how: Any) -> Any:
        """A file of programs/ under the launcher."""
        device = ["--device", self.args.device]
        return self.launch(workers, ["-m", f"{PROGRAMS}.{name}", *device, *words], logs, **how)

    def command(
        self, words: Sequence[str], codes: Sequence[int] | None = (0,), most_s: float = 0.0
    ) -> subprocess.CompletedProcess[str]:
        """A command of this Python, to its end; None as `codes`: any exit code is right.

        Raises:
            MusterError: it ended with another code, or not in time.
        """
        env = {"MUSTER_PYTHON": sys.executable, "HF_HUB_OFFLINE": "1"}
        limit_s = (
            max(LEAST_S, min(most_s, self.until - time.monotonic())) if most_s else self.left_s
        )
        try:
            done = call(sys.executable, *words, cwd=CHECKOUT, env=env, timeout_s=limit_s)
        except subprocess.TimeoutExpired as error:
            raise MusterError(f"{printed_until(error)}\nnot done after {limit_s:.0f} s") from None
        if codes is not None and done.returncode not in codes:
            printed = f"{done.stdout[-TAIL:]}\n{done.stderr[-TAIL:]}"
            raise MusterError(f"{printed}\nexit code {done.returncode}: {' '.join(words)}")
        return done


def records(logs: Path) -> list[dict[str, Any]]:
    """The step records of rank 0 below `logs`, of the last run."""
    paths = sorted(logs.glob("*/metrics/rank_00000.jsonl"), key=os.path.getmtime)
    lines = json_objects(paths[-1].read_bytes()) if paths else []
    return [line for line in lines if "step_s" in line]


def printed_lines(text: str) -> list[dict[str, Any]]:
    """The JSON objects among what a program has printed, whatever stands before them."""
    found = re.findall(r"\{\".*\}", text)
    return [json.loads(line) for line in found]


def end_of_run(logs: Path) -> dict[str, Any]:
    """What a run folder says of how the run ended."""
    paths = sorted(logs.glob("*/exit.json"), key=os.path.getmtime)
    if not paths:
        raise MusterError("the run has no exit.json")
    end: dict[str, Any] = json.loads(paths[-1].read_text(encoding="utf-8"))
    return end


Work = Callable[[Any, Bench, Path], None]
