"""Start the workers of a node from one process, which has imported what they need before.

python preload.py --nproc N --first-rank R ... -- train.py [argument ...]

How it works: its environment has torchrun's variables but for the ranks. It imports the modules
that the program's last run had imported, and those that `--modules` names; then it forks a worker
for each local rank, which becomes the program by `worker_main.py`; then it waits for them, as
torchrun would: signals are passed on, and one worker that fails ends the others. A module that must
not be imported before a fork is left out, and remembered: this process then starts itself again.
One that was named is refused.

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
LEFT_OUT = "MUSTER_PRELOAD_LEFT_OUT"  # packages, from one start of this process to the next


def load(name: str) -> Any:
    """A file beside this one, by its path: what is named `muster` may be another package's."""
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
    load("worker_main").restore_tmpdir()  # before a library looks: the agent's is for torchrun
    if options.nproc > 1:  # as torchrun has it
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    imports = load("imported_modules").ImportedModules(
        load("imported_modules").file_of(options.program)
    )
    gc.disable()  # a fifth of the time of an import; what it leaves is little, and shared
    refused = import_modules(options, imports)
    if refused:
        sys.stderr.write(f"error: {refused}\n")
        os._exit(2)
    gc.freeze()  # else the first collection in each worker would copy all pages
    local_rank = load("node_workers").start(options.nproc)
    become_worker(options, local_rank, imports)


def parsed(words: list[str]) -> argparse.Namespace:
    """What the command line says; `words` of the result are the program's."""
    parser = argparse.ArgumentParser(prog="preload.py", description="Start a node's workers.")
    parser.add_argument("--nproc", type=int, required=True, help="workers of this node")
    parser.add_argument("--first-rank", type=int, required=True, help="rank of the first of them")
    parser.add_argument("--program", required=True, help="under which its imports are remembered")
    parser.add_argument("--modules", default="", help="names to import, with commas between")
    at = words.index("--")
    options = parser.parse_args(words[:at])
    options.words = words[at + 1 :]
    return options


def import_modules(options: argparse.Namespace, imports: Any) -> str:
    """Import what is known of the program, and what is named; why that is refused, if it is.

    Where something cannot stay in this process, it starts itself again.
    """
    advance = load("advance_import")
    left_out = {*imports.left_out, *filter(None, os.environ.pop(LEFT_OUT, "").split(","))}
    named = [name for name in options.modules.split(",") if name]
    recorded = [name for name in imports.names if name.partition(".")[0] not in left_out]
    script = Path(options.words[0])  # the program's path begins with its folder
    folder = Path.cwd() if str(script) == "-m" else script.resolve().parent
    process = advance.AdvanceImport(str(folder))
    try:
        failed = process.run([*named, *recorded])
    except advance.Unforkable as found:
        by_name = [name for name in named if name.partition(".")[0] == found.package]
        if by_name:
            return (
                f"--preload {by_name[0]}: {found}, so it cannot be imported before the workers are "
                f"forked; leave it out of --preload, or use --workers torchrun"
            )
        print(f"note: {found}: each worker imports it by itself", file=sys.stderr)
        imports.left_out[found.package] = found.what
        imports.write()
        os.environ[LEFT_OUT] = ",".join(sorted({*left_out, found.package}))
        os.execv(sys.executable, [sys.executable, *sys.argv])  # with the same pid, and no children
    for name in filter(failed.get, named):
        print(f"note: --preload {name}: {failed[name]}", file=sys.stderr)
    return ""


def become_worker(options: argparse.Namespace, local_rank: int, imports: Any) -> None:
    """Make this forked process what torchrun would have started, and run the program in it."""
    rank = str(options.first_rank + local_rank)
    os.environ.update(RANK=rank, ROLE_RANK=rank, LOCAL_RANK=str(local_rank))
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    with contextlib.suppress(OSError):  # the kernel shows others the environment before the fork
        Path("/proc/self/comm").write_text(f"rank {rank}", encoding="utf-8")
    worker_main = str(HERE / "worker_main.py")
    sys.argv[:] = [worker_main, *options.words]
    getattr(sys, "orig_argv", [])[:] = [sys.executable, "-u", *sys.argv]  # Python 3.10 and newer
    advance = load("advance_import")
    advance.restore_openblas()
    advance.reseed()
    gc.enable()
    worker = sys.modules["__main__"] = load("worker_main")
    worker.RANK = options.first_rank + local_rank  # which it could not know when it was loaded
    worker.main(imports.begin if local_rank == 0 else None)


if __name__ == "__main__":
    main()
