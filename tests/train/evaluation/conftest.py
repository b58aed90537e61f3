"""`evaluate` keeps its copies of modules in a folder per test, and does not ask the Hub."""

import sys

import evaluate
import pytest

OF_CONFIG = ("HF_MODULES_CACHE", "HF_METRICS_CACHE", "HF_EVALUATE_CACHE")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """The folder, for this process and for processes that the test starts."""
    folder = tmp_path_factory.mktemp("evaluate")
    monkeypatch.setenv("HF_HOME", str(folder))
    monkeypatch.setenv("HF_EVALUATE_OFFLINE", "1")
    monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)
    for name in OF_CONFIG:
        monkeypatch.setattr(evaluate.config, name, folder / name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.startswith("evaluate_modules")]:
        monkeypatch.delitem(sys.modules, name)
    return folder
