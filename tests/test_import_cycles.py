"""No two files of the tree need each other, also not by an import in a function."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT

FOLDERS = ("configs", "launch", "muster", "train")


def import_graph(top: Path) -> dict[str, set[str]]:
    """Of each module below `top` the modules below `top` that its file imports."""
    files = {
        _module(path.relative_to(top)): path
        for folder in FOLDERS
        for path in (top / folder).rglob("*.py")
    }
    return {
        module: {name for name in _imported(module, path, files) if name != module}
        for module, path in files.items()
    }


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(module: str, path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: -node.level + 1 or None] if node.level else []
            start = ".".join([*parts, *([node.module] if node.module else [])])
            inside = [f"{start}.{alias.name}" for alias in node.names]
            names = [name if name in files else start for name in inside]
        yield from (name for name in names if name in files)


def test_no_files_import_each_other():
    try:
        TopologicalSorter(import_graph(CHECKOUT)).prepare()
    except CycleError as error:
        pytest.fail(f"these files import each other: {' <- '.join(error.args[1])}")


def test_an_import_in_a_function_closes_a_cycle(tmp_path):
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
    (tmp_path / "muster" / "first.py").write_text("from muster.second import name\n")
    (tmp_path / "muster" / "second.py").write_text("def name():\n    from . import first\n")
    assert import_graph(tmp_path)["muster.second"] == {"muster.first"}
    with pytest.raises(CycleError):
        TopologicalSorter(import_graph(tmp_path)).prepare()
