"""Copy the user's project when a run is submitted, so that later edits do not change the run.

The copy contains all files that git tracks or would track, including changed and new files, but not
ignored files. The same applies to submodules and other clones inside the project. Ignored files
(data, outputs) become symbolic links to the originals, so that the program finds them in their
usual places. Each run has its own copies, not hard links, since a program may write to them.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from rich.filesize import decimal

from muster import git, run_files
from muster.errors import UsageError
from muster.git import GitFailed, top_of
from muster.writing import read_json, write_json, writing

# The limit for files that git does not track. Anything larger is data, which belongs elsewhere.
MOST_BYTES = 200_000_000
MOST_NAMED = 10
# Folders that are not part of a project without git.
LEFT_OUT = frozenset((".git", "__pycache__", ".venv", "venv", "node_modules", ".pytest_cache"))
# A diff that `git apply` accepts, whatever the user's git settings are.
PLAIN_DIFF = "--no-ext-diff --no-textconv --no-color --src-prefix=a/ --dst-prefix=b/".split()
PLAIN_DIFF.append("--submodule=short")


def path_on_nodes(run_id: str, what: str = "snapshot") -> Path:
    """The path of a snapshot on nodes with their own disks, below their checkout."""
    return Path("logs", f".{what}-{run_id}")


def copy_project(project: Path, run_dir: Path, patterns: Sequence[str] = ()) -> str:
    """Copy `project` into the run folder, and record its commit and its changes.

    Return a line about what was copied.

    Raises:
        UsageError: runs are stored in the project's own folder; git cannot list the project's
            files; too much of the project is not tracked by git; or a file cannot be read.
        CannotWrite: the disk is full.
    """
    root = run_files.SNAPSHOT.path(run_dir)
    logs = _logs_of(run_dir)
    if logs.resolve() == project.resolve():
        raise UsageError(
            f"--logs-dir {logs} is the project itself, which is copied for each run"
            f"\ntip: use a separate folder, such as {logs / 'logs'}, or --no-snapshot"
        )
    if project.is_relative_to(logs):  # a folder that contains the project is not part of it
        logs = run_dir
    try:
        repositories = list(_repositories(project))
        sources = [path for repository in repositories for path in _files(repository, logs)]
        if patterns:
            ignored = ("--others", "--ignored", "--exclude-standard", "--", *patterns)
            for repository in repositories:
                sources += _listed(repository, *ignored)
    except GitFailed as error:
        raise UsageError(f"{error}, or use --no-snapshot") from error
    copied: dict[str, int] = {}  # the size of each file
    links: list[tuple[Path, Path]] = []
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        for source in dict.fromkeys(sources):
            target = root / source.relative_to(project)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_symlink():
                links.append((source, target))
            elif (size := _copy(source, target)) is not None:
                copied[str(source.relative_to(project))] = size
        for repository in repositories:
            for path in _listed(
                repository, "--others", "--ignored", "--exclude-standard", "--directory"
            ):
                _link_ignored(path, root / path.relative_to(project), logs)
        for source, target in links:  # last, since a link may point to any other file
            _copy_link(source, target, project, root)
        commit, diff, problem = _changes(project)
        run_files.SNAPSHOT_DIFF.path(run_dir).write_bytes(diff)
    record = {"project": str(project), "commit": commit, "files": list(copied)}
    write_json(run_files.SNAPSHOT_RECORD.path(run_dir), record)
    return f"snapshot: {len(copied)} files, {decimal(sum(copied.values()))}{problem}"


def _changes(project: Path) -> tuple[str, bytes, str]:
    """The project's commit, the diff of its files against it, and a problem if git makes none."""
    if top_of(project) is None:
        return "", b"", ""
    commit = ""
    try:
        commit = git.ask(project, "rev-parse", "--quiet", "--verify", "HEAD").decode().strip()
        return commit, git.ask(project, "diff", "HEAD", "--binary", *PLAIN_DIFF), ""
    except GitFailed as error:
        has_no_commit = error.code == 1 and not commit
        return commit, b"", "" if has_no_commit else f"; no snapshot.diff: {error}"


def files_of(project: Path) -> list[Path]:
    """The files that git tracks or would track, including those of nested repositories, each once.

    Raises:
        UsageError: git cannot list the files, or too much of the project is not tracked.
    """
    logs = project / "logs"
    paths = (path for each in _repositories(project) for path in _files(each, logs))
    return list(dict.fromkeys(paths))


