"""The examples of docs/library.md run unchanged beside a user's `train.py`."""

import re

import pytest

from muster.checkout import CHECKOUT
from tests.commands import call
from tests.fork_server import interpreter
from tests.launch.submit import submit
from tests.train.workers import read_json, records

pytestmark = pytest.mark.slow

PAGE = (CHECKOUT / "docs" / "library.md").read_text()


def files():
    """Return my_metric.py and score.py of the page."""
    return re.findall(r"```python\n(.*?)```", PAGE.partition("\n## Metrics")[2], re.DOTALL)


def test_example_of_the_page_prints_its_score_on_any_ranks(tmp_path, monkeypatch):
    metric, program = files()
    (tmp_path / "my_metric.py").write_text(metric)
    (tmp_path / "score.py").write_text(program)
    (tmp_path / "train.py").write_text("raise SystemExit('the wrong train')\n")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "__init__.py").write_text("raise SystemExit('the wrong configs')\n")
    # muster alone is installed; the rest of the checkout is not on the path
    (tmp_path / "muster").symlink_to(CHECKOUT / "muster")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (printed,) = re.findall(r"prints `(.*?)`", PAGE)
    for ranks in (1, 3):
        torchrun = [interpreter(), "-m", "torch.distributed.run", "--standalone"]
        done = call(*torchrun, f"--nproc-per-node={ranks}", "score.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        # ranks write into one pipe, so a line may begin in the middle of another rank's line
        lines = sorted(re.findall(r"rank \d: f1 [\d.]+ of \d+", done.stdout))
        assert lines == [f"rank {rank}: {printed}" for rank in range(ranks)]


def test_metrics_flag_of_the_page_is_recorded_shown_and_kept_best(tmp_path):
    """509 samples on two ranks."""
    (tmp_path / "my_metric.py").write_text(files()[0])
    (tmp_path / "f1.py").write_text(files()[0].replace("MyMetric", "F1"))  # the Hub's is not here
    (command,) = re.findall(r"muster run --nodes 4 (.*--metrics.*)\n", PAGE)
    flags = command.replace("f1:", f"{tmp_path}/f1.py:").replace("./my", f"{tmp_path}/my")
    more = ["--epochs", "2", "--dropout", "0", "--logs-dir", str(tmp_path), "--run-id", "run"]
    code, out, err = submit("--nodes", "2", *flags.split(), *more)
    assert code == 0, err
    first, other = (
        [
            record["metrics"]
            for record in records(tmp_path / "run", rank)
            if record["kind"] == "eval"
        ]
        for rank in range(2)
    )
    assert first == other and len(first) == 2
    assert first[1]["f1_n"] == 509 and first[1]["my_metric_f1"] > 0.5
    assert f"my_metric_f1 {first[1]['my_metric_f1']:.4f}" in out
    state = next((tmp_path / "run" / "checkpoints").glob("step_*/state.json"))
    assert read_json(state)["best"] == max(metrics["my_metric_f1"] for metrics in first)
