"""`dir(muster)`, `help(muster)` and the version are available without torch."""

import platform
import re
import shutil
import subprocess
import sys
from types import ModuleType

import muster
from muster.checkout import CHECKOUT
from tests.commands import call

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\nimport muster, pydoc\n"


def test_completion_lists_all_names_and_loads_nothing():
    code = "import muster, sys; print(*dir(muster)); sys.exit('torch' in sys.modules)"
    done = call(sys.executable, "-c", code, cwd=CHECKOUT)
    assert (done.returncode, {*muster.__all__} - {*done.stdout.split()}) == (0, set())


def test_completion_works_with_a_replaced_torch_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert {"sync", "launch"} <= {*dir(muster)}


def test_help_shows_what_a_python_without_torch_has():
    code = f"{WITHOUT_TORCH}print(*dir(muster))\nprint(pydoc.plain(pydoc.render_doc(muster)))"
    done = call(sys.executable, "-c", code, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
    names, _, shown = done.stdout.partition("\n")
    assert "launch" in names.split() and "sync" not in names.split()
    assert "sync, sync_ddp          gradients become the mean" in shown


def version(*words: str, cwd: object = CHECKOUT) -> str:
    done = call(sys.executable, *words, "--version", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_version_names_commit_and_python():
    printed = version("-m", "muster.command")
    begin = rf"muster {re.escape(muster.__version__)} \({re.escape(str(CHECKOUT))}"
    assert re.match(rf"{begin}(, commit [0-9a-f]+(-dirty)?)?\), Python ", printed), printed
    assert f"Python {platform.python_version()} ({sys.executable})" in printed


def test_a_copy_in_another_repository_does_not_name_its_commit(tmp_path):
    copy = tmp_path / "packages"
    shutil.copytree(CHECKOUT / "muster", copy / "muster")
    (tmp_path / "mine.py").touch()
    for words in (["init", "-q"], ["add", "mine.py"], ["commit", "-q", "-m", "mine"]):
        own = ["-c", "user.name=me", "-c", "user.email=me@localhost"]
        subprocess.run(["git", *own, *words], cwd=tmp_path, check=True)
    assert f"({copy}), Python" in version("-m", "muster.command", cwd=copy)


def test_every_file_has_the_same_version():
    cited = (CHECKOUT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {muster.__version__}\n" in cited
    setup = (CHECKOUT / "setup.cfg").read_text(encoding="utf-8")
    assert "\nversion = attr: muster.__version__\n" in setup
