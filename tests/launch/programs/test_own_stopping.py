"""A program that says nothing of stopping gets SIGTERM, and the time to do something about it."""

import signal
import time
from pathlib import Path

import pytest

from tests.launch.submit import alive, start, wait_until, worker

FLAGS = ["--launcher", "local", "--nodes", "2", "--nproc-per-node", "2"]
SAVE_S = 7.0  # longer than what waits for 5 s
# A run that ends in spite of such a grace has waited for nobody.
ENDLESS, LONG_GRACE = "10000", ("--stop-grace-s", "10000")
NO_TORCHRUN = ("--workers", "manual", *LONG_GRACE)
# No word of Muster in it: one rank saves, as is usual, and the others end at once.
SAVES = """
import os, signal, sys, time
def save(number, frame):
    time.sleep(float(sys.argv[1]))
    with open("saved", "w") as file: file.write("all of it")
    sys.exit(0)
if os.environ["RANK"] == "0" and "--deaf" not in sys.argv: signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True: time.sleep(0.1)
"""


@pytest.fixture
def begin(tmp_path):
    """Starts the program in a folder of its own, and gives its launcher once all ranks run."""
    made = []

    def one(*words: str, more: tuple[str, ...] = ()):
        (tmp_path / "saves.py").write_text(SAVES)
        flags = [*FLAGS, "--logs-dir", "runs", *more]
        process = start(*flags, "--", str(tmp_path / "saves.py"), *words, cwd=tmp_path)
        made.append(process)
        assert wait_until(lambda: ready(tmp_path) == 4)
        return process

    yield one
    for process in made:
        process.kill()
        process.wait()
    assert wait_until(lambda: alive(tmp_path) == [])


def ready(folder: Path) -> int:
    outputs = folder.glob("runs/*/workers/*.out")
    return sum("ready" in path.read_text() for path in outputs)


def end_of(process, folder: Path) -> int:
    process.communicate(timeout=300)
    assert alive(folder) == []
    return process.returncode


@pytest.mark.parametrize("workers", ["torchrun", "manual"])
def test_what_catches_sigterm_has_its_grace(begin, tmp_path, workers):
    process = begin(str(SAVE_S), more=("--workers", workers))
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert end_of(process, tmp_path) == 128 + signal.SIGTERM
    assert time.monotonic() - began >= SAVE_S
    assert (tmp_path / "saved").read_text() == "all of it"


def test_it_has_no_more_than_that(begin, tmp_path):
    process = begin(ENDLESS, more=("--stop-grace-s", "1"))
    process.send_signal(signal.SIGINT)
    assert end_of(process, tmp_path) == 128 + signal.SIGINT
    assert not (tmp_path / "saved").exists()


def test_what_does_not_catch_it_ends_at_once(begin, tmp_path):
    process = begin(ENDLESS, "--deaf", more=NO_TORCHRUN)
    process.send_signal(signal.SIGTERM)
    assert end_of(process, tmp_path) == 128 + signal.SIGTERM


def test_a_failure_leaves_no_grace(begin, tmp_path):
    process = begin(ENDLESS, more=LONG_GRACE)
    worker(process, 3).kill()
    assert end_of(process, tmp_path) == 128 + signal.SIGKILL
    assert not (tmp_path / "saved").exists()
