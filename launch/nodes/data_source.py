"""What --send sends: a folder or an archive of the machine that leads, as it is now."""

import os
import shlex
import stat
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import Any

from configs.settings.launch import Sending
from launch.nodes import node_data
from muster.errors import MusterError
from muster.printable import on_one_line

LISTED = 4  # names of entries that cannot be sent


def archive_kind(path: Path) -> str:
    """`tar`, `zip`, or "" for a file that is no archive."""
    import tarfile  # here, since few runs send an archive
    import zipfile

    # a tar file may end with a zip file
    if tarfile.is_tarfile(path):
        return "tar"
    return "zip" if zipfile.is_zipfile(path) else ""


def problems(sending: Sending, cwd: Path) -> Iterator[str]:
    """A line if --send names nothing that can be sent."""
    path = cwd / sending.source
    try:
        if path.is_dir():
            return
        if not path.exists():
            yield f"--send {sending}: {sending.source} does not exist; give a folder or an archive"
        elif not path.is_file() or not archive_kind(path):
            yield f"--send {sending}: {sending.source} is no folder, and no tar or zip archive"
        elif sending.place is None:
            place = f"{sending.source}:/tmp/{_plain_name(path)}"
            yield (
                f"--send {sending}: an archive is unpacked at a place that you name: --send "
                f"{shlex.quote(place)}"
            )
    except OSError as error:
        yield f"--send {sending}: {error.strerror}"


def _plain_name(path: Path) -> str:
    """The name of a folder for the data: that of the source, without an archive's endings."""
    name = path.name
    while Path(name).suffix in (".tar", ".gz", ".tgz", ".xz", ".bz2", ".zst", ".zip"):
        name = Path(name).stem
    return name


class Source:
    """A folder or an archive to send, as it is now.

    Raises:
        MusterError: on creation; a part of it cannot be read, or is nothing that can be sent.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = _plain_name(path.resolve())
        try:
            self.archive = "" if path.is_dir() else archive_kind(path)
            entries, root = node_data.source_entries(str(path.resolve()))
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError as error:
            raise MusterError(
                f"--send {path}: {error.filename or path}: {error.strerror}"
            ) from None
        self.entries: list[list[Any]] = entries
        self.root = Path(root)
        # who may not read an archive may not enter its folder either
        self.mode = mode | (mode & 0o444) >> 2 if self.archive else mode
        self.bytes = sum(entry[2] for entry in entries)
        lines = [line for entry in entries if (line := self._problem(entry))]
        if lines:
            more = [f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
            raise MusterError("\n".join([*lines[:LISTED], *more]))

    def _problem(self, entry: Sequence[Any]) -> str:
        name, kind, *_, link, _, _ = entry
        path = on_one_line(f"{self.path}/{name}")
        if kind == "other":
            return f"--send: {path} is no file, folder or link; leave it out"
        target = os.path.normpath(os.path.join(os.path.dirname(name), link))  # noqa: PTH118, PTH120
        if kind == "link" and (target == ".." or target.startswith(("../", "/"))):
            return (
                f"--send: {path} is a link to {on_one_line(link)}, which is outside and would lead "
                "nowhere on a node; put a copy in its place"
            )
        return ""

    @cached_property
    def version(self) -> str:
        """What tells this state of the files from any other."""
        return str(node_data.version_of(self.entries))

    @cached_property
    def content(self) -> "Future[str]":
        """The digest of the content, for which all is read, once somebody asks."""
        future: Future[str] = Future()

        def read() -> None:
            try:
                future.set_result(str(node_data.content_of(self.entries, str(self.root))))
            except OSError as error:
                future.set_exception(MusterError(f"--send: {error.filename}: {error.strerror}"))

        threading.Thread(target=read, daemon=True).start()
        return future

    def request(self, place: str) -> dict[str, Any]:
        """What a node has to know before data come."""
        return {
            "place": place,
            "version": self.version,
            "archive": self.archive,
            "mode": self.mode,
        }
