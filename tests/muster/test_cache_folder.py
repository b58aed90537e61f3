"""What can be made again is kept below the user's home, or where the user says."""

from pathlib import Path

import pytest

from muster.cache_folder import cache_folder
from muster.errors import UsageError
from muster.worker import imported_modules


def test_it_is_where_the_user_says_or_below_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "muster"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path.home() / ".cache" / "muster"


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.raises(UsageError, match=r"HOME is not set.*XDG_CACHE_HOME"):
        cache_folder()


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_has_no_list_of_imports(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.chdir(tmp_path)
    found = imported_modules.ImportedModules(imported_modules.file_of("train"))
    found.names = ["json"]
    found.write()
    assert imported_modules.ImportedModules(found.path).names == []
    assert list(tmp_path.iterdir()) == []
