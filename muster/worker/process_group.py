"""Whether this process has ever made a process group of torch, even if it was destroyed again.

The names used here are private to torch; if one is missing, the answer is None. This file is loaded
into every worker by its path, needs only the standard library of Python 3.8 or newer, and does not
load torch.
"""

from __future__ import annotations

import sys

# Other libraries by which ranks may connect.
OTHER_LIBRARIES = ("mpi4py.MPI", "horovod", "ray", "jax", "hivemind", "distributed")
# Modules with which a program starts its own processes, which may make the group in its place. A
# data loader does not use them, but forks (until Python 3.14).
SPAWNS = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
UNSET = (None, "undefined")
MISSING = "missing"


def has_connected() -> bool | None:
    """Return False if this process has connected to no other rank, by any known library.

    None: the answer is not known, as for a program without torch.
    """
    if "torch" not in sys.modules or any(
        name in sys.modules for name in (*OTHER_LIBRARIES, *SPAWNS)
    ):
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
    return method not in UNSET or backend not in UNSET  # they stay set after a group is destroyed
