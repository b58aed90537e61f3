"""If packages are missing, one line shows how to install them, for every way to install Muster."""

import sys
from pathlib import Path

import pytest

from muster import extras
from muster.terminal import TIP


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Pretend that the checkout is in a new folder, with this Python outside it."""
    monkeypatch.setattr(extras, "CHECKOUT", tmp_path / "check out")
    monkeypatch.setattr(extras, "OWN_FOLDER", tmp_path / "check out" / ".venv" / "bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "bin" / "python"))
    return tmp_path


def command_of(monkeypatch, *, has_pip: bool) -> str:
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda _: object() if has_pip else None)
    return extras.install_command(extras.REPORT, ["pandas", "scipy"], sys.executable)


def test_in_the_checkouts_own_environment_make_installs(folder):
    own = folder / "check out" / ".venv" / "bin" / "python"
    expected = f"make -C '{folder}/check out' install"
    assert extras.install_command(extras.BASE, ["rich"], str(own)) == expected


def test_elsewhere_pip_installs_the_extra_of_the_checkout(folder, monkeypatch):
    expected = f"{sys.executable} -m pip install --use-pep517 -e '{folder}/check out[report]'"
    assert command_of(monkeypatch, has_pip=True) == expected


def test_uv_installs_where_it_has_made_an_environment_without_pip(folder, monkeypatch):
    expected = f"uv pip install --python {sys.executable} -e '{folder}/check out[report]'"
    assert command_of(monkeypatch, has_pip=False) == expected


def test_beside_an_installed_wheel_the_packages_are_installed_by_their_names(folder, monkeypatch):
    inside = Path(extras.__file__).parent / "_checkout"
    monkeypatch.setattr(extras, "CHECKOUT", inside)
    monkeypatch.setattr(extras, "IS_INSTALLED", True)
    expected = f"{sys.executable} -m pip install --use-pep517 pandas scipy"
    assert command_of(monkeypatch, has_pip=True) == expected


def test_pipx_adds_to_its_own_environment(folder, monkeypatch):
    (folder / "env").mkdir()
    (folder / "env" / "pipx_metadata.json").touch()
    assert command_of(monkeypatch, has_pip=True) == "pipx inject muster pandas scipy"


def test_where_an_environment_is_ready_it_is_to_be_activated(folder):
    activate = folder / "check out" / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    do = f"activate Muster's environment: source '{activate}'"
    assert extras.without_base("yaml") == f"{sys.executable} has no yaml{TIP}{do}"
    assert not extras.lacking(extras.REPORT, ["pillow"], sys.executable).endswith(do)
    (activate.parents[1] / "lib" / "python3.12" / "site-packages" / "PIL").mkdir(parents=True)
    assert extras.lacking(extras.REPORT, ["pillow"], sys.executable).endswith(f"no pillow{TIP}{do}")
    assert not extras.lacking(extras.REPORT, ["pillow"], "/opt/env/bin/python").endswith(do)


def test_missing_foreign_module_is_not_explained_as_an_extra():
    assert extras.explained(ModuleNotFoundError(name="nowhere")) is None
    assert extras.explained(ModuleNotFoundError()) is None


def test_a_package_whose_own_module_lacks_is_not_called_missing():
    assert extras.explained(ModuleNotFoundError(name="yaml.missing")) is None


def test_packages_are_named_for_another_python():
    lacks = ["torch", "transformers", "datasets", "evaluate", "seqeval"]
    text = extras.lacking(extras.TRAINER, lacks, "/opt/env/bin/python")
    assert text.startswith(
        "Muster's own trainer needs the extra [trainer], but /opt/env/bin/python has no torch, "
        "transformers, datasets, evaluate and 1 more\ntip: install: /opt/env/bin/python -m pip"
    )
