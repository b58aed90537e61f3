"""A worker's inspection answers, and is not in the way of what the worker does."""

import subprocess
import sys
from pathlib import Path

from muster.worker import inspection

FORKS = """
import importlib.util, json, os, socket, sys
def count():  # as Python 3.12 and newer do, which warn of a fork beside other threads
    counted.append(int(open("/proc/self/stat").read().rpartition(")")[2].split()[17]))
def ask():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(f"{folder}/rank_00003.sock")
        connection.sendall(b'{"ask": "progress"}\\n')
        return json.loads(connection.makefile().readline())["rank"]
counted, folder = [], sys.argv[2]
os.register_at_fork(before=count)
spec = importlib.util.spec_from_file_location("inspection", sys.argv[1])
inspection = importlib.util.module_from_spec(spec)
spec.loader.exec_module(inspection)
os.environ["MUSTER_INSPECTION"] = folder
inspection.start(3)
answered = [ask()]
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:  # which a forked process may do, too
            os._exit(0)
        os._exit(os.wait()[1] or inspection.inspector is not None)
    assert os.wait()[1] == 0
    answered.append(ask())
print(set(counted), set(answered), len(answered))
"""


def test_a_fork_finds_no_thread_of_ours_and_questions_are_answered_after_it(tmp_path):
    script, folder = tmp_path / "forks.py", tmp_path / "inspection"
    script.write_text(FORKS)
    folder.mkdir()
    # Python 3.13.0 counts once the thread is back, and warns of it.
    python = [sys.executable, "-W", "ignore::DeprecationWarning"]
    words = [*python, str(script), str(Path(inspection.__file__)), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("{1} {3} 21\n", "")
