"""Make what type checkers and editors read for `muster`: signatures and docstrings of its source.

    python -m tests.muster.stub_file       # writes muster/__init__.pyi

`muster` imports each name when it is first used, and parts of `train/` under names that only Python
resolves, so no checker can follow it. The stub is a single file that imports nothing of Muster, so
`muster/on_path/muster.pyi`, a symbolic link to it, also serves a checker in an environment without
Muster: the checker is given that folder, which has nothing else.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator

import muster
from muster import orderly_stop
from muster.checkout import CHECKOUT

STUB = CHECKOUT / "muster" / "__init__.pyi"
IMPORTS = """
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, runtime_checkable
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
"""
# The classes in signatures, with the attributes of their objects that programs may use; and, in
# INTERNAL, the public names that only other parts of the library use.
CLASSES = {
    "muster/errors.py": {
        "MusterError": {},
        "UsageError": {},
        "RunFailed": {
            "message": "str", "rank": "int | None", "host": "str | None", "traceback": "str",
        },
    },
    "muster/status.py": {"Status": {}},
    "muster/remote_job.py": {"Job": {"run_dir": "Path"}},
    "train/distributed/world.py": {"World": {}},
    "train/program/rank_of_run.py": {"RankOfRun": {}},
    "train/batches/plan.py": {"MicroBatch": {}, "StepPlan": {}},
    "train/batches/steps.py": {"Steps": {"epochs": "int"}, "Batches": {}},
    "train/checkpoints/object_states.py": {"Stateful": {}, "Collected": {}},
    "train/program/saved_objects.py": {"Checkpoints": {"folder": "Path", "step": "int"}},
    "train/sync/ddp/data_parallel.py": {
        "SingleProcess": {"module": "Any", "require_backward_grad_sync": "bool"},
    },
}  # fmt: skip
INTERNAL = {
    "World": {"find", "from_env", "agent_store", "store_secret", "is_led"},
    "Steps": {
        "left", "segment", "coming", "left_in_epoch", "end_epoch", "require_handed_out", "last",
        "is_auto", "is_over", "is_epoch_complete",
    },
    "Checkpoints": {"requests", "resume_from", "make"},
}  # fmt: skip
MADE_BY_US = {
    "Steps",
    "Batches",
    "Checkpoints",
    "SingleProcess",
}  # only the library calls their __init__
SHOWN = {"__init__", "__len__", "__iter__", "__enter__", "__exit__", "__str__"}


def text() -> str:
    """Return the text of the stub before formatting."""
    names = sorted([*muster.__all__, "__version__"], key=lambda name: (not name[0].isupper(), name))
    body = [f"__all__ = {names!r}", "__version__: str"]
    for path, classes in CLASSES.items():
        body += [_class_text(path, name, attributes) for name, attributes in classes.items()]
    body += [_function_text(name) for name in muster.__all__ if name not in _class_names()]
    code = "\n".join(body)
    return "\n".join([f'"""{muster.__doc__}"""', *_imports(code), "", code, ""])


def _class_names() -> set[str]:
    return {name for classes in CLASSES.values() for name in classes}


def _imports(code: str) -> Iterator[str]:
    """Yield the imports of the names that are used; torch's are set apart."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    for node in ast.parse(IMPORTS).body:
        assert isinstance(node, (ast.Import, ast.ImportFrom))
        node.names = [alias for alias in node.names if alias.name in used]
        line = ast.unparse(node)
        if node.names:
            yield f"\n{line}" if line == "import torch" else line


def _source(path: str) -> dict[str, ast.stmt]:
    """Return the classes and functions of a file, by name."""
    tree = ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name: node for node in tree.body if isinstance(node, kinds)}


def _function_text(name: str) -> str:
    place = muster._MODULES.get(name, orderly_stop.__name__)
    path = place.replace(".", "/") + ".py"
    node = _source(path)[muster._OTHER_NAMES.get(name, name)]
    assert isinstance(node, ast.FunctionDef)
    node.name = name
    return ast.unparse(_without_body(node))


def _class_text(path: str, name: str, attributes: dict[str, str]) -> str:
    node = _source(path)[name]
    assert isinstance(node, ast.ClassDef)
    members: list[ast.stmt] = []
    stored = {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
    }
    assert attributes.keys() <= stored, f"{path}: {name} has no {attributes.keys() - stored}"
    for part in node.body:
        match part:
            case ast.Expr(value=ast.Constant()):
                members.append(part)
                members += [ast.parse(f"{own}: {kind}").body[0] for own, kind in attributes.items()]
            case ast.FunctionDef() if _is_shown(name, part.name):
                members.append(_without_body(part))
            case ast.AnnAssign(target=ast.Name(id=own)) if _is_shown(name, own):
                part.value = ast.Constant(...) if part.value is not None else None
                members.append(part)
            case ast.Assign(targets=[ast.Name(id=own)]) if _is_shown(name, own):
                kind = type(ast.literal_eval(part.value)).__name__
                members.append(ast.parse(f"{own}: {kind}").body[0])
    node.body = members
    return ast.unparse(node)


def _is_shown(of: str, name: str) -> bool:
    if name.startswith("_"):
        return name in SHOWN and not (name == "__init__" and of in MADE_BY_US)
    return name not in INTERNAL.get(of, ())


def _without_body(node: ast.FunctionDef) -> ast.FunctionDef:
    """Return the signature and the docstring; a return type in quotes loses them."""
    node.body = [node.body[0] if ast.get_docstring(node) else ast.Expr(ast.Constant(...))]
    if isinstance(node.returns, ast.Constant) and isinstance(node.returns.value, str):
        node.returns = ast.parse(node.returns.value, mode="eval").body
    return node


def formatted() -> str:
    """Return the text of the stub as ruff formats it."""
    command = [sys.executable, "-m", "ruff", "format", f"--stdin-filename={STUB}", "-"]
    done = subprocess.run(
        command, input=text(), capture_output=True, text=True, check=True, cwd=CHECKOUT
    )
    return done.stdout


if __name__ == "__main__":
    STUB.write_text(formatted(), encoding="utf-8")
