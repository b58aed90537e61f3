"""A worker's inspection answers, and does not disturb the worker."""

import sys
from pathlib import Path

from muster.worker import inspection
from tests.commands import call

FORKS = """
import importlib, json, os, socket, sys, types, warnings
def ask():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(f"{folder}/rank_00003.sock")
        connection.sendall(b'{"ask": "progress"}\\n')
        return json.loads(connection.makefile().readline())["rank"]
folder = sys.argv[2]
sys.modules["_muster"] = types.ModuleType("_muster")
sys.modules["_muster"].__path__ = [os.path.dirname(sys.argv[1])]
inspection = importlib.import_module("_muster.inspection")
inspection.start(folder, 3)
answered = [ask()]
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:  # which a forked process may do, too
            os._exit(0)
        os._exit(os.wait()[1] or inspection.inspector is not None)
    assert os.wait()[1] == 0
    answered.append(ask())
# as Python 3.12 and newer do; other warnings are the program's
text = "This process (pid=7) is multi-threaded, use of fork() may lead to deadlocks in the child."
warnings.warn(text, DeprecationWarning)
warnings.warn("seen", DeprecationWarning)
print(set(answered), len(answered))
"""


def test_fork_gives_no_warning_and_leaves_inspection_answering(tmp_path):
    script, folder = tmp_path / "forks.py", tmp_path / "inspection"
    script.write_text(FORKS)
    folder.mkdir()
    words = [sys.executable, str(script), str(Path(inspection.__file__)), str(folder)]
    done = call(*words)
    assert done.stdout == "{3} 21\n", done.stderr
    assert done.stderr.count("Warning: ") == 1 and "DeprecationWarning: seen" in done.stderr


ENDS = """
import importlib, os, socket, sys, threading, time, types
sys.modules["_muster"] = types.ModuleType("_muster")
sys.modules["_muster"].__path__ = [os.path.dirname(sys.argv[1])]
inspection = importlib.import_module("_muster.inspection")
asked = threading.Event()
def groups():  # as torch's, on a busy machine
    asked.set()
    time.sleep(0.5)
    os.write(1, b"answered")
    return {}
inspection.flight_recorder.groups = groups
inspection.start(sys.argv[2], 3)
connection = socket.socket(socket.AF_UNIX)
connection.connect(f"{sys.argv[2]}/rank_00003.sock")
connection.sendall(b'{"ask": "progress"}\\n')
asked.wait()
"""


def test_python_does_not_end_while_a_question_is_answered(tmp_path):
    """A thread in torch's code at that moment would abort Python."""
    script, folder = tmp_path / "ends.py", tmp_path / "inspection"
    script.write_text(ENDS)
    folder.mkdir()
    done = call(sys.executable, script, inspection.__file__, folder)
    assert (done.returncode, done.stdout) == (0, "answered"), done.stderr
