"""Entry points of other packages: names without an import, and errors that name the package."""

import shutil
import sys

import pytest

from configs import plugins
from launch.nodes import node_facts
from muster import entry_points
from muster.errors import UsageError
from tests import written


@pytest.fixture
def package(tmp_path, monkeypatch):
    def install(name: str, text: str, group: str = "muster.tasks") -> None:
        written.package(tmp_path / name, name, f"[{group}]\n{text}")
        monkeypatch.syspath_prepend(tmp_path / name)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / name))

    return install


def test_entry_point_is_listed_unloaded_and_loaded_when_chosen(package):
    package("first", "tables = json:dumps\nlost = no_such_module:build\nwhole = json\n")
    assert entry_points.names("muster.tasks") == ["lost", "tables", "whole"]
    assert {"tables", "rte"} <= {*plugins.names("train.tasks")}
    assert plugins.load("train.tasks", "tables")(1) == "1"
    with pytest.raises(UsageError, match="'lost' is no_such_module:build from the package first"):
        plugins.load("train.tasks", "lost")
    with pytest.raises(UsageError, match=r"'whole' is json from the package first, .*must be a"):
        plugins.load("train.tasks", "whole")


FAILING = [
    "raise SystemExit(0)",
    "raise ValueError('a\\nb')",
    "build = = 1",
    "import no_such_module",
]


@pytest.mark.parametrize("group", entry_points.GROUPS)
@pytest.mark.parametrize("text", [*FAILING, "build = None", "build = dict()"])
def test_plugin_that_cannot_be_used_is_named_with_its_package(
    package, tmp_path, monkeypatch, group, text
):
    written.write(tmp_path, {"broken.py": text})
    monkeypatch.syspath_prepend(tmp_path)
    package("first", "odd = broken:build\n", group)
    with pytest.raises(UsageError) as caught:
        entry_points.load(group, "odd")
    line = str(caught.value)
    assert line.startswith(f"{group}: 'odd' is broken:build from the package first, which ")
    assert ("cannot be loaded: " if text in FAILING else "must be a") in line and "\n" not in line
    sys.modules.pop("broken", None)


OWN = {
    "launch.launchers": "local",
    "launch.starters": "manual",
    "train.sync.modes": "all_reduce",
    "train.sync.compression": "bf16",
    "train.tasks": "synthetic",
}


@pytest.mark.parametrize(("folder", "name"), OWN.items())
def test_own_plugin_may_be_named_by_entry_point(package, folder, name):
    package("first", f"own = {folder}.{name}:build", plugins.GROUPS[folder])
    assert plugins.load(folder, "own") is plugins.load(folder, name)


def test_a_file_comes_before_an_entry_point_of_its_name(package):
    package("first", "synthetic = no_such_module:build\n")
    assert plugins.names("train.tasks").count("synthetic") == 1
    assert plugins.load("train.tasks", "synthetic").__module__ == "train.tasks.synthetic"


def test_a_damaged_package_hides_no_other(package):
    package("first", "chess = json:dumps\n")
    package("damaged", "no equals sign\n")
    assert entry_points.names("muster.tasks") == ["chess"]
    assert node_facts.plugins(sys.executable) == []


def test_two_packages_with_one_name_are_named(package):
    package("first", "chess = json:dumps\n")
    package("second", "chess = json:loads\n")
    named = r"several packages provide 'chess': json:loads \(second\), json:dumps \(first\)"
    with pytest.raises(UsageError, match=named):
        plugins.load("train.tasks", "chess")


def test_hidden_older_version_of_package_adds_no_entry_points(package, tmp_path, monkeypatch):
    package("first", "chess = json:dumps\n")
    newer = tmp_path / "newer"
    shutil.copytree(tmp_path / "first", newer)
    (newer / "first-1.0.dist-info" / "entry_points.txt").unlink()
    monkeypatch.syspath_prepend(newer)
    assert entry_points.names("muster.tasks") == []
