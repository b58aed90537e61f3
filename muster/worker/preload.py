"""Start the workers of a node from one process that has already imported what they need.

python preload.py --nproc N --first-rank R --modules torch,transformers -- train.py [argument ...]

How it works: its environment has torchrun's variables except the ranks. It imports the given
modules. Then it forks a worker for each local rank, which becomes the program through
`worker_main.py`. Then it waits for them as torchrun would: signals are passed on, and if one worker
fails the others are ended. A module that must not be imported before a fork is refused.

It needs the standard library alone, of Python 3.8 or newer. No thread is started here.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def load(name: str) -> Any:
    """Load a file beside this one by its path: `muster` may be another package's name."""
    name_here = f"_muster_{name}"
    if name_here not in sys.modules:
        spec = importlib.util.spec_from_file_location(name_here, str(HERE / f"{name}.py"))
        assert spec is not None and spec.loader is not None
        module = sys.modules[name_here] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name_here]


def main() -> None:
    """Import, fork, and wait; or become a worker, and end as its program does."""
    options = parsed(sys.argv[1:])
    load("worker_main").restore_tmpdir()  # before a library reads it: the agent's is for torchrun
    if options.nproc > 1:  # as torchrun sets it
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    gc.disable()  # a fifth of an import's time; what it leaves is little, and shared
    import_modules(options)
    gc.freeze()  # otherwise the first collection in each worker would copy all pages
    local_rank = load("node_workers").start(options.nproc)
    become_worker(options, local_rank)


def parsed(words: list[str]) -> argparse.Namespace:
    """The parsed command line; `words` of the result are the program's."""
    parser = argparse.ArgumentParser(prog="preload.py", description="Start a node's workers.")
    parser.add_argument("--nproc", type=int, required=True, help="workers of this node")
    parser.add_argument("--first-rank", type=int, required=True, help="rank of the first of them")
    parser.add_argument("--modules", required=True, help="names to import, with commas between")
    at = words.index("--")
    options = parser.parse_args(words[:at])
    options.words = words[at + 1 :]
    return options


def import_modules(options: argparse.Namespace) -> None:
    """Import the given modules; refuse those that cannot be imported in advance."""
    advance = load("advance_import")
    script = Path(options.words[0])  # the program's path begins with its folder
    folder = Path.cwd() if str(script) == "-m" else script.resolve().parent
    try:
        failed = advance.import_all(options.modules.split(","), str(folder))
    except advance.Unforkable as found:
        sys.stderr.write(
            f"error: {found}, so it cannot be imported before the workers are forked; leave it out "
            "of --preload, or use --workers torchrun\n"
        )
        os._exit(2)
    for name, error in failed.items():
        print(f"note: --preload {name}: {error}", file=sys.stderr)


def become_worker(options: argparse.Namespace, local_rank: int) -> None:
    """Make this forked process equal to one that torchrun started, and run the program in it."""
    rank = str(options.first_rank + local_rank)
    os.environ.update(RANK=rank, ROLE_RANK=rank, LOCAL_RANK=str(local_rank))
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    with contextlib.suppress(OSError):  # the kernel shows the environment of before the fork
        Path("/proc/self/comm").write_text(f"rank {rank}", encoding="utf-8")
    sys.argv[:] = [str(HERE / "worker_main.py"), *options.words]
    getattr(sys, "orig_argv", [])[:] = [sys.executable, "-u", *sys.argv]  # Python 3.10 and newer
    load("advance_import").reseed()
    gc.enable()
    worker = sys.modules["__main__"] = load("worker_main")
    worker.RANK = options.first_rank + local_rank  # unknown when it was loaded
    worker.main()


if __name__ == "__main__":
    main()
