"""The house: what lies where, and what may know of what. Import directions are lint-imports'."""

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from configs import plugins
from tests.code_lines import code_lines
from tests.commands import call
from tests.versions.names import LIBRARY

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("configs", "launch", "muster", "train")
SOURCES = sorted(file for package in PACKAGES for file in (REPOSITORY / package).rglob("*.py"))
PLUGINS = (
    "train.sync.modes", "train.sync.compression", "train.tasks",
    "launch.launchers", "launch.starters",
)  # fmt: skip
# Everything that a person wrote, whatever its kind; this file names what it forbids.
WRITTEN = [
    file
    for folder in (*PACKAGES, "slurm", "tests", "docs", ".ci")
    for file in sorted((REPOSITORY / folder).rglob("*"))
    if file.is_file() and "__pycache__" not in file.parts and file != Path(__file__).resolve()
]
WRITTEN += [REPOSITORY / "Makefile"]


def written_in(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def test_the_top_level_is_the_fixed_one():
    needed = {*PACKAGES, "logs", "tests"}
    files = {"README.md", "setup.cfg", "Makefile", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"}
    here = {path.name: path.is_dir() for path in REPOSITORY.iterdir()}
    folders = {one for one in here if here[one] and not one.startswith((".", "__"))}
    assert needed <= folders <= needed | {"slurm", "docs", "build", "muster.egg-info"}
    assert files <= here.keys() - folders


def test_a_file_has_one_reason_to_change_and_few_could_be_part_of_another():
    lines = {name(path): code_lines(written_in(path)) for path in SOURCES}
    assert [one for one, count in lines.items() if count > 250] == []
    short = [one for one, count in lines.items() if 0 < count <= 40]
    assert len(short) <= 40, short


def test_blank_lines_comments_and_docstrings_are_no_code():
    text = '"""A page\nof text."""\n\nimport os  # a comment\n\n\ndef f(a,\n      b):\n'
    text += '    """Says something."""\n    # a reason\n    return """one\ntwo"""\n'
    assert code_lines(text) == 1 + 2 + 2


@pytest.mark.parametrize("package", PLUGINS)
def test_the_last_line_of_a_plugin_is_its_build(package):
    for plugin in plugins.names(package):
        path = REPOSITORY.joinpath(*package.split("."), f"{plugins.file_of(package, plugin)}.py")
        last = ast.parse(written_in(path)).body[-1]
        match last:
            case ast.Assign(targets=[ast.Name(id="build")]) | ast.FunctionDef(name="build"):
                continue
        pytest.fail(f"{name(path)}:{last.lineno}: the last statement must make `build`")


def test_only_the_launching_side_knows_slurm():
    known = ("launch", "slurm", "tests", "muster/rank_variables.py")  # a program's, under srun
    known_to = tuple(str(REPOSITORY / one) for one in known)
    for path in WRITTEN:
        if not str(path).startswith(known_to):
            text = written_in(path).replace("SLURM_ROOT", "")  # make's, not Slurm's
            assert "SLURM_" not in text, name(path)


def test_processes_are_ended_by_their_number_never_by_their_name():
    for path in WRITTEN:
        assert not re.search(r"\b(pkill|killall)\b", written_in(path)), name(path)


# Words of this house alone, each of which had to be learned; what stands for them is the field's.
PRIVATE = {
    "file": "account aside attempts bed case choice conversation data events examine facts follow"
    " grad_sync guest head helpers login mirror misc origin registry roads roll session states"
    " survivors utils views visit ways wire words",
    "class": "Account Bed Case Conversation Ending Examined Head Keeper Member Mirror Post Presence"
    " Session Wire Wishes",
    "function": "aside conversation examine kept meet_all news roll said session told visit wish",
    "parameter": "bed keeper kept news roll said told wish wishes",
}


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_name_has_to_be_learned(path):
    used = {"file": {path.stem}, "class": set(), "function": set(), "parameter": set()}
    for node in ast.walk(ast.parse(written_in(path))):
        match node:
            case ast.ClassDef():
                used["class"].add(node.name)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                used["function"].add(node.name.lstrip("_"))
            case ast.arg():
                used["parameter"].add(node.arg)
    found = {kind: names & set(PRIVATE[kind].split()) for kind, names in used.items()}
    assert not any(found.values()), found


def test_a_file_name_occurs_once_but_for_those_that_have_a_meaning():
    plugins_of = {REPOSITORY.joinpath(*package.split(".")) for package in PLUGINS}
    stems = [path.stem for path in SOURCES if path.parent not in plugins_of]
    assert {stem for stem in stems if stems.count(stem) > 1} <= {"__init__", "__main__", "base"}


def test_no_import_needs_another_name():
    customary = {("torch.distributed", "dist"), ("numpy", "np")}
    customary |= {("xml.etree.ElementTree", "ET"), ("matplotlib", "mpl"), ("pandas", "pd")}
    for path in SOURCES:
        for node in ast.walk(ast.parse(written_in(path))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                others = {(one.name, one.asname) for one in node.names if one.asname}
                assert others <= customary | {(one, one) for one, _ in others}, name(path)


# What any program may load, under another name than train: see tests/train/test_foreign_program.py.
@pytest.mark.parametrize("folder", LIBRARY[1:])
def test_what_any_program_may_load_names_no_package_that_it_may_have_itself(folder):
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        absolute = re.findall(r"^ *(?:from|import) (\w+)", written_in(path), re.MULTILINE)
        assert not {"configs", "launch", "tests", "train"} & set(absolute), name(path)


def test_a_folder_is_seen_at_a_glance():
    """Entries, not counting plug-ins and YAML: `launch/` and `train/` have 20, all below 12."""
    entries: dict[tuple[str, ...], set[str]] = {}
    for path in WRITTEN:
        parts = path.relative_to(REPOSITORY).parts
        left_out = path.name == "__init__.py" or path.suffix == ".yaml"
        left_out |= ".".join(parts[:-1]) in PLUGINS
        for depth in range(1, len(parts) - left_out):
            entries.setdefault(parts[:depth], set()).add(parts[depth])
    inside = {folder: names for folder, names in entries.items() if folder[0] in PACKAGES}
    crowded = {one: names for one, names in inside.items() if len(names) > 12 + 8 * (len(one) == 1)}
    assert crowded == {}


def test_no_file_hides_a_library():
    """`python launch/submit.py` puts launch/ first on sys.path, where a queue.py would win."""
    installed = sys.stdlib_module_names | packages_distributions().keys()
    run_by_path = [path for path in SOURCES if path.parent.name in ("launch", "train")]
    assert [name(path) for path in run_by_path if path.stem in installed] == []


def test_a_login_node_without_torch_can_check_and_launch():
    """Imports inside functions count, too: only lint-imports sees those."""
    paths = [path.relative_to(REPOSITORY).with_suffix("") for path in SOURCES]
    modules = [".".join(path.parts) for path in paths if "train" not in path.parts[:-1]]
    code = f"import importlib, sys\nfor one in {modules}: importlib.import_module(one)\n"
    code += "heavy = {'torch', 'transformers', 'accelerate', 'datasets', 'numpy'}\n"
    code += "print(*heavy & sys.modules.keys())"
    done = call(sys.executable, "-c", code, cwd=REPOSITORY)
    assert done.stdout == "\n", done.stderr


def test_a_worker_says_what_is_wrong_before_torch_is_there():
    """Nor would what torch warns of be silenced any more, once it is."""
    code = "import sys, train.worker; sys.exit('torch' in sys.modules)"
    assert call(sys.executable, "-c", code, cwd=REPOSITORY).returncode == 0
