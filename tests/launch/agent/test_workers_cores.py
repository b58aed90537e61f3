"""Workers get their share of the cores whatever starts them, and are bound if the user asks."""

import json
import os
import sys
from pathlib import Path

import pytest

from launch.nodes.resources import Cores, parts_of, usable_cores
from tests.launch.scripts import SHOWS_CORES
from tests.launch.submit import run_well

LOCAL = ["--launcher", "local"]


def cores_of_ranks(folder: Path, *flags: str) -> tuple[list[str], list[list[int]], str]:
    """Threads and CPUs of each rank, and what was printed."""
    (folder / "shows.py").write_text(SHOWS_CORES)
    # the interpreter that imports for a node's workers passes descriptors on
    python = sys.executable if "preload" in flags else None
    out = run_well(*LOCAL, *flags, "--", "shows.py", cwd=folder, python=python)
    paths = sorted(folder.glob("logs/*/workers/*.out"))
    found = [json.loads(path.read_text()) for path in paths]
    return [threads for threads, _ in found], [cpus for _, cpus in found], out


@pytest.fixture
def here() -> Cores:
    return usable_cores()


@pytest.mark.parametrize("workers", ["torchrun", "manual", "accelerate", "preload"])
def test_each_starter_binds_its_workers_and_gives_them_their_share(tmp_path, here, workers):
    flags = ["--nproc-per-node", "2", "--workers", workers, "--bind", "cores"]
    threads, cpus, out = cores_of_ranks(tmp_path, *flags)
    every = sorted(os.sched_getaffinity(0))
    parts = parts_of(here.cores, 2, "cores") or [every] * 2
    assert cpus == [sorted(part) for part in parts]
    assert threads == [str(here.threads(2))] * 2
    assert f"\ncores: {here.words(2)}" in out


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["torchrun", "accelerate"])
def test_a_worker_alone_has_all_cores(tmp_path, here, workers):
    """torchrun itself sets no number of threads for a single worker."""
    threads, cpus, out = cores_of_ranks(tmp_path, "--workers", workers)
    assert threads == [str(here.threads(1))] and cpus == [sorted(os.sched_getaffinity(0))]
    assert f"\ncores: {here.words(1)}\n" in out


@pytest.mark.slow
def test_simulated_nodes_share_the_machine_and_nobody_is_bound(tmp_path, here):
    threads, cpus, out = cores_of_ranks(tmp_path, "--nodes", "2", "--workers", "manual")
    assert threads == [str(here.threads(2))] * 2
    assert cpus == [sorted(os.sched_getaffinity(0))] * 2
    assert out.count(f"\ncores: {here.words(2)}\n") == 1


@pytest.mark.slow
def test_more_workers_than_cores_take_turns(tmp_path, here, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    workers = here.cpus + 1
    size = ["--nproc-per-node", str(workers), "--workers", "manual"]
    threads, _, out = cores_of_ranks(tmp_path, *size)
    assert threads == ["3"] * workers
    assert f"\ncores: {here.words(workers)}; OMP_NUM_THREADS is 3\n" in out
    assert f"{workers} workers share " in here.words(workers)


@pytest.mark.slow
def test_quiet_run_prints_no_line_on_cores(tmp_path):
    assert "cores" not in cores_of_ranks(tmp_path, "--quiet", "--workers", "manual")[2]


@pytest.mark.slow
def test_trainer_threads_are_its_share_or_omp_num_threads(tmp_path, here, monkeypatch):
    flags = ["--task", "synthetic", "--max-steps", "1", "--evaluate", "never"]
    for name, threads in (("share", here.threads(1)), ("given", 1)):
        # a new interpreter, so that torch reads the variable again
        run_well(*LOCAL, *flags, "--logs-dir", str(tmp_path / name), python=sys.executable)
        (about,) = tmp_path.glob(f"{name}/*/environment/*.json")
        assert json.loads(about.read_text())["threads_per_worker"] == threads
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
