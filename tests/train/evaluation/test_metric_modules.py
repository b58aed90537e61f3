"""The source of a metric's module: a file, the cache or the Hub; and the error without a module."""

import shutil
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import evaluate as library
import pytest

from muster.errors import UsageError
from tests.train.evaluation.metric_worker import MODULES
from train.evaluation.evaluate_metrics import evaluate

SAMPLES = {"predictions": [1, 0], "references": [1, 1]}


NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def hub(tmp_path_factory, monkeypatch):
    """Run a server in place of the Hub, with one metric, which imports from its own folder."""
    root = tmp_path_factory.mktemp("hub")
    metric = root / "spaces" / "evaluate-metric" / "class_scores" / "resolve"
    shutil.copytree(MODULES, metric / f"v{library.__version__}")

    handler = partial(SimpleHTTPRequestHandler, directory=root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(library.config, "HF_ENDPOINT", address)
    template = address + "/spaces/{path}/resolve/{revision}/{name}"
    monkeypatch.setattr(library.config, "HUB_EVALUATE_URL", template)
    monkeypatch.setattr(library.config, "HF_EVALUATE_OFFLINE", False)
    monkeypatch.setattr(library.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    with server:
        yield
        server.shutdown()


@pytest.mark.usefixtures("hub")
def test_metric_name_is_loaded_from_hub_and_from_cache(monkeypatch):
    assert evaluate("class_scores", **SAMPLES, average="micro")["f1"] == 0.5
    monkeypatch.setattr(library.config, "HF_ENDPOINT", NOWHERE)
    assert evaluate("class_scores", **SAMPLES, average="micro")["f1"] == 0.5


@pytest.mark.usefixtures("hub")
def test_unknown_metric_name_is_refused_at_once(monkeypatch):
    unknown = r"metric none_such: .*there is no file .*none_such.py, .*give a file such as"
    with pytest.raises(UsageError, match=unknown):
        evaluate("none_such", **SAMPLES)
    monkeypatch.setattr(library.config, "HF_ENDPOINT", NOWHERE)
    monkeypatch.setattr(time, "sleep", pytest.fail)  # called before a retry
    with pytest.raises(UsageError, match=unknown):
        evaluate("none_such", **SAMPLES)
    with pytest.raises(UsageError, match=r"metric owner/none_such: .*there is no file"):
        evaluate("owner/none_such", **SAMPLES)


def test_metric_file_or_folder_is_loaded(tmp_path, monkeypatch):
    shutil.copytree(MODULES, tmp_path / "class_scores")
    monkeypatch.chdir(tmp_path)
    for name in ("./class_scores", "class_scores", "class_scores/class_scores.py"):
        assert evaluate(name, **SAMPLES)["samples"] == 2
    (tmp_path / "broken.py").write_text("import evaluate\nimport no_such_library\n")
    with pytest.raises(UsageError, match=r"metric broken.py: ImportError: .*no_such_library"):
        evaluate("broken.py", **SAMPLES)
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(UsageError, match=r"evaluate\.Metric"):
        evaluate("empty.py", **SAMPLES)


def test_configuration_name_reaches_the_metric():
    samples = {"predictions": ["a"], "references": [["a"]], "sources": ["b"]}
    for given, name in (("mrpc", "mrpc"), (None, "default")):
        assert evaluate(str(MODULES / "texts.py"), config_name=given, **samples)["name"] == name
