"""The house: what lies where, and what may know of what. Import directions are lint-imports'."""

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import vermin

from configs import plugins
from muster.checkout import CHECKOUT
from tests.commands import call

PACKAGES = ("configs", "launch", "muster", "train")
# What is loaded into users' processes; the rest of train/ is the toolkit's own trainer.
LIBRARY = ("muster", *(f"train/{folder}" for folder in (
    "batches", "checkpoints", "distributed", "evaluation", "model", "program", "records", "sync",
)))  # fmt: skip
SOURCES = sorted(file for package in PACKAGES for file in (CHECKOUT / package).rglob("*.py"))
PLUGINS = (
    "train.sync.modes", "train.sync.compression", "train.tasks",
    "launch.launchers", "launch.starters",
)  # fmt: skip
# Everything that a person wrote, whatever its kind; this file names what it forbids.
WRITTEN = [
    file
    for folder in (*PACKAGES, "slurm", "tests", "docs", ".ci")
    for file in sorted((CHECKOUT / folder).rglob("*"))
    if file.is_file() and "__pycache__" not in file.parts and file != Path(__file__).resolve()
]
WRITTEN += [CHECKOUT / "Makefile"]


def written_in(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def name(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def test_the_top_level_has_what_everybody_looks_for():
    """What else lies there, such as a user's data, is no matter of ours."""
    here = {path.name for path in CHECKOUT.iterdir()}
    assert {*PACKAGES, "docs", "logs", "slurm", "tests"} <= here
    assert {"README.md", "setup.cfg", "Makefile", "LICENSE", "CHANGELOG.md"} <= here


@pytest.mark.parametrize("package", PLUGINS)
def test_the_last_line_of_a_plugin_is_its_build(package):
    for plugin in plugins.names(package):
        path = CHECKOUT.joinpath(*package.split("."), f"{plugins.file_of(package, plugin)}.py")
        last = ast.parse(written_in(path)).body[-1]
        match last:
            case ast.Assign(targets=[ast.Name(id="build")]) | ast.FunctionDef(name="build"):
                continue
        pytest.fail(f"{name(path)}:{last.lineno}: the last statement must make `build`")


# Slurm's own code, its settings, its scripts; ranks by hand, and the testbed, which has a Slurm.
SLURMS = ("launch/slurm/", "launch/launchers/slurm.py", "configs/settings/", "slurm/")
SLURMS += ("muster/rank_variables.py", "launch/virtual_cluster/", "launch/testbed.py")
SLURMS += ("muster/launching.py",)  # the names of settings, in Python


def test_only_slurm_s_own_code_knows_slurm():
    """What any scheduler needs is asked by its class; see launch/nodes/scheduler.py."""
    for path in WRITTEN:
        if name(path).startswith((*SLURMS, "tests/", "docs/")):
            continue
        text = written_in(path).replace("SLURM_ROOT", "")  # make's, not Slurm's
        if path.suffix == ".py":  # a name of Python, such as that of a deadline, is no variable
            texts = (
                node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)
            )
            assert not [each for each in texts if each == "slurm" or "SLURM_" in str(each)], name(
                path
            )
        else:
            assert "SLURM_" not in text, name(path)


def test_settings_make_and_remove_no_files():
    """A run's folder is made, claimed and cleared where runs are."""
    changing = re.compile(r"mkdir|unlink|rmdir|rmtree|touch\(|rename|write_|claim\(|new_run_id")
    settings = [file for file in SOURCES if (CHECKOUT / "configs") in file.parents]
    assert settings and [file for file in settings if changing.search(file.read_text())] == []


def test_processes_are_ended_by_their_number_never_by_their_name():
    for path in WRITTEN:
        assert not re.search(r"\b(pkill|killall)\b", written_in(path)), name(path)


# What any program may load, under another name than train: see tests/train/test_foreign_program.py.
@pytest.mark.parametrize("folder", LIBRARY[1:])
def test_library_names_no_package_of_a_users_program(folder):
    for path in sorted((CHECKOUT / folder).rglob("*.py")):
        absolute = re.findall(r"^ *(?:from|import) (\w+)", written_in(path), re.MULTILINE)
        assert not {"configs", "launch", "tests", "train"} & set(absolute), name(path)


def test_the_library_runs_on_python_3_10():
    """The toolkit's commands need 3.11."""
    config = vermin.Config()
    config.set_eval_annotations(True)
    newer = {}
    for path in (file for folder in LIBRARY for file in (CHECKOUT / folder).rglob("*.py")):
        visitor = vermin.visit(written_in(path), config)
        if visitor.minimum_versions()[1] > (3, 10):
            newer[name(path)] = visitor.output_text()
    assert newer == {}


def test_no_file_hides_a_library():
    """`python launch/submit.py` puts launch/ first on sys.path, where a queue.py would win."""
    installed = sys.stdlib_module_names | packages_distributions().keys()
    run_by_path = [path for path in SOURCES if path.parent.name in ("launch", "train")]
    assert [name(path) for path in run_by_path if path.stem in installed] == []


def test_no_file_imports_a_test_file():
    """What several of them need has a home of its own; what one runs elsewhere, it may name."""
    imported = re.compile(r"^ *(?:from|import) tests[\w.]*(?:\.| import (?:.*\W)?)(test_\w+)", re.M)
    for path in WRITTEN:
        if path.suffix == ".py":
            assert set(imported.findall(written_in(path))) <= {path.stem}, name(path)


def test_a_login_node_without_torch_can_check_and_launch():
    """Imports inside functions count, too: only lint-imports sees those."""
    paths = [path.relative_to(CHECKOUT).with_suffix("") for path in SOURCES]
    modules = [".".join(path.parts) for path in paths if "train" not in path.parts[:-1]]
    code = f"import importlib, sys\nfor one in {modules}: importlib.import_module(one)\n"
    code += "heavy = {'torch', 'transformers', 'accelerate', 'datasets', 'numpy'}\n"
    code += "print(*heavy & sys.modules.keys())"
    done = call(sys.executable, "-c", code, cwd=CHECKOUT)
    assert done.stdout == "\n", done.stderr


def test_a_worker_says_what_is_wrong_before_torch_is_there():
    """Nor would what torch warns of be silenced any more, once it is."""
    code = "import sys, train.worker; sys.exit('torch' in sys.modules)"
    assert call(sys.executable, "-c", code, cwd=CHECKOUT).returncode == 0
