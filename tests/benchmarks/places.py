"""Where a benchmark runs: this machine's loopback, or testbed nodes with a given link rate.

A machine that is only used with loopback may lack what the testbed's modules import, so they are
imported only when a testbed is used.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from muster.checkout import CHECKOUT
from muster.errors import MusterError
from muster.records import json_objects
from tests.benchmarks.cases import OURS, Case
from tests.benchmarks.made import Made
from tests.commands import call

if TYPE_CHECKING:
    from tests.cluster.testbeds import Cluster

LOOPBACK = "loopback"  # a place without links
SUBMIT = str(CHECKOUT / "launch" / "submit.py")
SCHEDULE_STEPS = "117"  # three epochs of RTE
TIMEOUT_S = 1800.0
TAIL = 2000  # characters of a failed run's output


@dataclass(frozen=True)
class Steps:
    """The results of one run of one case: values of every step, including the first."""

    losses: list[float]  # means over the global batch
    step_s: list[float]  # of rank 0


@dataclass(frozen=True)
class Place:
    """Machines that a case can be run on, one worker on each."""

    nodes: int
    threads: int
    cluster: "Cluster | None"
    timeout_s: float = TIMEOUT_S  # of each run

    def run(
        self,
        case: Case,
        made: Made,
        args: argparse.Namespace,
        folder: Path,
        logs: Path | None = None,
    ) -> Steps:
        """Run one case once; files that all runs share are kept in `folder`.

        Raises:
            MusterError: the run failed.
        """
        flags = ["--data-dir", str(made.data), "--model", str(made.model)]
        for name in ("batch_size", "lr", "seed", "device"):
            flags += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
        flags += ["--schedule-steps", SCHEDULE_STEPS]
        if case.kind != OURS:
            return self.peer(case.kind, [*flags, "--steps", str(args.steps), *case.flags], logs)
        flags += ["--task", "rte", "--max-steps", str(args.steps), "--dropout", "0"]
        flags += ["--evaluate", "never", "--no-save-model", "--cache-dir", str(folder / "cache")]
        return self.ours([*flags, *case.flags], logs)

    def ours(self, flags: Sequence[str], logs: Path | None = None) -> Steps:
        """Run our trainer; if `logs` is given, the run's folder is kept there."""
        own = ["--nodes", str(self.nodes), "--threads", str(self.threads), *flags]
        return self._run(own, "metrics/rank_00000.jsonl", logs)

    def peer(self, name: str, flags: Sequence[str], logs: Path | None = None) -> Steps:
        """Run a file of peers/, which uses only torchrun's variables."""
        # on one machine, each worker finds its GPU by LOCAL_RANK
        own = [] if self.cluster else ["--nodes", "1", "--nproc-per-node", str(self.nodes)]
        own += ["--workers", "manual", "--no-snapshot", "--python", sys.executable]
        own += ["--env", f"OMP_NUM_THREADS={self.threads}"]
        program = ["--", "-m", f"tests.benchmarks.peers.{name}", *flags]
        return self._run([*own, *program], "workers/rank_00000.out", logs)

    def _run(self, words: Sequence[str], records: str, logs: Path | None = None) -> Steps:
        """Run a command with the launcher, through sshd if there is a testbed.

        Raises:
            MusterError: the run failed; the message has the reason.
        """
        command, more = [sys.executable, SUBMIT, "--launcher", "local"], {}
        if self.cluster is not None:
            from tests.cluster import ways

            command, more = ways.ssh(self.cluster, self.nodes), self.cluster.env
        env = {"MUSTER_PYTHON": sys.executable, "HF_HUB_OFFLINE": "1", **more}
        with tempfile.TemporaryDirectory() as folder:
            logs = logs or Path(folder)
            command += ["--logs-dir", str(logs), *words]
            try:
                done = call(*command, cwd=CHECKOUT, env=env, timeout_s=self.timeout_s)
            except subprocess.TimeoutExpired as error:
                printed = printed_until(error)
                raise MusterError(f"{printed}\nnot done after {self.timeout_s:.0f} s") from None
            if done.returncode:
                raise MusterError(f"{' '.join(command)}: {done.stderr[-TAIL:]}")
            (found,) = logs.glob(f"*/{records}")
            lines = json_objects(found.read_bytes())
        steps = [one for one in lines if "step_s" in one]
        return Steps([one["loss"] for one in steps], [one["step_s"] for one in steps])


def printed_until(error: subprocess.TimeoutExpired) -> str:
    """Return the end of the output of a command that timed out."""
    parts = [error.stdout or b"", error.stderr or b""]
    return "\n".join(part.decode(errors="replace")[-TAIL:] for part in parts)


@contextmanager
def machines(rate: str, nodes: int, threads: int) -> Iterator[Place]:
    """Provide machines with links of `rate` within the block."""
    if rate == LOOPBACK:
        yield Place(nodes, threads, cluster=None)
        return
    from tests.cluster.testbeds import bring_up, take_down

    cluster = bring_up("--nodes", str(nodes), "--rate", rate)
    try:
        yield Place(nodes, threads, cluster)
    finally:
        take_down()