def new_files(run_dir: Path) -> list[str]:
    """A line that names the files that the program has created in the snapshot, if any."""
    record = read_json(run_files.SNAPSHOT_RECORD.path(run_dir), "files")
    root = run_files.SNAPSHOT.path(run_dir)
    if record is None:
        return []
    paths = (path for path in _walked(root, run_dir) if not path.is_symlink())
    new = sorted({str(path.relative_to(root)) for path in paths} - {*record["files"]})
    if not new:
        return []
    more = f", and {len(new) - MOST_NAMED} more" if len(new) > MOST_NAMED else ""
    # a name that is not UTF-8 cannot be printed unchanged
    names = ", ".join(os.fsencode(name).decode(errors="replace") for name in new[:MOST_NAMED])
    return [f"files that the program created in {root}: {names}{more}"]


def _logs_of(run_dir: Path) -> Path:
    """The folder of all runs and sweeps."""
    sweep = run_dir.parent.parent
    is_of_sweep = sweep.parent.name == run_files.SWEEPS and (sweep / run_files.SWEEP).exists()
    return sweep.parent.parent if is_of_sweep else run_dir.parent


def _repositories(folder: Path) -> Iterator[Path]:
    """The folder, and the submodules and other clones inside it, which git lists separately."""
    yield folder
    for path in _listed(folder, "--cached", "--others", "--exclude-standard"):
        if (path / ".git").exists() and not path.is_symlink():
            yield from _repositories(path)


def _files(folder: Path, logs: Path) -> Iterator[Path]:
    """The files that git tracks or would track; all files if the folder is not in git."""
    tracked = _listed(folder, "--cached")
    others = _listed(folder, "--others", "--exclude-standard")
    advice = "list data in .gitignore to link it instead of copying it, or use --no-snapshot"
    untracked: Iterable[Path] = others
    if top_of(folder) is None:
        untracked = _walked(folder, logs)
        advice = f"run `git init` there, and {advice}"
    yield from filter(_is_copied, tracked)
    total = 0
    largest = (0, folder)
    for path in untracked:
        if logs in path.parents or not _is_copied(path):
            continue  # the project's own runs, a socket, or a file removed meanwhile
        with suppress(FileNotFoundError):
            size = path.lstat().st_size
            total += size
            largest = max(largest, (size, path))
        if total > MOST_BYTES:
            raise UsageError(
                f"{folder} has more than {decimal(MOST_BYTES)} that git does not track, such as "
                f"{largest[1].relative_to(folder)} with {decimal(largest[0])}\ntip: {advice}"
            )
        yield path


def _is_copied(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _walked(folder: Path, logs: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        paths = [Path(parent, name) for name in folders if name not in LEFT_OUT]
        folders[:] = [path.name for path in paths if path != logs]
        yield from (path for path in paths if path.is_symlink())  # os.walk does not enter these
        yield from (Path(parent, name) for name in files)


def _copy(source: Path, target: Path) -> int | None:
    """Copy a file; return its size in bytes, or None if it was removed after it was listed."""
    try:
        shutil.copy2(source, target)
    except OSError as error:
        if not os.path.lexists(source):
            return None
        if not os.access(source, os.R_OK):
            raise UsageError(
                f"{source} cannot be read: {error.strerror}"
                "\ntip: make it readable, list it in .gitignore, or use --no-snapshot"
            ) from error
        raise
    return target.stat().st_size


def _copy_link(source: Path, target: Path, project: Path, root: Path) -> None:
    """Copy a symbolic link so that it points to its target's copy, or else to the original."""
    end = Path(os.path.realpath(source))
    inside = end.is_relative_to(project.resolve())
    copy = root / end.relative_to(project.resolve()) if inside else end
    if inside and os.path.lexists(copy):
        target.symlink_to(os.path.relpath(copy, target.parent))
    else:
        target.symlink_to(end)


def _link_ignored(source: Path, target: Path, logs: Path) -> None:
    """Link to a file that git ignores, or to a whole folder if nothing in it was copied."""
    if source == logs or source.name in LEFT_OUT or not source.exists():
        return
    if source in logs.parents or (target.is_dir() and not target.is_symlink()):
        for path in source.iterdir():
            _link_ignored(path, target / path.name, logs)
    elif not os.path.lexists(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)


def _listed(folder: Path, *kinds: str) -> list[Path]:
    """The files that git lists, each once: a file with a conflict is in its index three times.

    The list is empty for a folder outside any repository.

    Raises:
        GitFailed: git does not answer.
    """
    if top_of(folder) is None:
        return []
    names = git.ask(folder, "ls-files", "-z", *kinds).split(b"\0")
    return [folder / os.fsdecode(name) for name in dict.fromkeys(names) if name]
