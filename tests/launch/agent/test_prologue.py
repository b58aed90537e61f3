"""A prologue may leave processes in the background, and a run can be ended during it."""

import signal

import pytest

from tests.commands import ended
from tests.launch.submit import alive, run_well, start, wait_until
from tests.written import executable

# It keeps inherited files open, and is found by the folder on its command line.
WAITS = "timeout 300 tail -f {folder}/prologue.sh"
FLAGS = ["--launcher", "local", "--workers", "manual", "--prologue", "prologue.sh"]


@pytest.fixture
def script_folder(tmp_path):
    executable(tmp_path / "show.sh", '#!/bin/sh\necho "stage $STAGE" > started\n')
    yield tmp_path
    wait_until(lambda: alive(tmp_path) == [])


def write_prologue(script_folder, *lines):
    (script_folder / "prologue.sh").write_text("\n".join(lines).format(folder=script_folder) + "\n")


def test_background_process_of_a_prologue_ends_with_the_run(script_folder):
    write_prologue(script_folder, "read line || true", WAITS + " &", "export STAGE=set")
    run_well(*FLAGS, "--", "./show.sh", cwd=script_folder)
    assert (script_folder / "started").read_text() == "stage set\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_in_its_prologue_starts_no_worker(script_folder, number):
    write_prologue(script_folder, WAITS + " &", WAITS)
    process = start(*FLAGS, "--", "./show.sh", cwd=script_folder)
    with ended(process):
        wait_until(lambda: alive(script_folder / "prologue.sh"))
        process.send_signal(number)
        process.communicate(timeout=300)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: alive(script_folder) == [])
    assert not (script_folder / "started").exists()
