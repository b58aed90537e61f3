"""Runs on a login node: a command that continues when the connection that started it is lost.

    start FOLDER           reads what to run from stdin: {"argv", "env", "cwd"}
    follow FOLDER OFFSETS  prints the command's output from the offsets on, until it has ended
    interrupt FOLDER       sends it SIGINT, as Ctrl-C does

FOLDER holds `out` and `err`, the command's output; `pid`; `code`, after its end; and `lock`. The
process that waits for the command holds the lock as long as it lives. A pid is used only while that
lock is held and there is no code, so it cannot belong to another process.

`follow` writes frames: a line "STREAM BYTES", then that many bytes; STREAM is 1 or 2. The last
frame is "0 CODE"; CODE is "lost" if no process waits for the command any more. So the reader of the
frames knows how much it has of each stream, and continues from there after a lost connection.

It needs the standard library alone.
"""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TICK_S = 0.1
KEPT_S = 30 * 86_400  # how long the folder of an ended command stays
STREAMS = {1: "out", 2: "err"}


def start(folder: Path, what: dict[str, Any]) -> None:
    """Run the command in a process with its own session; return once it runs."""
    _remove_old(folder.parent)
    folder.mkdir(parents=True, mode=0o700)
    runs, begun = os.pipe()
    if os.fork():
        os.close(begun)
        os.read(runs, 1)
        return
    os.setsid()
    lock = (folder / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        try:
            env, cwd = {**os.environ, **what["env"]}, what["cwd"]
            process = subprocess.Popen(
                what["argv"], stdin=nothing, stdout=out, stderr=err, env=env, cwd=cwd,
                start_new_session=True,
            )  # fmt: skip
            (folder / "pid").write_text(str(process.pid))
            os.close(begun)
            code = process.wait()
        except OSError as error:
            err.write(f"error: {what['argv'][0]}: {error.strerror}\n".encode())
            code = 127
    partial = folder / "code.partial"
    partial.write_text(str(128 - code if code < 0 else code))
    partial.replace(folder / "code")
    os._exit(0)


def follow(folder: Path, offsets: list[int]) -> None:
    """Write frames of the command's output, from `offsets` of its two streams on."""
    files = {}
    for (number, name), offset in zip(STREAMS.items(), offsets, strict=True):
        files[number] = (folder / name).open("rb")
        files[number].seek(offset)
    output, reader = sys.stdout.buffer, select.poll()
    reader.register(output, 0)
    while not reader.poll(0):  # true when nobody reads any more
        end = _end(folder)  # before the last look at the files
        some = False
        for number, file in files.items():
            while data := file.read(65536):
                output.write(b"%d %d\n%b" % (number, len(data), data))
                some = True
        if end and not some:
            output.write(f"0 {end}\n".encode())
        output.flush()
        if end and not some:
            return
        time.sleep(0 if some else TICK_S)


def interrupt(folder: Path) -> None:
    """Send SIGINT to the command and its children; one that has ended is left alone."""
    if not _end(folder):
        os.killpg(int((folder / "pid").read_text()), signal.SIGINT)


def _remove_old(sessions: Path) -> None:
    """Remove the folders of commands that ended long ago, with what was sent for them."""
    for lock in sessions.glob("*/lock"):
        ended_unix_s = lock.parent.stat().st_mtime
        if time.time() - ended_unix_s > KEPT_S and not _is_locked(lock):
            for folder in (lock.parent, lock.parent.with_name(f"{lock.parent.name}.call")):
                shutil.rmtree(folder, ignore_errors=True)


def _end(folder: Path) -> str:
    """The exit code of the command, "lost" if nobody waits for it, or "" while it runs."""
    lost = not _is_locked(folder / "lock")  # before the code, which is written under the lock
    try:
        return (folder / "code").read_text()
    except OSError:
        return "lost" if lost else ""


def _is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


if __name__ == "__main__":
    verb, place, *more = sys.argv[1:]
    if verb == "start":
        start(Path(place), json.load(sys.stdin))
    elif verb == "follow":
        follow(Path(place), [int(one) for one in more])
    else:
        interrupt(Path(place))
