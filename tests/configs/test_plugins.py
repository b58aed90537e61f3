import sys

import pytest

from configs import plugins
from muster.errors import UsageError


@pytest.mark.parametrize(
    "package", ["train.sync.modes", "train.sync.compression", "train.tasks", "launch.launchers"]
)
def test_names_are_the_files_of_the_folder(package):
    folder = plugins.REPOSITORY.joinpath(*package.split("."))
    assert plugins.names(package)
    for name in plugins.names(package):
        assert (folder / f"{plugins.file_of(package, name)}.py").is_file()


def test_a_new_file_is_a_new_name_and_private_files_are_none(tmp_path, monkeypatch):
    (tmp_path / "kinds").mkdir()
    for name in ("__init__", "_shared", "base", "ring", "tree"):
        (tmp_path / "kinds" / f"{name}.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.setattr(plugins, "REPOSITORY", tmp_path)
    assert plugins.names("kinds") == ["ring", "tree"]


def test_load_gives_the_build_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes" / "square.py").write_text("def build(side):\n    return side * side\n")
    monkeypatch.setattr(plugins, "REPOSITORY", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert plugins.load("shapes", "square")(3) == 9


def test_a_table_has_several_names_and_its_own_is_none(tmp_path, monkeypatch):
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes" / "round.py").write_text("def build(side):\n    return 3 * side\n")
    (tmp_path / "shapes" / "square.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.setattr(plugins, "REPOSITORY", tmp_path)
    monkeypatch.setattr(plugins, "FAMILIES", {"shapes": {"round": ("circle", "disc")}})
    monkeypatch.syspath_prepend(tmp_path)
    for name in [one for one in sys.modules if one.partition(".")[0] == "shapes"]:
        monkeypatch.delitem(sys.modules, name)
    assert plugins.names("shapes") == ["circle", "disc", "square"]
    assert plugins.load("shapes", "disc")(3) == 9
    with pytest.raises(UsageError, match="unknown 'round'"):
        plugins.load("shapes", "round")


def test_load_of_an_unknown_name_lists_the_known():
    with pytest.raises(UsageError, match=r"^train.sync.modes: unknown 'ring'; known: .*ddp.*$"):
        plugins.load("train.sync.modes", "ring")
