"""A copy of the user's project as it is when a run is submitted: later edits change nothing.

It has what git tracks or would track: changed and new files included, ignored ones not, and of
submodules and other clones inside the same. What git ignores (data, outputs) is linked to the
original, so that the program finds it in its place. Each run has files of its own, of which none
is a hard link: a program may write to them.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from muster import run_files
from muster.errors import UsageError
from muster.writing import read_json, write_json, writing

# What git does not track: more than this is data, which belongs elsewhere.
MOST_BYTES = 200_000_000
MOST_NAMED = 10
# Folders of a project without git that are no part of it.
LEFT_OUT = frozenset((".git", "__pycache__", ".venv", "venv", "node_modules", ".pytest_cache"))
# A diff that `git apply` takes, whatever the user's own settings of git are.
PLAIN_DIFF = "--no-ext-diff --no-textconv --no-color --src-prefix=a/ --dst-prefix=b/".split()


@dataclass(frozen=True)
class Snapshot:
    """What was copied, and of what."""

    root: Path
    files: int
    total_bytes: int

    def __str__(self) -> str:
        return f"snapshot: {self.files} files, {decimal(self.total_bytes)}"


def take(project: Path, run_dir: Path, patterns: Sequence[str] = ()) -> Snapshot:
    """Copy `project` into the run folder, and write down of which commit, with which changes.

    Raises:
        UsageError: runs are kept in the project's own folder; too much of the project is not
            tracked by git; or a file cannot be read.
        CannotWrite: the disk is full.
    """
    root, logs = run_files.SNAPSHOT.path(run_dir), _logs_of(run_dir)
    if logs.resolve() == project.resolve():
        raise UsageError(
            f"--logs-dir {logs} is the project itself, which is copied for each run; give a folder "
            f"of its own, such as {logs / 'logs'}, or --no-snapshot"
        )
    if project.is_relative_to(logs):  # what is around the project is no part of it
        logs = run_dir
    repositories = list(_repositories(project))
    sources = [path for one in repositories for path in _files(one, logs)]
    if patterns:
        ignored = ("--others", "--ignored", "--exclude-standard", "--", *patterns)
        sources += [path for one in repositories for path in _listed(one, *ignored)]
    copied, links = {}, []
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        for source in dict.fromkeys(sources):
            target = root / source.relative_to(project)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_symlink():
                links.append((source, target))
            elif (size := _copy(source, target)) is not None:
                copied[str(source.relative_to(project))] = size
        for one in repositories:
            for path in _listed(one, "--others", "--ignored", "--exclude-standard", "--directory"):
                _link_ignored(path, root / path.relative_to(project), logs)
        for source, target in links:  # last: they may lead to any of the others
            _copy_link(source, target, project, root)
        diff = _git(project, "diff", "HEAD", "--binary", *PLAIN_DIFF)
        run_files.SNAPSHOT_DIFF.path(run_dir).write_bytes(diff)
    commit = _git(project, "rev-parse", "HEAD").decode().strip()
    record = {"project": str(project), "commit": commit, "files": list(copied)}
    write_json(run_files.SNAPSHOT_RECORD.path(run_dir), record)
    return Snapshot(root, len(copied), sum(copied.values()))


def files_of(project: Path) -> list[Path]:
    """What git tracks or would track of a project, and of the repositories inside it; each once.

    Raises:
        UsageError: too much of it is not tracked by git.
    """
    logs = project / "logs"
    return list(dict.fromkeys(path for one in _repositories(project) for path in _files(one, logs)))


def new_files(run_dir: Path) -> list[str]:
    """A line that names the files which the program has made inside the snapshot, if any."""
    record = read_json(run_files.SNAPSHOT_RECORD.path(run_dir))
    root = run_files.SNAPSHOT.path(run_dir)
    if record is None:
        return []
    paths = (path for path in _walked(root, run_dir) if not path.is_symlink())
    found = sorted({str(path.relative_to(root)) for path in paths} - {*record["files"]})
    if not found:
        return []
    more = f", and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    # a name that is not UTF-8 cannot be printed as it is
    names = ", ".join(os.fsencode(one).decode(errors="replace") for one in found[:MOST_NAMED])
    return [f"made in {root}: {names}{more}"]


def _logs_of(run_dir: Path) -> Path:
    """The folder of all runs; those of a sweep have folders of their own in it."""
    sweep = run_dir.parent.parent
    is_of_sweep = sweep.parent.name == run_files.SWEEPS and (sweep / run_files.SWEEP).exists()
    return sweep.parent.parent if is_of_sweep else run_dir.parent


def _repositories(folder: Path) -> Iterator[Path]:
    """The folder, and the submodules and other clones inside it: git lists each by itself."""
    yield folder
    for path in _listed(folder, "--cached", "--others", "--exclude-standard"):
        if (path / ".git").exists() and not path.is_symlink():
            yield from _repositories(path)


def _files(folder: Path, logs: Path) -> Iterator[Path]:
    """What git tracks or would track; where it knows nothing of the folder, all that is there."""
    tracked = _listed(folder, "--cached")
    others = _listed(folder, "--others", "--exclude-standard")
    advice = "name data in .gitignore, and it is linked instead of copied; or give --no-snapshot"
    known: Iterable[Path] = others
    if not tracked and not others:
        known, advice = _walked(folder, logs), f"run `git init` there, and {advice}"
    yield from filter(_is_copied, tracked)
    total, largest = 0, (0, folder)
    for path in known:
        if logs in path.parents or not _is_copied(path):
            continue  # the project's own runs, a socket, or what is gone by now
        with suppress(FileNotFoundError):
            size = path.lstat().st_size
            total, largest = total + size, max(largest, (size, path))
        if total > MOST_BYTES:
            raise UsageError(
                f"{folder} has more than {decimal(MOST_BYTES)} that git does not track, such as "
                f"{largest[1].relative_to(folder)} with {decimal(largest[0])}: {advice}"
            )
        yield path


def _is_copied(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _walked(folder: Path, logs: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        paths = [Path(parent, name) for name in folders if name not in LEFT_OUT]
        folders[:] = [one.name for one in paths if one != logs]
        yield from (one for one in paths if one.is_symlink())  # which are not walked through
        yield from (Path(parent, name) for name in files)


def _copy(source: Path, target: Path) -> int | None:
    """How much was copied; None if the file was removed since it was listed."""
    try:
        shutil.copy2(source, target)
    except OSError as error:
        if not os.path.lexists(source):
            return None
        if not os.access(source, os.R_OK):
            raise UsageError(
                f"{source} cannot be read: {error.strerror}; make it readable, name it in "
                ".gitignore, or give --no-snapshot"
            ) from error
        raise
    return target.stat().st_size


def _copy_link(source: Path, target: Path, project: Path, root: Path) -> None:
    """A link leads to the same thing in the copy; where the copy has no such, to the original."""
    end = Path(os.path.realpath(source))
    inside = end.is_relative_to(project.resolve())
    copy = root / end.relative_to(project.resolve()) if inside else end
    if inside and os.path.lexists(copy):
        target.symlink_to(os.path.relpath(copy, target.parent))
    else:
        target.symlink_to(end)


def _link_ignored(source: Path, target: Path, logs: Path) -> None:
    """A link to what git ignores: a folder as a whole, where nothing of it was copied."""
    if source == logs or source.name in LEFT_OUT or not source.exists():
        return
    if source in logs.parents or (target.is_dir() and not target.is_symlink()):
        for one in source.iterdir():
            _link_ignored(one, target / one.name, logs)
    elif not os.path.lexists(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)


def _listed(folder: Path, *kinds: str) -> list[Path]:
    """The files that git lists, each once: one with a conflict is in its index three times."""
    names = _git(folder, "ls-files", "-z", *kinds).split(b"\0")
    return [folder / os.fsdecode(name) for name in dict.fromkeys(names) if name]


def _git(folder: Path, *words: str) -> bytes:
    """What git answers; nothing where it does not know the folder, or is not here."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=False)
    except OSError:
        return b""
    return b"" if done.returncode else done.stdout
