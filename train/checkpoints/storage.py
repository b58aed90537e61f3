"""A checkpoint is one folder: complete and verified by checksums, or absent.

    checkpoints/step_00000040/
        objects.pt     {OBJECT: STATE}; for our trainer's model: parameters and buffers by name; for
                       its optimizer: PARAMETER/KEY, such as layer.weight/exp_avg
        sync.pt        RANK/OBJECT/NAME or all/OBJECT/NAME: what differs by rank
        state.json     `SavedState`: the step, and what is in the other files
        manifest.json  {"version": 4, "sha256": {FILE: SUM}}
    checkpoints/step_00000048.HOST.PID.partial/   being written, or left by a process that died
    checkpoints/set_aside/step_00000044/          of a run that a later run did not continue from

A folder has one chain: each checkpoint continues from the one before it, whichever runs wrote them.

A folder is written under its .partial name: first the files, each forced to the disk (fsync), then
the manifest with their checksums. Then the folder itself is forced and renamed. A rename within one
file system either happens or does not. So a crash at any moment leaves either no `step_N` or a
whole one, and a .partial folder is never taken for a checkpoint. `read_verified` compares every
file with its checksum, since disks and networks corrupt bytes. torch.load with weights_only=True
accepts tensors, numbers, strings and containers of them, and nothing that could run code. Tensors
lie in the mapped file: a page takes memory only when it is read, and the system can take it back.
"""

import errno
import hashlib
import json
import os
import pickle
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count, dropwhile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from muster.errors import MusterError, is_full, text_of
from muster.run_files import CHECKPOINTS
from muster.writing import as_json, force

MANIFEST = "manifest.json"
STATE = "state.json"
VERSION = 4  # of the format of the files
VERSION_OF_0_2_0 = 2
SET_ASIDE = "set_aside"  # a folder beside the checkpoints
TRIES, PAUSE_S = 3, 0.5  # for a write, since network file systems fail now and then
UNFINISHED = ".partial"
OBJECTS, SYNC = "objects.pt", "sync.pt"  # see above
Files = dict[str, Any]  # the content of each file: tensors, numbers, strings, containers of them


class Damaged(MusterError):
    """A checkpoint is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """A folder that was written completely; only `read_verified` verifies that it is intact."""

    step: int
    path: Path


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """The content of state.json, the same for every rank that reads it."""

    step: int
    world_size: int  # of the ranks that saved it
    by_rank: list[str] = field(default_factory=list)  # objects with a state for each rank
    undeclared: list[str] = field(default_factory=list)  # the undeclared ones in `by_rank`
    best: float | None = None  # the best metric so far
    best_step: int | None = None
    best_by: str | None = None  # metric:min or metric:max
    run_id: str | None = None  # a launcher that restarts a run looks for that run's id


class IntactCheckpoint(NamedTuple):
    """An intact checkpoint and its content; `sums` are the checksums of all its files."""

    path: Path
    files: Files
    saved: SavedState
    sums: dict[str, str]


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """The finished checkpoints of a folder, the newest first."""
    names = ((re.fullmatch(r"step_(\d+)", path.name), path) for path in folder.glob("step_*"))
    checkpoints = (
        Checkpoint(int(name[1]), path)
        for name, path in names
        if name and (path / MANIFEST).is_file()
    )
    return sorted(checkpoints, key=lambda item: item.step, reverse=True)


def run_of(checkpoint: Checkpoint) -> str | None:
    """The run that wrote a checkpoint; None if that is not known."""
    try:
        run_id = _read_json(checkpoint.path / STATE).get("run_id")
    except Damaged:
        return None
    return run_id if isinstance(run_id, str) else None


def set_aside(folder: Path, after: int) -> list[int]:
    """Move the checkpoints of later steps than `after` to a folder beside; return their steps.

    A run continues from step `after`, so they are no longer part of its chain.

    Raises:
        OSError: a checkpoint could not be moved.
    """
    later = [item for item in list_checkpoints(folder) if item.step > after]
    for checkpoint in later:
        aside = folder / SET_ASIDE / checkpoint.path.name
        aside.parent.mkdir(exist_ok=True)
        for number in count(2):
            if not aside.exists():
                break
            aside = aside.with_name(f"{checkpoint.path.name}.{number}")
        checkpoint.path.rename(aside)
    return [item.step for item in reversed(later)]


def newest_intact(path: Path) -> tuple[IntactCheckpoint | None, list[str]]:
    """The newest intact checkpoint in `path`, and a line for each newer one that is damaged."""
    notes: list[str] = []
    try:
        candidates = _candidates(path)
    except OSError as error:
        return None, [f"{path}: {error.strerror}"]
    for candidate in candidates:
        try:
            return read_verified(candidate), notes
        except Damaged as error:
            notes.append(f"{error}; trying the previous checkpoint")
    return None, notes


def _candidates(path: Path) -> list[Path]:
    """The checkpoints in `path`, the newest first.

    `path` is one checkpoint (then the older ones beside it follow), a folder of several, or a run
    folder.
    """
    if not (path / MANIFEST).is_file():
        found = list_checkpoints(path) or list_checkpoints(CHECKPOINTS.path(path))
        return [item.path for item in found]
    beside = [item.path for item in list_checkpoints(path.parent)]
    return list(dropwhile(lambda other: other.name != path.name, beside)) or [path]


def write(folder: Path, files: Files, saved: SavedState) -> Path:
    """Write `files` and `saved` as a checkpoint; return its folder.

    An earlier checkpoint of this step is replaced. A write that fails is tried again, but not on a
    full disk; earlier checkpoints stay.

    Raises:
        OSError: it could not be written in three tries, or the disk is full.
    """
    path = folder / f"step_{saved.step:08d}"
    partial = folder / f"{path.name}.{socket.gethostname()}.{os.getpid()}{UNFINISHED}"
    for tries_left in range(TRIES - 1, -1, -1):
        try:
            _write(partial, files, saved)
            _move(partial, path)
            return path
        except (OSError, RuntimeError) as raised:
            error = _os_error(raised)
            shutil.rmtree(partial, ignore_errors=True)
            if is_full(error) or not tries_left:
                raise error from raised
            time.sleep(PAUSE_S)
    raise AssertionError("the last try returns or raises")


def read_verified(checkpoint: Path) -> IntactCheckpoint:
    """Read a checkpoint, and verify that it is intact.

    Raises:
        Damaged: a file is missing, its bytes have changed, or it contains more than plain values.
    """
    sums = _checksums(checkpoint)
    for name, wanted in sums.items():
        path = checkpoint / name
        try:
            if not path.is_file():  # a pipe would be read for ever
                raise Damaged(f"{path}: no such file")
            digest = sha256(path)
        except OSError as error:
            raise Damaged(f"{path}: {error.strerror}") from None
        if digest != wanted:
            raise Damaged(f"{path} is damaged: its SHA-256 checksum does not match")
    files = {name: _loaded(checkpoint / name) for name in (OBJECTS, SYNC)}
    try:
        saved = SavedState(**_read_json(checkpoint / STATE))
    except TypeError:
        raise Damaged(
            f"{checkpoint / STATE} is damaged: it has missing or unknown fields"
        ) from None
    return IntactCheckpoint(checkpoint, files, saved, sums)


def _checksums(checkpoint: Path) -> dict[str, str]:
    """The checksum of each file of a checkpoint, according to its manifest.

    Raises:
        Damaged: the manifest cannot be read, or is of another version.
    """
    path = checkpoint / MANIFEST
    manifest = _read_json(path)
    version = manifest.get("version")
    if version != VERSION:
        if version == VERSION_OF_0_2_0:
            raise Damaged(
                f"{checkpoint} was written by Muster 0.2.0, whose checkpoints this version "
                "cannot read; resume with Muster 0.2.0"
            )
        raise Damaged(
            f"{checkpoint} has checkpoint format {version!a:.40}, but this version reads only "
            f"format {VERSION}; resume with the version of Muster that wrote it"
        )
    sums = manifest.get("sha256")
    if not isinstance(sums, dict) or set(sums) != {STATE, OBJECTS, SYNC}:
        raise Damaged(f"{path} is damaged: it does not have the checksums of a checkpoint's files")
    return sums


def prune(folder: Path, keep_last: int, best: int | None) -> None:
    """Keep the newest checkpoints and the best; remove the others, and this host's unfinished ones.

    Checkpoints that were set aside are kept.
    """
    for old in list_checkpoints(folder)[keep_last:]:
        if old.step != best:
            doomed = old.path.with_name(f"{old.path.name}.old{UNFINISHED}")
            # rename it first, so that a half-removed folder is never taken for a checkpoint
            with suppress(OSError):
                old.path.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
    for folder_left in _unfinished(folder):
        shutil.rmtree(folder_left, ignore_errors=True)


def sha256(path: Path) -> str:
    """The checksum of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(2**20):  # Python 3.10 has no hashlib.file_digest
            digest.update(part)
    return digest.hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise Damaged(f"{path} is damaged: it is not a JSON object")
    return value


