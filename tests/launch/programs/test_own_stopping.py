"""A program that does not use Muster to stop gets SIGTERM, and time to act on it."""

import signal
import time
from pathlib import Path

import pytest

from tests.commands import ended
from tests.fork_server import interpreter
from tests.launch.submit import alive, start, wait_until, worker

FLAGS = ["--launcher", "local", "--nodes", "2", "--nproc-per-node", "2"]
SAVE_S = 7.0  # longer than any wait of 5 s
# A run that ends despite such a long grace period has waited for no worker.
ENDLESS, LONG_GRACE = "10000", ("--stop-grace-s", "10000")

# A program that does not use Muster: one rank saves, as usual, and the others end immediately.
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


def ready(folder: Path) -> int:
    outputs = folder.glob("runs/*/workers/*.out")
    return sum("ready" in path.read_text() for path in outputs)


SLOW = pytest.mark.slow
DEAF = [*LONG_GRACE, "--workers", "manual"]
ENDS = [
    pytest.param([str(SAVE_S)], ["--workers", "torchrun"], signal.SIGTERM, True, marks=SLOW),
    ([str(SAVE_S)], ["--workers", "manual"], signal.SIGTERM, True),
    pytest.param([ENDLESS], ["--stop-grace-s", "1"], signal.SIGINT, False, marks=SLOW),
    pytest.param([ENDLESS, "--deaf"], DEAF, signal.SIGTERM, False, marks=SLOW),
    pytest.param([ENDLESS], LONG_GRACE, signal.SIGKILL, False, marks=SLOW),
]


@pytest.mark.parametrize(
    ("words", "more", "number", "is_saved"),
    ENDS,
    ids=["its grace", "by hand", "no more than that", "deaf: at once", "a failure leaves none"],
)
def test_program_that_catches_sigterm_has_its_grace(tmp_path, words, more, number, is_saved):
    (tmp_path / "saves.py").write_text(SAVES)
    flags = [*FLAGS, "--logs-dir", "runs", *more]
    program = str(tmp_path / "saves.py")
    argv = [*flags, "--", program, *words]
    with ended(start(*argv, cwd=tmp_path, python=interpreter())) as process:
        wait_until(lambda: ready(tmp_path) == 4)
        began = time.monotonic()
        (worker(process, 3) if number == signal.SIGKILL else process).send_signal(number)
        process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert (tmp_path / "saved").exists() == is_saved
    assert not is_saved or time.monotonic() - began >= SAVE_S
    # If the leader has to kill a forked agent, the fork server ends the agent's processes later.
    wait_until(lambda: alive(tmp_path) == [])
