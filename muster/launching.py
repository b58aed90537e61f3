"""Start functions on many machines from Python: `muster.launch`, `muster.map`.

How it works: the function and its arguments are pickled into a folder that only the user can read.
`launch/submit.py` runs it in a separate process in the background; `launch/sweep.py` runs several
calls. So functions have all the features of scripts. The caller may be a notebook or a thread, and
may end.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from muster import arguments
from muster.command import LOGIN, logins, split_env_values, variable
from muster.errors import UsageError, refuse, text_of
from muster.job_lookup import job, job_of
from muster.remote_job import MUSTER, Job, run_command
from muster.run_files import SWEEPS, plain_name, project_of
from muster.worker.function_call import ABOUT, CALL, python_version, write_private
from muster.writing import read_json, scratch_folder, write_json

# Not used with `on`, since a cluster has its own defaults.
DEFAULTS = {"nodes": 1, "nproc_per_node": 1, "launcher": "auto"}
# Flags for the command line only: how to wait, and what to run.
COMMAND_LINE_ONLY = ("detach", "dry_run", "wait", "setup", "program", "overwrite")


def launch(
    function: Callable[..., Any],
    *args: Any,
    nodes: int | str | None = None,
    nproc_per_node: int | str | None = None,
    launcher: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **flags: Any,
) -> Job:
    """Call `function(*args, **kwargs)` in every worker of a new run.

    Each call finds torchrun's variables in its environment (RANK, WORLD_SIZE, MASTER_ADDR ...).
    Functions from notebooks and scripts are sent as they are; functions from modules are imported,
    from the snapshot of the project if there is one.

        >>> job = muster.launch(max, 2, 3, launcher="local")
        >>> job.results()  # of each rank
        [3]

    Args:
        function: called with `args` and `kwargs`; all arguments and its result must be picklable.
        args: its positional arguments.
        nodes: number of machines (default: 1); simulated ones with launcher="local".
        nproc_per_node: workers on each of them (default: 1).
        launcher: auto (the default), local, ssh (with hosts=...) or slurm.
        kwargs: its keyword arguments.
        flags: any flags of `muster run`, such as login="me@cluster", on="cluster" of muster.toml,
            hosts="node[0-3]", partition="gpu", time=30 (minutes), snapshot=False, or
            env={"NAME": "value"}, whose values no other user can see.

    Raises:
        UsageError: a flag is wrong, or the run could not start; one line for every problem.
        MusterError: a connection or Slurm failed.
        TypeError: the function or its arguments cannot be pickled.
    """
    kwargs = {} if kwargs is None else kwargs
    problems = [
        *arguments.function("function", function),
        *arguments.kind("kwargs", kwargs, Mapping, "a dict: kwargs={'lr': 0.1}"),
    ]
    refuse(problems, where="muster.launch: ")
    name = _name_of(function)
    run_id = _new_run_id(name)
    words, env = _flags(flags, nodes=nodes, nproc_per_node=nproc_per_node, launcher=launcher)
    with scratch_folder("muster-call-") as scratch:
        folder = scratch / "call"
        write_call(folder, name, function, args, kwargs)
        where = ["--run-id", run_id, "--detach", "--quiet", "--", "--function", str(folder)]
        run_command(MUSTER, "run", *words, *where, env=env)
    return job(run_id)


def map_items(
    function: Callable[..., Any],
    items: Iterable[Any],
    *,
    at_once: int = 1,
    nodes: int | str | None = None,
    nproc_per_node: int | str | None = None,
    launcher: str | None = None,
    **flags: Any,
) -> list[Job]:
    """Call `function(item)` for each item, in a run of its own; at most `at_once` at a time.

    It returns immediately, with a job for each item, in order. On Slurm the jobs form one job
    array; over ssh, jobs that run at the same time use different hosts. The rest is as for
    `launch`.

        >>> jobs = muster.map(abs, [-1, -2], launcher="local")
        >>> [job.rank(0) for job in jobs]
        [1, 2]

    Raises:
        UsageError: a flag is wrong, or the runs could not start; one line for every problem.
        MusterError: a connection or Slurm failed.
        TypeError: the function or an item cannot be pickled.
    """
    problems = [
        *arguments.function("function", function),
        *arguments.whole_number("at_once", at_once, 1),
        *arguments.kind("items", items, Iterable, "a list of items"),
    ]
    refuse(problems, where="muster.map: ")
    name = _name_of(function)
    words, env = _flags(flags, nodes=nodes, nproc_per_node=nproc_per_node, launcher=launcher)
    logs = Path(flags.get("logs_dir") or project_of(Path.cwd()) / "logs").absolute()
    folder = logs / SWEEPS / _new_run_id(name)
    cells = []
    try:
        for number, item in enumerate(items):
            cell_id = f"{folder.name}-{number:03d}"
            call = Path("calls", cell_id)  # relative to the folder of the sweep's file
            write_call(folder / call, name, function, (item,), {})
            cells.append({"id": cell_id, "words": ["--", "--function", str(call)]})
        if not cells:
            return []
        file = folder / "cells.json"
        write_private(file, json.dumps({"cells": cells}).encode())
        what = [f"--cells={file}", f"--name={folder.name}", f"--at-once={at_once}", "--quiet"]
        printed = run_command(MUSTER, "sweep", *words, *what, "--detach", "--json", env=env)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    login = read_json(logins() / folder.name, *LOGIN)
    if login is not None:  # everything was sent to the login node
        shutil.rmtree(folder)
        for cell in cells:
            write_json(logins() / str(cell["id"]), {**login, "name": cell["id"]})
    runs = Path(json.loads(printed.splitlines()[-1])["folder"], "runs")
    return [job_of(str(cell["id"]), str(runs / str(cell["id"]))) for cell in cells]


def write_call(
    folder: Path,
    name: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Write a call into `folder`, for `launch/submit.py ... -- --function FOLDER`.

    Raises:
        TypeError: it cannot be pickled.
    """
    import cloudpickle

    try:
        data = cloudpickle.dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:
        raise TypeError(f"{name} or its arguments cannot be pickled: {text_of(error)}") from error
    write_private(folder / CALL, data)
    about = {"name": name, "python": python_version(), "path": _own_path()}
    write_private(folder / ABOUT, json.dumps(about).encode())


