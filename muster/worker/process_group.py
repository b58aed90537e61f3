"""Whether this process has ever made one of torch's process groups, even if it is destroyed again.

The names are private to torch: where one is missing, nothing is known. This file is loaded into
every worker by its path, needs the standard library alone, of Python 3.8 or newer, and loads no
torch itself.
"""

from __future__ import annotations

import sys

# Libraries by which ranks may meet otherwise.
OTHERS = ("mpi4py.MPI", "horovod", "ray", "jax", "hivemind", "distributed")
# How a program starts processes of its own, which may make the group in its place; a data loader
# forks (until Python 3.14).
SPAWNS = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
UNSET, MISSING = (None, "undefined"), "missing"


def was_made() -> bool | None:
    """False: this process has met no other by torch, nor by what else is known to be for that.

    None: nothing can be said, as of a program without torch.
    """
    if "torch" not in sys.modules or any(name in sys.modules for name in (*OTHERS, *SPAWNS)):
        return None
    rpc = sys.modules.get("torch.distributed.rpc.api")
    if getattr(rpc, "_ALL_WORKER_NAMES", None):
        return None
    module = sys.modules.get("torch.distributed.distributed_c10d")
    if module is None:
        return False
    method = getattr(module, "_default_pg_init_method", MISSING)
    backend = getattr(module, "_backend", MISSING)
    if MISSING in (method, backend):
        return None
    return method not in UNSET or backend not in UNSET  # a group leaves them behind
