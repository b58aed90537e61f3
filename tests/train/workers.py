"""Real workers in real processes, for the tests of this folder."""

import json
import random
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from math import isclose
from pathlib import Path
from typing import Any

from muster import run_files
from muster.checkout import CHECKOUT
from muster.records import json_objects
from tests.commands import begin, call
from tests.fork_server import interpreter, skip_if_quick

# The variables that torchrun sets for the second worker of the second node.
TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.10.1.1", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "my-run", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip


def free_port() -> int:
    """Return a port that no connection of another test gets: the kernel assigns higher ports."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10_000, max(first, 11_000))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def start_by_hand(
    rank: int, world_size: int, port: int, *flags: str, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start one worker, as a person does on each node."""
    where = ["--master-ip", "127.0.0.1", "--master-port", str(port)]
    who = ["--world-size", str(world_size), "--rank", str(rank)]
    return start(["-m", "train.worker", *where, *who, *flags], env)


def start(
    python_args: Sequence[str],
    env: dict[str, str] | None = None,
    cwd: str | Path = CHECKOUT,
    python: str | None = None,
) -> subprocess.Popen[str]:
    skip_if_quick()
    return begin(python or interpreter(), *python_args, cwd=cwd, env=env)


def run_program(
    folder: Path, text: str, ranks: int = 1, python: str | None = None, **env: str
) -> list[tuple[int, str, str]]:
    """Run a user's program by hand on each rank, with `muster` on its path; return how all end."""
    (folder / "program.py").write_text(text)
    env |= {"PYTHONPATH": str(CHECKOUT), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    env["MASTER_PORT"] = str(free_port())
    every = [{**env, "RANK": str(rank)} for rank in range(ranks)]
    return finish([start(["program.py"], one, folder, python) for one in every])


def finish(
    processes: Sequence[subprocess.Popen[str]], timeout_s: float = 300
) -> list[tuple[int, str, str]]:
    """Return each process's exit code, own stdout and stderr; kill what runs at the deadline."""
    deadline = time.monotonic() + timeout_s
    ended = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=max(1, deadline - time.monotonic()))
            ended.append((process.returncode, own_output(out), err))
    except subprocess.TimeoutExpired:
        left = [rank for rank, one in enumerate(processes) if one.poll() is None]
        for process in processes:
            process.kill()
        words = [process.communicate() for process in processes[len(ended) :]]
        raise AssertionError(f"{left} not over after {timeout_s} s: {ended} {words}") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return ended


def errors_of(err: str) -> list[str]:
    """Return the lines of stderr, except those in which rank 0 waits for ranks started by hand."""
    return [line for line in err.splitlines() if not line.startswith("waiting for rank ")]


def own_output(text: str) -> str:
    """Remove the lines that gloo prints about its connections in torch 2.7 to 2.12."""
    return "".join(line for line in text.splitlines(True) if not line.startswith("[Gloo] "))


def records(run_dir: Path, rank: int, kind: str = "") -> list[dict[str, Any]]:
    """Return a rank's records of one kind, or all of them."""
    lines = (run_dir / "metrics" / f"rank_{rank:05d}.jsonl").read_text().splitlines()
    return [one for one in map(json.loads, lines) if kind in ("", one["kind"])]


def losses(run_dir: Path) -> list[float]:
    return [one["loss"] for one in records(run_dir, 0, "step")]


def losses_by_step(*folders: Path) -> dict[int, float]:
    """Return the losses of attempts in order; if a step was done twice, the second time counts.

    The last attempt may still be writing.
    """
    paths = [run_files.METRICS.path(folder, rank=0) for folder in folders]
    found = (one for path in paths if path.exists() for one in json_objects(path.read_bytes()))
    return {one["step"]: one["loss"] for one in found if one["kind"] == "step"}


def read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def assert_measured(row: dict[str, Any], ranks: int, parted: Collection[str]) -> None:
    """Check that the values of a timed collective are consistent, in nccl-tests' terms."""
    from train.benchmarks.collectives import bus_factor

    assert row["wrong"] == 0 and row["time_us"] > 0
    assert row["bytes"] == row["count"] * 4 * (ranks if row["name"] in parted else 1)
    assert isclose(row["algbw_gb_s"], row["bytes"] / row["time_us"] / 1e3, rel_tol=1e-6)
    assert isclose(
        row["busbw_gb_s"], row["algbw_gb_s"] * bus_factor(row["name"], ranks), rel_tol=1e-6
    )


def run_on_ranks(script: str, ranks: int, *words: str, timeout_s: float = 300) -> None:
    """Run `script` as each worker of one group on this machine; all of them must end well."""
    torchrun = [interpreter(), "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, f"--nproc-per-node={ranks}", script, *words]
    env = {"PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    done = call(*command, env=env, timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr[-3000:]


def results_of(
    work: Callable[..., Any], ranks: int, folder: Path, *words: str, timeout_s: float = 300
) -> list[Any]:
    """Return what `work(ranks, *words)` returns on each worker of one group on this machine.

    `work` is a function in a file, which each worker loads.
    """
    import torch  # (not every test that starts workers has it)

    file = Path(work.__code__.co_filename).resolve().relative_to(CHECKOUT).with_suffix("")
    given = [".".join(file.parts), work.__name__, str(folder), *words]
    run_on_ranks(str(Path(__file__).with_name("on_ranks.py")), ranks, *given, timeout_s=timeout_s)
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(ranks)]
