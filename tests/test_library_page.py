"""Each example of docs/library.md runs on two ranks, next to user's modules with our names."""

import ast
import inspect
import re
import shutil
import sys
from pathlib import Path

import pytest

import muster
from tests.commands import call
from tests.fork_server import interpreter, skip_if_quick
from tests.pages import ACCELERATE, DOCS, LIGHTNING, ONE_LINE, TRAINER, WHOLE_LOOP, text_of

PAGE = text_of(DOCS / "library.md")
LOADER = re.search(r"After resuming, create `(loader = iter\(.*\))`", PAGE)[1]
READ = re.search(r"`(for micro, batch in zip\(.*:)`", PAGE)[1]
SIGNATURES = re.search(r"## The other signatures\n\n```text\n(.*?)```", PAGE, re.DOTALL)[1]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def test_the_page_has_the_signatures_of_the_code():
    shown = {}
    for name, arguments in re.findall(r"^(\w+)\((.*?)\)$", SIGNATURES, re.DOTALL | re.MULTILINE):
        shown[name] = ast.unparse(ast.parse(f"def {name}({arguments}): ...").body[0].args)
    of_code = {}
    for name in shown:
        signature = inspect.signature(getattr(muster, name))
        plain = [
            parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in signature.parameters.values()
        ]
        text = str(inspect.Signature(plain))[1:-1]
        of_code[name] = ast.unparse(ast.parse(f"def {name}({text}): ...").body[0].args)
    assert shown == of_code
    functions = {name for name in muster.__all__ if name[0].islower()}
    assert shown.keys() == functions - {"sync"}  # which the page begins with


@pytest.fixture
def clashing_project(tmp_path) -> Path:
    skip_if_quick()
    for name in ("configs", "launch", "sync"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not this one')\n")
    return tmp_path


def output_of(clashing_project: Path, text: str, ranks: int = 2, *words: str) -> str:
    """Run the example as the user's own train.py; return what it prints."""
    (clashing_project / "train.py").write_text(text)
    start = [*TORCHRUN, str(ranks)] if ranks else []
    done = call(interpreter(), *start, "train.py", *words, cwd=clashing_project)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("example", "end"),
    [(ONE_LINE, r"\d+\.\d{4}"), (ACCELERATE, r"\d+\.\d{4}"), (TRAINER, "step 3")],
    ids=["one line", "accelerate", "trainer"],
)
def test_an_example_trains_on_two_ranks(clashing_project, example, end):
    printed = output_of(clashing_project, example)
    assert sorted(re.findall(rf"rank (\d) of 2: {end}", printed)) == ["0", "1"], printed


@pytest.mark.slow
def test_lightning_starts_its_second_rank_itself(clashing_project):
    printed = output_of(clashing_project, LIGHTNING, ranks=0)
    assert "rank 0 of 2: step 3" in printed and "rank 1 of 2: step 3" in printed


def losses(clashing_project: Path, ranks: int, text: str = WHOLE_LOOP) -> dict[int, float]:
    """Return the loss of each step that the loop prints; 0 ranks: run it without torchrun."""
    found = re.findall(r"step (\d+): (.*)", output_of(clashing_project, text, ranks))
    return {int(step): float(loss) for step, loss in found}


@pytest.mark.slow
def test_loop_has_the_same_losses_on_two_ranks(clashing_project):
    assert losses(clashing_project, 2) == pytest.approx(losses(clashing_project, 0), abs=2e-4)


@pytest.mark.slow
def test_documented_loop_has_equal_losses_on_any_ranks_and_resumes(clashing_project):
    alone = losses(clashing_project, 0)
    assert list(alone) == [6, 12, 18]
    begun = WHOLE_LOOP.replace(
        "    with muster.checkpoints(\n", '    with muster.checkpoints("kept",\n'
    )
    until = begun.replace("epochs=3", "epochs=2")
    assert losses(clashing_project, 3, until) == pytest.approx(
        {6: alone[6], 12: alone[12]}, abs=2e-4
    )
    # on a slow disk, step 10's checkpoint is skipped while step 5's is still being written
    newest = max(
        int(path.name.removeprefix("step_")) for path in (clashing_project / "kept").iterdir()
    )
    assert newest in (5, 10)
    rest = {step: loss for step, loss in alone.items() if step > newest}
    assert losses(clashing_project, 2, begun) == pytest.approx(rest, abs=2e-4)
    runs = sorted((clashing_project / "logs").iterdir())
    done = call(Path(sys.executable).with_name("muster"), "report", runs[0], cwd=clashing_project)
    assert done.returncode == 0 and "| weights | last batch loss |" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("example", [ONE_LINE, WHOLE_LOOP], ids=["one line", "whole loop"])
def test_dropout_differs_between_ranks(clashing_project, example):
    # one string per print: without buffering, the words of two ranks may mix
    printed = output_of(
        clashing_project, f"{example}print(f'seed {{torch.initial_seed()}}', flush=True)\n"
    )
    assert sorted(re.findall(r"seed (\d+)", printed)) == ["0", "1"]


def with_loader(text: str) -> str:
    """Add dropout and the page's DataLoader to the loop, and print all digits of each loss."""
    changes = {
        "import muster\n": "import muster\nfrom torch.utils.data import *\n",
        "nn.Tanh()": "nn.Tanh(), nn.Dropout(0.5)",
        "with muster.checkpoints(\n": 'with muster.checkpoints("kept",\n',
        "        for step in steps:\n": (
            "        data = TensorDataset(inputs, targets)\n"
            f"        {LOADER.replace('num_workers=4', 'num_workers=1')}\n"
            "        for step in steps:\n"
        ),
        "for micro in step.micro_batches:": READ,
        "inputs[rows]": "batch[0]",
        "targets[rows]": "batch[1]",
        "if run.is_main and step.step % 6 == 0:": "if run.is_main:",
        "{mean:.4f}": "{mean!r}",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.slow
def test_documented_loop_with_dropout_and_loader_resumes_bit_for_bit(clashing_project):
    def losses(epochs: int) -> dict[str, str]:
        text = with_loader(WHOLE_LOOP).replace("epochs=3", f"epochs={epochs}")
        return dict(re.findall(r"step (\d+): (.*)", output_of(clashing_project, text)))

    whole = losses(3)
    assert len(whole) == 18
    shutil.rmtree(clashing_project / "kept")
    begun = losses(2)
    rest = losses(3)
    assert len(rest) in (8, 13)  # from step 10, or from 5 if the disk is slow
    assert begun | rest == whole
