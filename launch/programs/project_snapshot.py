"""A copy of the user's project as it is when a run is submitted: later edits change nothing.

It has what git tracks or would track: changed and new files included, ignored ones not. What git
ignores (data, outputs) is linked to the original, so that the program finds it in its place.
Unchanged files are hard links to the project's previous snapshot, never to the user's own file,
which an editor may write in place.
"""

import fnmatch
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster import run_files
from muster.errors import UsageError
from muster.writing import write_json, write_text, writing

# Of a project that git does not know: more than this is data, which belongs elsewhere.
MOST_BYTES = 200_000_000
MOST_NAMED = 10
# Folders of a project without git that are no part of it.
LEFT_OUT = frozenset((".git", "__pycache__", ".venv", "venv", "node_modules", ".pytest_cache"))


@dataclass(frozen=True)
class Snapshot:
    """What was copied, and of what."""

    root: Path
    files: int
    total_bytes: int
    shared_bytes: int  # in files that are the previous snapshot's, too

    def __str__(self) -> str:
        shared = f", {_size(self.shared_bytes)} of them shared" if self.shared_bytes else ""
        return f"snapshot: {self.files} files, {_size(self.total_bytes)}{shared}"


def take(project: Path, run_dir: Path, patterns: Sequence[str] = ()) -> Snapshot:
    """Copy `project` into the run folder, and write down of which commit, with which changes.

    Raises:
        UsageError: the project is not one of git's, and too large to be copied.
        CannotWrite: the disk is full.
    """
    root, logs = run_files.SNAPSHOT.path(run_dir), _logs_of(run_dir)
    names = list(_tracked(project) or _found(project, logs))
    names += _matching(project, patterns, names)
    before = _previous(project, run_dir)
    files, shared = {}, 0
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        for name in names:
            source, target = project / name, root / name
            if logs in (source, *source.parents):
                continue  # the project's own runs
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_symlink():
                target.symlink_to(source.readlink())
                continue
            status = source.stat()
            state = [status.st_size, status.st_mtime_ns, status.st_mode]
            files[name] = state
            if before is not None and before[1].get(name) == state:
                os.link(before[0] / name, target)
                shared += status.st_size
            else:
                shutil.copy2(source, target)
        _link_the_rest(project, root, logs)
    total = sum(state[0] for state in files.values())
    record = {"project": str(project), "commit": _git(project, "rev-parse", "HEAD"), "files": files}
    write_json(run_files.SNAPSHOT_RECORD.path(run_dir), record)
    write_text(run_files.SNAPSHOT_DIFF.path(run_dir), _git(project, "diff", "HEAD", "--binary"))
    return Snapshot(root, len(files), total, shared)


def new_files(run_dir: Path) -> list[str]:
    """A line that names the files which the program has made inside the snapshot, if any."""
    found = made_there(run_dir)
    if not found:
        return []
    more = f", and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    names = ", ".join(found[:MOST_NAMED])
    return [f"made in {run_files.SNAPSHOT.path(run_dir)}: {names}{more}"]


def made_there(run_dir: Path) -> list[str]:
    """The files that the program has made inside the snapshot, by name."""
    record = _read(run_files.SNAPSHOT_RECORD.path(run_dir))
    if record is None:
        return []
    found = []
    for folder, folders, files in os.walk(run_files.SNAPSHOT.path(run_dir)):
        folders[:] = [one for one in folders if one not in LEFT_OUT]
        paths = (Path(folder, name) for name in files)
        found += [str(path.relative_to(run_files.SNAPSHOT.path(run_dir))) for path in paths
                  if not path.is_symlink()]  # fmt: skip
    return sorted(set(found) - set(record["files"]))


def _logs_of(run_dir: Path) -> Path:
    """The folder of all runs; those of a sweep have folders of their own in it."""
    sweep = run_dir.parent.parent
    is_of_sweep = sweep.parent.name == run_files.SWEEPS and (sweep / run_files.SWEEP).exists()
    return sweep.parent.parent if is_of_sweep else run_dir.parent


def _tracked(project: Path) -> list[str]:
    """What git tracks or would track, and is there; nothing where git does not know the folder."""
    text = _git(project, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = dict.fromkeys(filter(None, text.split("\0")))
    return [name for name in names if os.path.lexists(project / name)
            and ((project / name).is_symlink() or (project / name).is_file())]  # fmt: skip


def _found(project: Path, logs: Path) -> Iterator[str]:
    """All files of a folder that git does not know."""
    total = 0
    for folder, folders, files in os.walk(project):
        folders[:] = [one for one in folders if one not in LEFT_OUT and Path(folder, one) != logs]
        for name in files:
            path = Path(folder, name)
            total += path.lstat().st_size
            if total > MOST_BYTES:
                raise UsageError(
                    f"{project} has more than {_size(MOST_BYTES)}, and git does not know which of "
                    "it is the program: run `git init` there and ignore the data, or give "
                    "--no-snapshot"
                )
            yield str(path.relative_to(project))


def _matching(project: Path, patterns: Sequence[str], known: Sequence[str]) -> list[str]:
    """Ignored files that were asked for."""
    if not patterns:
        return []
    text = _git(project, "ls-files", "-z", "--others", "--ignored", "--exclude-standard")
    names = [name for name in text.split("\0") if name and (project / name).is_file()]
    return [
        name
        for name in names
        if name not in known and any(fnmatch.fnmatch(name, one) for one in patterns)
    ]


def _link_the_rest(project: Path, root: Path, logs: Path) -> None:
    """Links to what git ignores: a folder as a whole, where nothing of it was copied."""
    arguments = ("--others", "--ignored", "--exclude-standard", "--directory")
    for name in _git(project, "ls-files", "-z", *arguments).split("\0"):
        path = project / name.rstrip("/")
        target = root / name.rstrip("/")
        ours = path.name in LEFT_OUT or path in (logs, *logs.parents)
        if not name or ours or os.path.lexists(target) or not path.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)


def _previous(project: Path, run_dir: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest snapshot of the same project beside this one, with the states of its files."""
    paths = run_dir.parent.glob(f"*/{run_files.SNAPSHOT_RECORD.pattern}")
    for path in sorted(paths, key=lambda one: one.stat().st_mtime, reverse=True):
        record = _read(path)
        folder = run_files.SNAPSHOT.path(path.parent)
        if record is not None and record["project"] == str(project) and folder.is_dir():
            # what a program has changed in its own copy is not the user's file any more
            return folder, {
                name: state
                for name, state in record["files"].items()
                if (folder / name).is_file() and _same(folder / name, state)
            }
    return None


def _same(path: Path, state: Sequence[int]) -> bool:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns] == list(state[:2])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record


def _git(project: Path, *words: str) -> str:
    """What git answers; nothing where it does not know the folder, or is not here."""
    try:
        done = subprocess.run(
            ["git", "-C", str(project), *words], capture_output=True, text=True,
            errors="surrogateescape", check=False,
        )  # fmt: skip
    except OSError:
        return ""
    return "" if done.returncode else done.stdout.rstrip("\n")


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count = round(count / 1000)
    return f"{count} GB"
