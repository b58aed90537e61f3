"""Where a metric's module comes from: a file, the cache, the Hub; and what is said without it."""

import shutil
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import evaluate as library
import pytest
from huggingface_hub import constants

from muster.errors import UsageError
from tests.train.evaluation.metric_worker import MODULES
from train.evaluation.evaluate_metrics import evaluate
from train.evaluation.metric_modules import ModuleFolder

SAMPLES = {"predictions": [1, 0], "references": [1, 1]}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    for name in ("HF_MODULES_CACHE", "HF_METRICS_CACHE", "HF_EVALUATE_CACHE"):
        monkeypatch.setattr(library.config, name, tmp_path / name)
    return tmp_path / "HF_MODULES_CACHE"


@pytest.fixture
def hub(tmp_path_factory, monkeypatch):
    """A server in the Hub's place, with one metric, which imports from beside it; its requests."""
    asked, root = [], tmp_path_factory.mktemp("hub")
    metric = root / "spaces" / "evaluate-metric" / "class_scores" / "resolve"
    shutil.copytree(MODULES, metric / f"v{library.__version__}")

    class Answer(SimpleHTTPRequestHandler):
        def log_message(self, *words):
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Answer, directory=root))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(library.config, "HF_ENDPOINT", address)
    template = address + "/spaces/{path}/resolve/{revision}/{name}"
    monkeypatch.setattr(library.config, "HUB_EVALUATE_URL", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(library.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    yield asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_name_is_loaded_from_the_hub_and_from_the_cache_where_evaluate_keeps_it(hub, cache):
    first = evaluate("class_scores", **SAMPLES, average="micro")
    assert first["f1"] == 0.5 and len(hub) > 0
    assert not cache.exists()
    cached = cache / "evaluate_modules/metrics/evaluate-metric--class_scores" / (64 * "a")
    shutil.copytree(MODULES, cached)
    del hub[:]
    assert evaluate("class_scores", **SAMPLES, average="micro")["f1"] == 0.5
    assert hub == [] and not list(cache.rglob("*.lock"))


def test_a_cache_that_cannot_be_written_is_no_hindrance(hub, cache, monkeypatch):
    for name in ("HF_MODULES_CACHE", "HF_METRICS_CACHE", "HF_EVALUATE_CACHE"):
        monkeypatch.setattr(library.config, name, "/proc/no-home")
    assert evaluate("class_scores", **SAMPLES)["samples"] == 2


def test_a_name_that_is_nowhere_is_refused_at_once(hub, cache, monkeypatch):
    with pytest.raises(UsageError, match=r"metric none_such: there is no file .*none_such.py.*in "):
        evaluate("none_such", **SAMPLES)
    monkeypatch.setattr(library.config, "HF_EVALUATE_OFFLINE", True)
    del hub[:]
    with pytest.raises(UsageError, match=r"offline mode.*give a file such as"):
        evaluate("owner/none_such", **SAMPLES)
    assert hub == []
    monkeypatch.setattr(library.config, "HF_EVALUATE_OFFLINE", False)
    monkeypatch.setattr(library.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", pytest.fail)  # as before another try
    with pytest.raises(UsageError, match=r"127.0.0.1:9 cannot be reached; give a file"):
        evaluate("none_such", **SAMPLES)


def test_a_file_or_a_folder_is_loaded_and_files_in_the_cache_stay_as_they_are(
    tmp_path, cache, monkeypatch
):
    shutil.copytree(MODULES, tmp_path / "class_scores")
    monkeypatch.chdir(tmp_path)
    for name in ("./class_scores", "class_scores", "class_scores/class_scores.py"):
        assert evaluate(name, **SAMPLES)["samples"] == 2
    assert not cache.exists()
    (tmp_path / "broken.py").write_text("import evaluate\nimport no_such_library\n")
    with pytest.raises(UsageError, match=r"metric broken.py: ImportError: .*no_such_library"):
        evaluate("broken.py", **SAMPLES)
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(UsageError, match=r"no class that is an evaluate.Metric"):
        evaluate("empty.py", **SAMPLES)


def test_a_configuration_reaches_the_module(tmp_path):
    (tmp_path / "named.py").write_text(
        "import datasets\nimport evaluate\n"
        "class Named(evaluate.Metric):\n"
        "    def _info(self):\n"
        "        number = datasets.Value('int64')\n"
        "        return evaluate.MetricInfo(description='', citation='', features="
        "datasets.Features({'predictions': number, 'references': number}))\n"
        "    def _compute(self, predictions, references):\n"
        "        return {'name': self.config_name}\n"
    )
    name = str(tmp_path / "named.py")
    assert evaluate(name, config_name="mrpc", **SAMPLES) == {"name": "mrpc"}
    folder = ModuleFolder()
    assert folder.load(name).config_name == "default"
    folder.close()
    assert not folder.path.exists()
