"""A command's first steps: it handles Ctrl-C, and makes sure that its own modules are imported."""

import os
import re
import shutil
import signal
import sys
import sysconfig

import pytest

from muster import run_module
from muster.checkout import CHECKOUT
from tests.commands import call
from tests.written import write

COMMANDS = ("submit", "jobs", "doctor", "testbed", "study", "sweep")
# Ctrl-C comes while the command imports the first of its own modules.
INTERRUPTED = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run where it is ignored
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("launch"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_in_the_first_moment_is_no_traceback(command):
    script = CHECKOUT / "launch" / f"{command}.py"
    done = call(sys.executable, "-c", INTERRUPTED, script, "--help")
    assert done.stderr == ""
    assert done.returncode == -signal.SIGINT


@pytest.mark.parametrize("words", [["run", "--dry-run", "-q", "--launcher=local"], ["config"]])
def test_pythonpath_hides_no_module_of_muster(words, tmp_path):
    hiding = ("yaml", "rich", "msgspec", "launch", "configs", "train", "statistics")
    text = "raise RuntimeError(__file__)\n"
    write(tmp_path, {f"{name}.py": text for name in hiding})
    command = [sys.executable, CHECKOUT / "muster" / "command.py", *words]
    done = call(*command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0 and "Error" not in done.stderr


def test_packages_of_ours_may_come_by_pythonpath(tmp_path, monkeypatch):
    own = [str(CHECKOUT), *sysconfig.get_paths().values()]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *own]))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *own, "/last"])
    run_module.begin()
    assert sys.path == [*own, "/last", str(tmp_path)]


SCRIPTS = (
    *(f"launch/{command}.py" for command in COMMANDS),
    *("train/main.py", "train/run_glue.py", "train/command_lines/hetseq.py"),
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_starts_as_all_others_and_is_imported_without_effect(script):
    module = script.removesuffix(".py").replace("/", ".")
    text = (CHECKOUT / script).read_text(encoding="utf-8")
    starts = re.findall(r'/muster/run_module.py"\)\["start"\]\(\s*__file__', text)
    assert len(starts) == 1 and text.count("__main__") == 1
    looks = "import signal, sys; before = sys.path[:], signal.getsignal(signal.SIGINT); "
    looks += f"import {module}; print(before == (sys.path, signal.getsignal(signal.SIGINT)))"
    assert call(sys.executable, "-c", looks, cwd=CHECKOUT).stdout == "True\n"


@pytest.mark.parametrize("option", [[], ["-P"]])
def test_a_file_beside_a_script_hides_no_library(option, tmp_path):
    """With -P, Python does not add the script's folder to its path."""
    shutil.copytree(CHECKOUT / "muster", tmp_path / "muster")
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "yaml.py").write_text("raise RuntimeError('hidden')\n")
    shows = "import sys, yaml\n\n\ndef main() -> int:\n    print(sys.argv)\n    return 3\n"
    top = (CHECKOUT / "launch" / "submit.py").read_text(encoding="utf-8")
    (tmp_path / "launch" / "submit.py").write_text(top[: top.index("import os\n")] + shows)
    done = call(sys.executable, *option, "launch/submit.py", "--flag", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "['launch/submit.py', '--flag']\n"), done.stderr
