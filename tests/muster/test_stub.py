"""mypy and editors know what `muster` has: names, signatures and docstrings."""

import ast
import shutil
import sys
import venv
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from tests.commands import call
from tests.muster.stub_file import STUB, text

SCRIPT = """
import torch
import muster

model = muster.sync(torch.nn.Linear(2, 1))
reveal_type(model)
reveal_type(model.module)
muster.sync_ddp(object())
with muster.init() as run:
    reveal_type(run.rank)
steps = muster.steps(10, batch_size=4)
with muster.checkpoints("saved", model=model, steps=steps) as checkpoints:
    reveal_type(checkpoints.resume())
for step in steps:
    reveal_type(step)
    reveal_type(muster.record(step, loss=0.5))
reveal_type(muster.evaluate("f1", predictions=[1], references=[1]))
reveal_type(muster.launch(max, 2, 3, nodes=2).results())
reveal_type(muster.map(abs, [1]))
reveal_type(muster.job("run"))
reveal_type(muster.__version__)
try:
    muster.stopping()
except muster.RunFailed as error:
    reveal_type(error.rank)
"""
REVEALED = [
    "torch.nn.parallel.DistributedDataParallel | SingleProcess",
    "torch.nn.Module | Any",
    "int",
    "int",
    "StepPlan",
    "float | None",
    "dict[str, Any]",
    "list[Any]",
    "list[Job]",
    "Job",
    "str",
    "int | None",
]
WRONG = """
import muster

muster.sync(3)
muster.steps(10)
muster.init(device=1)
muster.launch(max, nodes=1.5)
muster.nothing
"""
# A small part of torch, since mypy takes half a minute for all of it.
TORCH = {
    "__init__.pyi": "from . import nn as nn\nclass Tensor: ...\nclass device: ...\n",
    "nn/__init__.pyi": """
from typing import Any
class Module:
    def __call__(self, *given: Any) -> Any: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...
class Linear(Module):
    def __init__(self, inputs: int, outputs: int) -> None: ...
""",
    "nn/parallel.pyi": "from . import Module\nclass DistributedDataParallel(Module):\n"
    "    module: Module\n",
    "py.typed": "",
}


@pytest.fixture(scope="module")
def typed_project(tmp_path_factory) -> Path:
    """Make a user's project, with an environment for mypy that has torch but not Muster."""
    folder = tmp_path_factory.mktemp("project")
    venv.create(folder / "env", symlinks=True, with_pip=False)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    for name, content in TORCH.items():
        path = packages / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "wrong.py").write_text(WRONG)
    return folder


def test_stub_matches_the_source():
    """To regenerate it: python -m tests.muster.stub_file"""
    # as syntax trees, since only Ruff, which tests do not need, could format the text
    assert ast.dump(ast.parse(STUB.read_text(encoding="utf-8"))) == ast.dump(ast.parse(text()))


def mypy(typed_project: Path, script: str, path: Path | str) -> list[str]:
    python = typed_project / "env" / "bin" / "python"
    words = ["--strict", f"--python-executable={python}", "--no-error-summary", script]
    done = call(
        sys.executable, "-m", "mypy", *words, cwd=typed_project, env={"MYPYPATH": str(path)}
    )
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.needs("mypy")
def test_mypy_knows_the_types_of_results_from_mypypath(typed_project):
    folder = CHECKOUT / "muster" / "on_path"
    assert (folder / "muster.pyi").samefile(STUB)
    lines = mypy(typed_project, "script.py", folder)
    revealed = [line.partition("Revealed type is ")[2].strip('"') for line in lines]
    assert [line.replace("muster.", "").replace("builtins.", "") for line in revealed] == REVEALED


@pytest.mark.slow
@pytest.mark.needs("mypy")
def test_wrong_arguments_are_found_where_muster_is_installed(typed_project):
    (packages,) = (typed_project / "env" / "lib").glob("python*/site-packages")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "muster", packages / "muster", ignore=ignored)
    try:
        lines = mypy(typed_project, "wrong.py", "")
    finally:
        shutil.rmtree(packages / "muster")
    errors = [line for line in lines if ": error: " in line]
    assert [line.split(":")[1] + line.rpartition("  ")[2] for line in errors] == [
        "4[arg-type]", "5[call-arg]", "6[arg-type]", "7[arg-type]", "8[attr-defined]",
    ]  # fmt: skip
