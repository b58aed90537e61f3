"""The examples of docs/python.md and its notebook do what they show."""

import ast
import re

import nbformat
import pytest
from nbclient import NotebookClient

from tests.commands import call
from tests.fork_server import interpreter, skip_if_quick
from tests.pages import DOCS, python_of

EXAMPLES = python_of(DOCS / "python.md")
CLUSTER = 'launcher="ssh", hosts="node[0-3]"'


@pytest.fixture
def notebook_folder(tmp_path, monkeypatch):
    skip_if_quick()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def test_the_first_example_prints_what_it_says(notebook_folder):
    example, _ = EXAMPLES
    (notebook_folder / "try.py").write_text(example)
    done = call(interpreter(), "try.py", cwd=notebook_folder)
    assert done.returncode == 0, done.stderr
    (expected,) = re.findall(r"# (\[.*\])", example)
    assert ast.literal_eval(done.stdout) == ast.literal_eval(expected)


@pytest.mark.slow
def test_each_item_of_the_second_example_has_its_loss(notebook_folder):
    """It runs here instead of on a cluster; tests/cluster/test_functions.py uses a cluster."""
    _, example = EXAMPLES
    assert CLUSTER in example
    example = example.replace(CLUSTER, 'launcher="local", workers="manual"')
    lines = ["import muster", "def train(lr):", "    return round(10 * lr, 6)"]
    lines += ['if __name__ == "__main__":']
    lines += [f"    {line}" for line in [*example.splitlines(), "print(losses)"]]
    (notebook_folder / "try.py").write_text("\n".join(lines))
    done = call(interpreter(), "try.py", cwd=notebook_folder)
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout) == [1e-3, 3e-3, 1e-2]


@pytest.mark.slow
def test_the_notebook_runs_from_its_first_cell_to_its_last(notebook_folder):
    notebook = nbformat.read(DOCS / "python.ipynb", as_version=4)
    NotebookClient(
        notebook,
        timeout=300,
        iopub_timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(notebook_folder)}},
    ).execute()
    outputs = [
        "".join(one.get("text", "") or one["data"]["text/plain"] for one in cell["outputs"])
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    assert outputs[2].count("of 4: loss 0.0000") == 4
    assert ast.literal_eval(outputs[3]) == [[1.0] * 4] * 4
    assert outputs[4].startswith("done") and ast.literal_eval(outputs[5]) == [1.0] * 4
    assert outputs[6].startswith("1 ValueError('sample 17 is empty')\nrank 1 on ")
