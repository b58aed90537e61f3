"""Each example of docs/library.md runs on two ranks, beside files of one's own with our names."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.commands import call
from tests.launch.submit import REPOSITORY
from tests.preload import interpreter, skip_if_quick

PAGE = (REPOSITORY / "docs" / "library.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ONE_LINE, ACCELERATE, TRAINER, LIGHTNING, WHOLE_LOOP, *_METRICS = EXAMPLES
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


@pytest.fixture
def project(tmp_path) -> Path:
    skip_if_quick()
    for name in ("configs", "launch", "sync"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not this one')\n")
    return tmp_path


def run(project: Path, text: str, ranks: int = 2, *words: str) -> str:
    """The example as the user's own train.py; what it prints."""
    (project / "train.py").write_text(text)
    start = [*TORCHRUN, str(ranks)] if ranks else []
    done = call(interpreter(), *start, "train.py", *words, cwd=project)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("example", "end"),
    [(ONE_LINE, r"\d+\.\d{4}"), (ACCELERATE, r"\d+\.\d{4}"), (TRAINER, "step 3")],
    ids=["one line", "accelerate", "trainer"],
)
def test_an_example_trains_on_two_ranks(project, example, end):
    printed = run(project, example)
    assert sorted(re.findall(rf"rank (\d) of 2: {end}", printed)) == ["0", "1"], printed


def test_lightning_starts_its_second_rank_itself(project):
    printed = run(project, LIGHTNING, ranks=0)
    assert "rank 0 of 2: step 3" in printed and "rank 1 of 2: step 3" in printed


def test_the_loop_has_the_same_losses_on_any_number_of_ranks_and_goes_on(project):
    def losses(ranks: int, text: str = WHOLE_LOOP) -> dict[int, float]:
        found = re.findall(r"step (\d+): (.*)", run(project, text, ranks))
        return {int(step): float(loss) for step, loss in found}

    alone = losses(0)
    assert list(alone) == [6, 12, 18]
    if "WHOLE_MATRIX" in os.environ:
        assert losses(2) == pytest.approx(alone, abs=2e-4)
    begun = WHOLE_LOOP.replace(
        "    with muster.checkpoints(\n", '    with muster.checkpoints("kept",\n'
    )
    until = begun.replace("epochs=3", "epochs=2")
    assert losses(3, until) == pytest.approx({6: alone[6], 12: alone[12]}, abs=2e-4)
    # that of step 10 is left out where that of step 5 is still being written: the disk is slow
    newest = max(int(path.name.removeprefix("step_")) for path in (project / "kept").iterdir())
    assert newest in (5, 10)
    rest = {step: loss for step, loss in alone.items() if step > newest}
    assert losses(2, begun) == pytest.approx(rest, abs=2e-4)
    runs = sorted((project / "logs").iterdir())
    done = call(Path(sys.executable).with_name("muster"), "report", runs[0], cwd=project)
    assert done.returncode == 0 and "loss_1" in done.stdout and "weights" in done.stdout
