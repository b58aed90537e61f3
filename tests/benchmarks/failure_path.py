"""List the functions that run from a rank's `kill -9` to the printed cause, with lines of code.

    python -m tests.benchmarks.failure_path [--times 3] [--workers torchrun] [--totals]

Two nodes run on this machine, with one rank each. Both ranks call all_reduce through gloo until
rank 1 is killed. From then on, every process of the run (leader, agents, starters, workers) writes
down which of our functions it calls; the run ends when the leader has printed the cause. The list
has the functions of all runs together, because a single run may miss a periodic one.

A line of code is a line that is not blank, a comment or a docstring. A called function counts with
its decorators and everything that is defined inside it. The last lines have the totals for these
functions and for the files that contain them, which one has to open to follow a failure.
"""

import argparse
import ast
import io
import os
import signal
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

import psutil

from muster.checkout import CHECKOUT
from tests.benchmarks.walked import traced
from tests.benchmarks.walked.sitecustomize import ANEW
from tests.commands import begin, ended, finish
from tests.launch.submit import wait_until

PROGRAM = """import os, pathlib, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
pathlib.Path(f"began.{os.environ['RANK']}").write_text(str(os.getpid()))
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.01)
"""
CAUSE = "rank 1 on node1 was killed by SIGKILL"
NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=3, help="runs, whose functions are joined")
    parser.add_argument("--workers", default="torchrun", help="what starts the workers")
    parser.add_argument("--totals", action="store_true", help="print the totals alone")
    args = parser.parse_args()
    called: set[str] = set()
    for _ in range(args.times):
        with tempfile.TemporaryDirectory() as name:
            called |= called_after_kill(Path(name), args.workers)
    print("\n".join(table(called, only_totals=args.totals)))
    return 0


def called_after_kill(folder: Path, workers: str) -> set[str]:
    """Return each called function as FILE:LINE, where its definition begins."""
    (folder / "t.py").write_text(PROGRAM)
    env = {**traced(folder), "XDG_STATE_HOME": str(folder / "state")}
    notes = folder / "notes"
    command = [sys.executable, str(CHECKOUT / "muster" / "command.py"), "run"]
    flags = ["--launcher", "local", "--nodes", "2", "--workers", workers, "--", "t.py"]
    began = [folder / f"began.{rank}" for rank in (0, 1)]
    with ended(begin(*command, *flags, cwd=folder, env=env)) as leader:
        wait_until(lambda: all(file.exists() and file.read_text() for file in began))
        processes = [leader.pid, *(each.pid for each in psutil.Process(leader.pid).children(True))]
        traced_pids = [pid for pid in processes if (notes / str(pid)).exists()]
        for pid in traced_pids:
            os.kill(pid, ANEW)
        wait_until(lambda: all((notes / f"{pid}.before").exists() for pid in traced_pids))
        os.kill(int(began[1].read_text()), signal.SIGKILL)
        code, out, err = finish(leader)
    assert code != 0 and CAUSE in out + err, out + err
    after = (file for file in notes.iterdir() if file.suffix != ".before")
    return {line for file in after for line in file.read_text().splitlines()}


def table(called: set[str], *, only_totals: bool) -> list[str]:
    """Return a line for each function, sorted by file, and then the totals."""
    lines = []
    total = 0
    total_of_files = 0
    files = sorted({function.rpartition(":")[0] for function in called})
    for file in files:
        code = lines_of_code(CHECKOUT / file)
        starts = {int(each.rpartition(":")[2]) for each in called if each.startswith(f"{file}:")}
        counted = set[int]()  # a function inside another one counts once
        for name, span in sorted(functions(CHECKOUT / file), key=lambda each: each[1].start):
            if span.start in starts:
                lines.append(f"{len(code & set(span)):5}  {file}:{span.start} {name}")
                counted |= code & set(span)
        total += len(counted)
        total_of_files += len(code)
    return [
        *([] if only_totals else lines),
        f"{len(called)} functions with {total:,} lines of code",
        f"{len(files)} files with {total_of_files:,} lines of code",
    ]


def functions(file: Path) -> Iterator[tuple[str, range]]:
    """Yield the name of each function in a file, and its lines including decorators."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, DEFINITIONS):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield node.name, range(first, (node.end_lineno or node.lineno) + 1)


def lines_of_code(file: Path) -> set[int]:
    """Return the numbers of the lines that are not blank, a comment or a docstring."""
    source = file.read_text()
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Module, ast.ClassDef, *DEFINITIONS)) and ast.get_docstring(node)
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = (token for token in tokens if token.type not in NO_CODE)
    return {n for each in code for n in range(each.start[0], each.end[0] + 1)} - docstrings


if __name__ == "__main__":
    sys.exit(main())