def _own_path() -> list[str]:
    """The folders of this program's own modules; the working directory comes first."""
    installed = {Path(folder) for folder in sysconfig.get_paths().values()}
    entries = [Path(entry) for entry in sys.path if entry and Path(entry).is_dir()]
    own = [entry for entry in entries if not {entry, *entry.parents} & installed]
    return list(dict.fromkeys([".", *(os.path.relpath(entry, Path.cwd()) for entry in own)]))


def _name_of(function: Callable[..., Any]) -> str:
    """The name of a function, of a partial's function or of an object's class, for a run's name."""
    inner = getattr(function, "func", function)
    name = getattr(inner, "__name__", type(inner).__name__)
    return plain_name(name) or "function"


def _new_run_id(name: str) -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{secrets.token_hex(3)}"


def _flags(more: Mapping[str, Any], **given: Any) -> tuple[list[str], dict[str, str]]:
    """The flags for a command line, and the environment to run it in.

    A flag of `given` that is None gets our default, if it has one.

    Raises:
        UsageError: a flag is for a command line only.
    """
    words = []
    chosen = {name: value for name, value in given.items() if value is not None}
    flags = {**(DEFAULTS if more.get("on") is None else {}), **chosen, **more}
    for name, value in flags.items():
        if name in COMMAND_LINE_ONLY:
            raise UsageError(f"{name} works only on the command line, not for a function")
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else "--no-" + flag[2:])
        elif isinstance(value, Mapping) and name not in ("env", "slurm"):
            raise UsageError(
                f"{name} must not be a dict\ntip: pass its value as you would write it for {flag}"
            )
        elif isinstance(value, Mapping):
            words += [f"{flag}={key}={text}" for key, text in value.items()]
        elif name in ("env", "include", "slurm") and not isinstance(value, str):
            words += [f"{flag}={text}" for text in value]
        elif isinstance(value, (list, tuple)):
            words.append(f"{flag}={','.join(map(str, value))}")
        elif value is not None:
            words.append(f"{flag}={value}")
    visible, values = split_env_values(words)  # other users can see command lines
    return visible, {**_environment(), **variable(values)}


def _environment() -> dict[str, str]:
    """This environment, in which workers get this Python: pickles depend on its version."""
    env = dict(os.environ)
    if sys.prefix != sys.base_prefix:
        env["VIRTUAL_ENV"] = sys.prefix
    elif Path(sys.prefix, "conda-meta").is_dir():
        env["CONDA_PREFIX"] = sys.prefix
    else:  # the Python of an environment module or the system: the first on PATH counts
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            env.pop(name, None)
    folder = str(Path(sys.executable).parent)
    if Path(shutil.which("python3") or "").parent != Path(folder):
        env["PATH"] = os.pathsep.join([folder, env.get("PATH", os.defpath)])
    return env
