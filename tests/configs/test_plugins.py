"""Each file in a plug-in folder is a value of the folder's flag."""

import pytest

from configs import plugins
from muster.errors import UsageError


def test_new_file_of_a_plugin_folder_is_a_new_name(tmp_path, monkeypatch):
    """Private files and a table's own name are not names; only the loaded file is imported."""
    (tmp_path / "shapes").mkdir()
    for name in ("_shared", "base", "square"):
        (tmp_path / "shapes" / f"{name}.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "shapes" / "cube.py").write_text("def build(side):\n    return side**3\n")
    (tmp_path / "shapes" / "round.py").write_text("def build(side):\n    return 3 * side\n")
    monkeypatch.setattr(plugins, "CHECKOUT", tmp_path)
    monkeypatch.setattr(plugins, "FAMILIES", {"shapes": {"round": ("circle", "disc")}})
    monkeypatch.syspath_prepend(tmp_path)
    assert plugins.names("shapes") == ["circle", "cube", "disc", "square"]
    assert plugins.load("shapes", "cube")(3) == 27 and plugins.load("shapes", "disc")(3) == 9
    with pytest.raises(UsageError, match=r"^shapes: unknown 'round'"):
        plugins.load("shapes", "round")
