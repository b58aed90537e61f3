"""Ask git about a user's project; git only reads, and writes nothing.

A missing answer is never replaced by a guess: files that git ignores, such as data and secrets,
would be copied. So if git does not answer, its own error is raised.

git refuses another user's repository, since the configuration in it may name programs to run. A
group's project is such a repository, and so is a folder that a container has mounted. The error
then includes git's own command for trusting the repository.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from muster.errors import UsageError
from muster.terminal import TIP
from muster.tool_environment import environment_for

# git writes nothing, not even the index; its messages do not depend on the user's language.
ALWAYS = {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
SHORT_S = 10.0  # for a question whose answer is only recorded or shown


class GitFailed(UsageError):
    """git gave no answer; the message has git's own line and a remedy."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code  # git's exit code; 0: git is not installed


def ask(folder: Path, *words: str, timeout_s: float | None = None) -> bytes:
    """The output of `git WORDS` in `folder`.

    Raises:
        GitFailed: git fails, or does not answer in time.
    """
    done = _run(folder, words, timeout_s)
    if done.returncode:
        # outside a repository, `git diff` would explain how to compare files: use another error
        simple = _run(folder, ("rev-parse", "--git-dir"), timeout_s)
        why = _explained(folder, simple if simple.returncode else done)
        raise GitFailed(why, done.returncode)
    return done.stdout


def ask_top(folder: Path, *words: str) -> str | None:
    """The output of git in a repository whose top is `folder`; None if git gives none.

    Also None if `folder` is below the top: then the repository is another project's.
    """
    if top_of(folder) != folder.resolve():
        return None
    try:
        return ask(folder, *words, timeout_s=SHORT_S).decode(errors="replace").strip()
    except GitFailed:  # no git here, or a copy of the code without its history
        return None


def top_of(folder: Path) -> Path | None:
    """The nearest folder with a `.git`, at or above `folder`; as in git, in one file system."""
    real = folder.resolve()
    for candidate in (real, *real.parents):
        if not candidate.exists():
            continue
        if candidate.stat().st_dev != real.stat().st_dev:
            return None
        place = candidate / ".git"
        if os.path.lexists(place) and not _is_empty(place):
            return candidate
    return None


def _is_empty(place: Path) -> bool:
    """Whether `place` is an empty folder, which a container may put in place of `.git`."""
    try:
        return place.is_dir() and not any(place.iterdir())
    except OSError:
        return False


def top_seen(cwd: Path, top: Path) -> Path:
    """The top folder that git reports in `cwd`; without an answer `top`, which has a `.git`."""
    try:
        return Path(os.fsdecode(ask(cwd, "rev-parse", "--show-toplevel").removesuffix(b"\n")))
    except GitFailed:  # the repository is damaged, or git not installed
        return cwd if _anybody_may_write(top) else top


def _run(
    folder: Path, words: Sequence[str], timeout_s: float | None
) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment_for("git") | ALWAYS,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GitFailed(f"git did not answer within {timeout_s:g} s in {folder}") from error
    except OSError as error:
        raise GitFailed(
            f"{folder} is part of a git repository, but git is not installed here to tell which "
            "files to leave out"
            "\ntip: install git"
        ) from error


def _anybody_may_write(top: Path) -> bool:
    """Whether any user may have made or changed the repository in `top`."""
    paths = [path for path in (top, top / ".git") if path.exists()]
    return any(path.stat().st_mode & 0o002 for path in paths)


def _explained(folder: Path, done: "subprocess.CompletedProcess[bytes]") -> str:
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    fatal = [line.removeprefix("fatal: ") for line in lines if line.startswith("fatal: ")]
    line = (fatal or lines[-1:] or [f"exit code {done.returncode}"])[0]
    trust = next((line.strip() for line in lines if "--add safe.directory" in line), None)
    do = "repair the repository" if trust is None else f"if you trust its owner: {trust}"
    return f"git cannot read {folder}: {line}{TIP}{do}"