def _write(partial: Path, files: Files, saved: SavedState) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, content in files.items():
        with (partial / name).open("wb") as file:  # its errors say what is wrong
            torch.save(content, file)
    (partial / STATE).write_text(json.dumps(asdict(saved)) + "\n", encoding="utf-8")
    sums = {path.name: sha256(path) for path in sorted(partial.iterdir())}
    for path in partial.iterdir():
        force(path)
    manifest = {"version": VERSION, "sha256": sums}
    (partial / MANIFEST).write_text(as_json(manifest), encoding="utf-8")
    force(partial / MANIFEST)
    force(partial)


def _move(partial: Path, path: Path) -> None:
    older = path.with_name(f"{path.name}.{os.getpid()}.old{UNFINISHED}")
    with suppress(FileNotFoundError):
        path.rename(older)
    partial.rename(path)
    shutil.rmtree(older, ignore_errors=True)
    force(path.parent)


def _loaded(path: Path) -> Any:
    try:
        return _mapped(path)
    except pickle.UnpicklingError:
        raise Damaged(f"{path} is not read, because it contains more than plain values") from None
    except Exception as error:  # noqa: BLE001  torch raises any error on odd bytes
        first_line = text_of(error).strip().partition("\n")[0]
        raise Damaged(
            f"{path} is damaged: torch cannot read it ({type(error).__name__}: {first_line:.200})"
        ) from None


def _mapped(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "unable to mmap" not in str(error):
            raise
        # a file system that maps no files
        return torch.load(path, map_location="cpu", weights_only=True)


def _os_error(error: BaseException) -> OSError:
    """The disk's own error, which torch may wrap in another one."""
    while not isinstance(error, OSError):
        if error.__context__ is None:
            return OSError(errno.EIO, str(error))
        error = error.__context__
    return error


def _unfinished(folder: Path) -> Iterator[Path]:
    """The folders that processes of this host were writing when they ended."""
    for path in folder.glob(f"step_*.{socket.gethostname()}.*{UNFINISHED}"):
        pid = path.name.removesuffix(UNFINISHED).rpartition(".")[2]
        if pid.isdigit() and int(pid) != os.getpid() and not _is_running(int(pid)):
            yield path
    yield from folder.glob(f"step_*.old{UNFINISHED}")


def _is_running(pid: int) -> bool:
    """Whether there is such a process, of any user; without `/proc`, which macOS lacks."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # otherwise it belongs to another user
    return True
