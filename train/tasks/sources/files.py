"""Read folders and text files that a user names; refuse files that are missing or stand-ins.

A download may leave another file in a file's place, and the error of its reader would not name it.
"""

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from socket import gethostname

from muster.errors import UsageError

HEAD_BYTES = 512
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
HTML = re.compile(rb"\s*<(!doctype html|html)\b", re.IGNORECASE)


def folder_of(data_dir: Path | None) -> Path:
    """The folder that --data-dir names.

    Raises:
        UsageError: it is not set, or is not a folder.
    """
    if data_dir is None:
        raise UsageError("this task needs --data-dir, the folder with its files")
    if not data_dir.is_dir():
        state = "is not a folder" if data_dir.exists() else "does not exist"
        way = f"copy it there, or send it to every node with --send {quote(str(data_dir))}"
        raise UsageError(f"--data-dir {data_dir} {state} on {gethostname()}\ntip: {way}")
    return data_dir


def find(
    data_dir: Path | None, names: Mapping[str, Sequence[str]], what: str, below: str = ""
) -> dict[str, Path]:
    """Find each file by the first of its `names` in the folder, or in its subfolder `below`.

    Raises:
        UsageError: there is no folder, or a file is missing; the message ends with `what`.
    """
    folder = folder_of(data_dir)
    home = folder / below if (folder / below).is_dir() else folder
    first = {
        name: next((home / spelling for spelling in known if (home / spelling).is_file()), None)
        for name, known in names.items()
    }
    if missing := [" or ".join(names[name]) for name, path in first.items() if path is None]:
        raise UsageError(f"--data-dir {home} has no {', '.join(missing)}; {what}")
    paths = {name: path for name, path in first.items() if path is not None}
    for path in paths.values():
        refuse_stand_in(path)
    return paths


def stand_in(path: Path) -> str:
    """What is in place of this file, and the remedy; empty if nothing speaks against the file."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not head:
        return "is empty\ntip: download or copy it again"
    if head.startswith(LFS_POINTER):
        return (
            "is a Git LFS pointer, not the file itself"
            "\ntip: run `git lfs pull` in its repository, or download it again"
        )
    if HTML.match(head):
        return "is a web page, not the file itself\ntip: download it again"
    return ""


def refuse_stand_in(path: Path, flag: str = "") -> None:
    """Refuse a file that is a stand-in; the message begins with `flag`, if there is one.

    Raises:
        UsageError: it is a stand-in; the message names the file.
    """
    if problem := stand_in(path):
        raise UsageError(f"{flag}{' ' * bool(flag)}{path} {problem}")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every line without its line end, numbered from 1.

    Raises:
        UsageError: a line is not UTF-8; the message names the file and line.
    """
    with path.open("rb") as file:
        # By bytes, so that only a newline ends a line: sentences contain other separators.
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                yield number, line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise UsageError(f"{path}:{number}: not valid UTF-8") from None
