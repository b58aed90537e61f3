"""The house: what lies where, and what may know of what. Import directions are lint-imports'."""

import ast
import re
import sys
from pathlib import Path

import pytest

from configs import plugins
from tests.code_lines import code_lines
from tests.commands import call

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


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_every_module_says_what_becomes_true(path):
    docstring = ast.get_docstring(ast.parse(written_in(path)))
    assert docstring
    assert not docstring.startswith(("This module", "This file", "Module ", "Contains "))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_is_short_enough_to_have_one_reason_to_change(path):
    assert code_lines(written_in(path)) <= 250


def test_few_files_are_so_short_that_they_could_be_part_of_another():
    lines = {name(path): code_lines(written_in(path)) for path in SOURCES}
    short = [one for one, count in lines.items() if 0 < count <= 40]
    assert len(short) <= 40, short


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


def test_there_is_no_drawer_for_the_rest():
    assert [name(path) for path in SOURCES if path.stem in ("utils", "helpers", "misc")] == []


# Words of this house alone, each of which had to be learned; what stands for them is the field's.
PRIVATE = {
    "file": "account aside attempts bed case choice conversation data events examine facts follow"
    " grad_sync guest head login mirror origin registry roads roll session states survivors views"
    " visit ways wire words",
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
LOADABLE = "batches checkpoints distributed evaluation model program records sync".split()


@pytest.mark.parametrize("folder", LOADABLE)
def test_what_any_program_may_load_names_no_package_that_it_may_have_itself(folder):
    for path in sorted((REPOSITORY / "train" / folder).rglob("*.py")):
        absolute = re.findall(r"^ *(?:from|import) (\w+)", written_in(path), re.MULTILINE)
        assert not {"configs", "launch", "tests", "train"} & set(absolute), name(path)


@pytest.mark.parametrize(("most", "is_top"), [(20, True), (12, False)])
def test_a_folder_is_seen_at_a_glance(most, is_top):
    """Entries, not counting plug-ins and YAML: `launch/` and `train/` have 20, all below 12."""
    for package in PACKAGES:
        top = REPOSITORY / package
        below = [path for path in top.rglob("*") if path.is_dir() and path.name != "__pycache__"]
        for folder in [top] if is_top else below:
            is_plug_ins = ".".join(folder.relative_to(REPOSITORY).parts) in PLUGINS
            entries = [
                path.name
                for path in folder.iterdir()
                if path.name not in ("__init__.py", "__pycache__")
                and (path.is_file() or any(path.glob("*.*")))  # not what an old layout left
                and path.suffix != ".yaml"
                and not (is_plug_ins and path.suffix == ".py")
            ]
            assert len(entries) <= most, f"{name(folder)}: {sorted(entries)}"


def test_no_file_hides_a_library():
    """`python launch/submit.py` puts launch/ first on sys.path, where a queue.py would win."""
    libraries = (
        "ClusterShell accelerate datasets evaluate numpy psutil pytest rich"
        " safetensors scipy sklearn submitit tensorboard tokenizers torch tqdm transformers yaml"
    )
    installed = sys.stdlib_module_names | set(libraries.split())
    run_by_path = [path for path in SOURCES if path.parent.name in ("launch", "train")]
    assert [name(path) for path in run_by_path if path.stem in installed] == []


def test_a_login_node_without_torch_can_check_and_launch():
    """Imports inside functions count, too: only lint-imports sees those."""
    modules = [
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        for path in SOURCES
        if path.parent.name != "train" and "train" not in path.relative_to(REPOSITORY).parts
    ]
    code = (
        "import importlib, sys\n"
        f"for module in {modules!r}: importlib.import_module(module)\n"
        "heavy = {'torch', 'transformers', 'accelerate', 'datasets', 'numpy'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    done = call(sys.executable, "-c", code, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr


def test_a_worker_says_what_is_wrong_before_torch_is_there():
    """Nor would what torch warns of be silenced any more, once it is."""
    code = "import sys, train.worker; sys.exit('torch' in sys.modules)"
    assert call(sys.executable, "-c", code, cwd=REPOSITORY).returncode == 0
