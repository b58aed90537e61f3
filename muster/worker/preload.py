"""Start the workers of a node from one process that has already imported what they need.

    python preload.py --nproc N --first-rank R --modules torch,numpy -- train.py [argument ...]

The arguments of `worker_main.py` follow `--`. An agent adds `--reports FD`, a pipe for reports;
then this process stays for further attempts (`node_workers.py`).

How it works: this process has torchrun's variables, except the ranks, in its environment. It
imports the given modules and forks a worker for each local rank, which becomes the program through
`worker_main.py`. It then waits for the workers as torchrun would: signals are passed on, and if one
worker fails, the others are ended. A module that must not be imported before a fork is refused.

It needs only the standard library of Python 3.8 or newer, and starts no thread.
"""

from __future__ import annotations

import sys

BEFORE = frozenset(sys.modules) - {"__future__"}  # what Python has imported on its own

import contextlib
import gc
import importlib.machinery
import os
import types
from pathlib import Path

TYPE_CHECKING = False  # without `typing`, which takes long to import
if TYPE_CHECKING:
    from typing import Any

HERE = Path(__file__).resolve().parent


def load(name: str) -> Any:
    """Load a file beside this one by its path: `muster` may be another package's name."""
    package = sys.modules.setdefault("_muster", types.ModuleType("_muster"))
    package.__path__ = [str(HERE)]
    return importlib.import_module(f"_muster.{name}")


def main() -> None:
    """Import, fork, and wait; or become a worker, and end as its program does."""
    process = load("process")
    if process.AGENT_PID in os.environ:  # a pasted line of a dry run may outlive its shell
        process.end_with_agent()
    at = sys.argv.index("--")
    own = sys.argv[1:at]
    words = sys.argv[at + 1 :]
    nproc, first_rank, modules, *reports = own[1::2]
    node_workers = load("node_workers")
    agent = node_workers.AgentPipes(int(reports[0])) if reports else None
    attempt: dict[str, Any] = {
        "attempt": 0,
        "nproc": int(nproc),
        "first_rank": int(first_rank),
        "argv": words,
    }
    set_threads(attempt["nproc"])
    gc.disable()  # collections take a fifth of an import's time, and free little
    import_modules(modules.split(","), words[words[0] == "--fill-in" :])
    gc.freeze()  # otherwise the first collection in each worker would copy all pages
    following: dict[str, Any] | None = attempt
    while following is not None:
        attempt = following
        local_rank, ranks = node_workers.fork(attempt, agent)
        if local_rank is not None:
            become_worker(attempt, local_rank)
            return
        code = node_workers.wait(ranks, attempt, agent)
        following = agent.next_attempt() if agent is not None else None
    sys.stderr.flush()
    os._exit(code)  # without the exit handlers of libraries that it has imported


def set_threads(nproc: int) -> None:
    """Let each of several workers use one thread, as torchrun does."""
    if nproc > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def import_modules(names: list[str], words: list[str]) -> None:
    """Import the given modules; refuse those that cannot be imported in advance."""
    advance = load("advance_import")
    for name in sys.modules.keys() - BEFORE:  # modules and program import them again
        if name.partition(".")[0] != "_muster":
            del sys.modules[name]
    script = Path(words[0])  # its folder is first on the program's path; or it is a zipapp
    folder = Path.cwd() if str(script) == "-m" else script.resolve().parent
    is_application = importlib.machinery.PathFinder.find_spec("__main__", [str(script.absolute())])
    try:
        failed = advance.import_all(names, str(script.absolute() if is_application else folder))
    except advance.Unforkable as refused:
        sys.stderr.write(
            f"error: {refused}, so it cannot be imported before the workers are forked"
            "\ntip: leave it out of --preload, or use --workers torchrun\n"
        )
        os._exit(2)
    for name, why in failed.items():
        print(f"note: --preload {name}: {why}", file=sys.stderr)


def become_worker(attempt: dict[str, Any], local_rank: int) -> None:
    """Make this forked process like one that torchrun started, and run the program in it."""
    for name, value in attempt.get("env", {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    rank = attempt["first_rank"] + local_rank
    os.environ.update(RANK=str(rank), ROLE_RANK=str(rank), LOCAL_RANK=str(local_rank))
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    with contextlib.suppress(OSError):  # the kernel shows the environment from before the fork
        Path("/proc/self/comm").write_text(f"rank {rank}", encoding="utf-8")
    sys.argv[:] = [str(HERE / "worker_main.py"), *attempt["argv"]]
    getattr(sys, "orig_argv", [])[:] = [sys.executable, "-u", *sys.argv]  # Python 3.10 and newer
    load("advance_import").reseed()
    gc.enable()
    worker = sys.modules["__main__"] = load("worker_main")
    worker.RANK = rank  # unknown when it was loaded
    worker.main()


if __name__ == "__main__":
    main()
