"""The examples of docs/library.md, as they stand there, beside a user's `train.py`."""

import re

from tests.commands import call
from tests.preload import interpreter
from tests.train.workers import REPOSITORY, finish, free_port, records, start_by_hand

PAGE = (REPOSITORY / "docs" / "library.md").read_text()


def files():
    """my_metric.py and score.py of the page."""
    return re.findall(r"```python\n(.*?)```", PAGE.partition("\n## Metrics")[2], re.DOTALL)


def test_any_program_gets_what_the_page_says(tmp_path, monkeypatch):
    metric, program = files()
    (tmp_path / "my_metric.py").write_text(metric)
    (tmp_path / "score.py").write_text(program)
    (tmp_path / "train.py").write_text("raise SystemExit('the wrong train')\n")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "__init__.py").write_text("raise SystemExit('the wrong configs')\n")
    # muster alone is installed; the rest of the checkout is not on the path
    (tmp_path / "muster").symlink_to(REPOSITORY / "muster")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (printed,) = re.findall(r"prints `(.*?)`", PAGE)
    for ranks in (1, 3):
        torchrun = [interpreter(), "-m", "torch.distributed.run", "--standalone"]
        done = call(*torchrun, f"--nproc-per-node={ranks}", "score.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        # ranks write into one pipe: a line of one may begin in the middle of another's
        lines = sorted(re.findall(r"rank \d: f1 [\d.]+ of \d+", done.stdout))
        assert lines == [f"rank {rank}: {printed}" for rank in range(ranks)]


def test_the_flag_of_the_page_works(tmp_path, monkeypatch):
    (tmp_path / "my_metric.py").write_text(files()[0])
    (tmp_path / "f1.py").write_text(files()[0].replace("MyMetric", "F1"))  # the Hub's is not here
    (command,) = re.findall(r"python launch/submit.py --nodes 4 (.*--metrics.*)\n", PAGE)
    flags = command.replace("f1:", f"{tmp_path}/f1.py:").replace("./my", f"{tmp_path}/my")
    more = ["--epochs", "1", "--max-steps", "32", "--logs-dir", str(tmp_path), "--run-id", "run"]
    port = free_port()
    ended = finish([start_by_hand(rank, 2, port, *flags.split(), *more) for rank in range(2)])
    assert [code for code, _, _ in ended] == [0, 0], ended
    (found,) = [one for one in records(tmp_path / "run", 0) if one["kind"] == "eval"]
    assert found["metrics"]["f1_n"] == 509 and found["metrics"]["my_metric_f1"] > 0.5
