"""What ranks do before their first step, by the frames of their main thread."""

import subprocess
import sys

from launch.runs.watching import start_phase
from tests.launch.submit import REPOSITORY, start, wait_until

SITE = "/venv/lib/python3.11/site-packages"


def report(rank, *frames):
    """Frames as (file, function), outermost first."""
    rows = [{"file": file, "function": function, "line": 7} for file, function in frames]
    return {"rank": rank, "threads": [{"main": True, "frames": rows}]}


SCRIPT = ("/home/me/train.py", "<module>")
IMPORT = ("<frozen importlib._bootstrap>", "_find_and_load")


def test_imports_and_downloads_have_words_of_their_own():
    package = (f"{SITE}/transformers/models/bert/__init__.py", "<module>")
    hub = (f"{SITE}/huggingface_hub/file_download.py", "http_get")
    reports = [
        report(0, SCRIPT, IMPORT, package, IMPORT),
        report(2, SCRIPT, IMPORT, package, IMPORT),
        report(1, SCRIPT, (f"{SITE}/transformers/utils/hub.py", "cached_file"), hub),
        report(3, SCRIPT, ("/home/me/train.py", "main")),
        {"rank": 4},
    ]
    assert list(start_phase.lines(reports)) == [
        "ranks 0, 2: importing transformers.models.bert (train.py:7)",
        "rank 1: downloading, or looking for files to download (train.py:7)",
    ]


def test_a_download_within_an_import_is_a_download():
    hub = (f"{SITE}/urllib3/connection.py", "connect")
    (line,) = start_phase.lines([report(0, SCRIPT, IMPORT, ("/home/me/data.py", "<module>"), hub)])
    assert line == "rank 0: downloading, or looking for files to download (data.py:7)"


def test_status_says_what_a_run_imports(tmp_path):
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(10_000)\n")
    (tmp_path / "train.py").write_text("\nimport slow\n")
    flags = ["--launcher", "local", "--nproc-per-node", "2", "--workers", "manual", "--run-id", "a"]
    process = start(*flags, "--", "train.py", cwd=tmp_path)
    try:
        wanted = "ranks 0, 1: importing slow (slow.py:2)"
        assert wait_until(lambda: wanted in status(tmp_path)), status(tmp_path)
    finally:
        process.terminate()
        process.communicate(timeout=300)


def status(project):
    argv = [sys.executable, str(REPOSITORY / "launch" / "jobs.py"), "status", "a"]
    done = subprocess.run(argv, cwd=project, capture_output=True, text=True, check=False)
    return done.stdout
