"""A prologue may leave processes in the background, and a run can be ended while it runs."""

import signal

import pytest

from tests.commands import ended
from tests.launch.submit import alive, run_well, start, wait_until
from tests.written import executable

# It holds what it inherits open, and is found by the folder on its command line.
WAITS = "timeout 300 tail -f {folder}/prologue.sh"
FLAGS = ["--launcher", "local", "--workers", "manual", "--prologue", "prologue.sh"]


@pytest.fixture
def project(tmp_path):
    executable(tmp_path / "show.sh", '#!/bin/sh\necho "stage $STAGE" > started\n')
    yield tmp_path
    wait_until(lambda: alive(tmp_path) == [])


def write_prologue(project, *lines):
    (project / "prologue.sh").write_text("\n".join(lines).format(folder=project) + "\n")


def test_background_process_of_a_prologue_ends_with_the_run(project):
    write_prologue(project, "read line || true", WAITS + " &", "export STAGE=set")
    run_well(*FLAGS, "--", "./show.sh", cwd=project)
    assert (project / "started").read_text() == "stage set\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_in_its_prologue_starts_no_worker(project, number):
    write_prologue(project, WAITS + " &", WAITS)
    process = start(*FLAGS, "--", "./show.sh", cwd=project)
    with ended(process):
        wait_until(lambda: alive(project / "prologue.sh"))
        process.send_signal(number)
        process.communicate(timeout=300)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: alive(project) == [])
    assert not (project / "started").exists()
