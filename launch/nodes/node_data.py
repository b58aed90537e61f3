"""A node's side of --send: choose the folder for the data on the node, guard it and complete it.

The text of this file is sent to the node's `python3`, before that of `node_facts.py`. A survey
calls the functions that have a `question`. So this file may use only the standard library of
Python 3.8.

How it works: rsync copies into a folder beside the place, `.NAME.muster-sending/data`, which is
renamed once it is complete. After an interruption the folder is kept, and the next transfer
continues in it. If the place has an older version of the data, files that did not change become
hard links, and the old folder becomes `.NAME.muster-sending/old` until the new folder is at the
place. A folder to be removed is first renamed to `.NAME.muster-sending-RANDOM`.

Two locks protect the data. Only the process that locks `.NAME.muster-sending/lock` may send to the
place; others wait, such as nodes that share the disk. DATA_MARK is a file in each place that --send
created; it lists what was sent. An agent locks it while its run uses the place.

An entry is [path, size, mtime_ns, target of a symbolic link]. The version of a folder is computed
from what rsync compares: all paths, sizes, links and times in whole seconds.
"""

import atexit
import contextlib
import errno
import fcntl
import glob
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import types

DATA_MARK = ".muster-data"
SENDING = ".{}.muster-sending"
SILENT_S = 300  # whole seconds: a leader, or an rsync, that is silent for longer counts as gone
NO_RSYNC = "rsync is not installed; on that node, run: sudo apt-get install rsync"
ROOM_BYTES = 1_048_576  # a disk without room for this much counts as full
NAMED = 4  # at most this many changed files are named
OUTPUT_BYTES = 65_536
WILDCARDS = re.compile(r"[*?\[]")
VARIABLE = re.compile(r"\$(?:(\w+)|{(\w+)})")


def entries_of(root):  # type: ignore[no-untyped-def]
    """All files, links and folders below `root`, except our mark; a folder's path ends in "/".

    Raises:
        OSError: a folder cannot be read.
    """
    folders = [""]
    while folders:
        below = folders.pop()
        with os.scandir(os.path.join(root, below)) as found:
            for item in found:
                path = below + item.name
                if path == DATA_MARK:
                    continue
                if item.is_dir(follow_symlinks=False):
                    folders.append(path + "/")
                    yield [path + "/", 0, 0, ""]
                elif item.is_symlink():
                    yield [path, 0, 0, os.readlink(item.path)]
                else:
                    state = item.stat(follow_symlinks=False)
                    yield [path, state.st_size, state.st_mtime_ns, ""]


def version_of(entries):  # type: ignore[no-untyped-def]
    compared = sorted([path, size, ns // 10**9, link] for path, size, ns, link in entries)
    return hashlib.sha256(json.dumps(compared).encode()).hexdigest()


# -- one copy by rsync ----------------------------------------------------------------------------


def data_folder(place):  # type: ignore[no-untyped-def]
    """The folder into which rsync copies the data for this place."""
    return os.path.join(_sending_folder(place), "data")


def rsync_options(place):  # type: ignore[no-untyped-def]
    """rsync's options, besides --archive, for a copy into `data_folder(place)`."""
    return [
        *("--no-owner", "--no-group"),  # all files are this user's own
        "--chmod=go-w,Du+w",  # a read-only folder could neither be completed nor removed
        *("--delete", f"--exclude=/{DATA_MARK}"),
        f"--partial-dir={_sending_folder(place)}/partial",
        f"--link-dest={place}",
        f"--timeout={SILENT_S}",
    ]


def rsync_error(code, text):  # type: ignore[no-untyped-def]
    """The line of stderr with the cause: the first from rsync or ssh, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if "--link-dest arg" not in line]
    last = next(filter(None, reversed(lines)), f"rsync ended with exit code {code}")
    return next((line for line in lines if line.startswith(("rsync", "ssh:"))), last)


# -- questions of a survey, in this order ---------------------------------------------------------


# What this process has claimed, and where the data comes from.
sending = types.SimpleNamespace(
    source={},  # the first question
    place="",
    state="",  # "claimed": locked by this process; "complete"
    lock=-1,  # the descriptor of the locked file
    copy=None,  # this node's own rsync
    errors=None,  # its stderr
)


def find_destination(question):  # type: ignore[no-untyped-def]
    """The place on this node, and whether all data is there; `failed` is why there is no place.

    In the question, `place` is as the user typed it. If it is one of the user's own folders, `name`
    names a new folder in it for the data; "" means the place itself. `version` and `count` describe
    the source's entries, and `owner` is the source's owner. `copies`: this node copies the source
    itself.
    """
    sending.source = question
    source = question["source"]
    try:
        place = _expanded(question["place"])
        is_users = os.path.isdir(place) and _mark_of(place) is None
        if question["name"] and is_users and not _is_same(place):
            place = os.path.join(place, question["name"])
        sending.place = place
        if _is_complete(place):
            sending.state = "complete"
            return {"place": place, "complete": True}
        if shutil.which("rsync") is None:
            return {"failed": NO_RSYNC}
        if question["copies"] and not os.path.isdir(source):
            return {
                "failed": f"{source} not found on this node; put it on a disk that all nodes share"
            }
        if place.startswith(os.path.realpath(source) + "/"):
            return {
                "failed": f"{place} is inside {source}, the folder to send; choose another place"
            }
        if not question["copies"] and WILDCARDS.search(place):
            return {
                "failed": f"{place} contains *, ? or [, which rsync expands; choose another place"
            }
    except OSError as error:
        return {"failed": _reason(error)}
    return {"place": place, "complete": False}


def claim_destination(question):  # type: ignore[no-untyped-def]
    """Lock the place, and begin to copy if this node copies the source itself.

    `state`: "claimed"; "taken" while another process sends there; or "complete".
    """
    if sending.state:
        return {"state": sending.state}
    place = sending.place
    try:
        os.umask(os.umask(0o077) | 0o022)  # no other user may change data
        os.makedirs(os.path.dirname(place), exist_ok=True)
        _register(place)
        sending.lock = _locked(_sending_folder(place))
        if sending.lock < 0:
            return {"state": "taken"}
        old = _old_folder(place)
        if os.path.lexists(old) and not os.path.lexists(place):  # `_complete` was interrupted
            os.rename(old, place)
        if _is_complete(place):  # by now
            _leave("complete", remove=True)
            return {"state": "complete"}
        with _replaceable(place):  # checked before the copy, and again in `_complete`
            pass
        if sending.source["copies"]:
            sending.errors = tempfile.TemporaryFile()  # noqa: SIM115  # for as long as rsync runs
            # by default, rsync would not continue a partial file in a local copy
            argv = ["rsync", "--archive", "--no-whole-file", *rsync_options(place), "--"]
            argv += [sending.source["source"] + "/", data_folder(place)]
            null = subprocess.DEVNULL
            sending.copy = subprocess.Popen(
                argv,
                stdin=null,
                stdout=null,
                stderr=sending.errors,
                pass_fds=(sending.lock,),  # the place stays locked if rsync outlives this process
            )
            atexit.register(sending.copy.terminate)  # when the leader is gone
        else:
            signal.alarm(SILENT_S)  # see `renew_claim`
    except OSError as error:
        return {"failed": _reason(error)}
    sending.state = "claimed"
    return {"state": "claimed"}


def renew_claim(question):  # type: ignore[no-untyped-def]
    """Whether this node's own copy is over, and its error.

    Without a copy of its own, this process ends, and so unlocks the place, if the leader has not
    asked this for long: after the link breaks, nobody else would end it.
    """
    if sending.copy is None:
        signal.alarm(SILENT_S)  # the alarm ends this process
    elif sending.copy.poll() is None:
        return {"is_over": False, "error": ""}
    elif sending.copy.returncode:
        sending.errors.seek(0)
        text = sending.errors.read(OUTPUT_BYTES).decode(errors="replace")
        return {"is_over": True, "error": _printable(rsync_error(sending.copy.returncode, text))}
    return {"is_over": True, "error": ""}


def clear_full_disk(question):  # type: ignore[no-untyped-def]
    """After an rsync error, remove the partial copy if this node's disk is `full`.

    rsync exits immediately, and its message about the disk is often lost on the way through ssh.
    `full` in the question: the nodes whose message arrived.
    """
    if sending.state != "claimed":  # srun asks all nodes
        return {"full": False}
    is_full = question["node"] in question["full"]
    try:
        with open(os.path.join(_sending_folder(sending.place), "probe"), "wb") as probe:
            probe.write(os.urandom(ROOM_BYTES))
        os.unlink(probe.name)
    except OSError as error:
        is_full = is_full or _is_full(error)
    if is_full:
        _leave("", remove=True)
    return {"full": is_full}


def finish_transfer(question):  # type: ignore[no-untyped-def]
    """Rename the data's folder to its place, with our mark in it, and unlock the place."""
    signal.alarm(0)
    if sending.state != "claimed":  # srun asks all nodes
        return {}
    try:
        _complete(sending.place)
    except OSError as error:
        _leave("", remove=_is_full(error))
        return {"failed": _reason(error)}
    _leave("complete", remove=True)
    return {}


# -- questions of `jobs clean` --------------------------------------------------------------------


def data_left(question):  # type: ignore[no-untyped-def]
    """The folders that --send created on this node, and those of interrupted transfers."""
    left = []
    for link, place in _registered():
        found = _folders_of(place)
        if not found:
            _unlink(link)
        for path in found:
            size_bytes = 0
            with contextlib.suppress(OSError):  # a folder in it cannot be read, or is being removed
                for entry in entries_of(path):
                    size_bytes += entry[1]
            with _unused(path) as is_unused:
                entry = {"path": path, "bytes": size_bytes, "whole": path == place}
                left.append(dict(entry, used=not is_unused))
    return left


def remove_data(question):  # type: ignore[no-untyped-def]
    """Remove the requested folders among `data_left`; returns the errors, by path."""
    wanted = question["paths"][question["node"]]
    failed = {}
    for _, place in _registered():
        for path in _folders_of(place):
            if path not in wanted:
                continue
            with _unused(path) as is_unused:
                if not is_unused:
                    failed[path] = "a run has begun to use it"
                    continue
                try:
                    _remove_folder(path, place)
                except OSError as error:
                    failed[path] = error.strerror or str(error)
    return failed


# -- the place ------------------------------------------------------------------------------------


def _expanded(text):  # type: ignore[no-untyped-def]
    """The path that the user typed, with this node's variables and home; no shell reads it.

    Raises:
        OSError: a variable is not set here, or the path is not absolute.
    """
    env = {"TMPDIR": tempfile.gettempdir(), **os.environ}

    def value(found):  # type: ignore[no-untyped-def]
        name = found.group(1) or found.group(2)
        if not env.get(name):
            raise OSError(f"--send: ${name} is not set on this node")
        return env[name]

    path = os.path.expanduser(VARIABLE.sub(value, text))
    if not os.path.isabs(path):
        raise OSError(f"--send: {path} is not an absolute path on this node")
    return os.path.realpath(path)


def _is_complete(place, moved=None):  # type: ignore[no-untyped-def]
    """Whether the data is at the place; false if it is to be sent there.

    `moved`: where the place's folder is now, if it has been moved.

    Raises:
        OSError: the content of the place must not be replaced.
    """
    folder = moved or place
    if not os.path.lexists(folder):
        return False
    mark = _mark_of(folder)
    source = sending.source["source"]
    if mark is None:
        if _is_same(folder):
            return True
        raise OSError(f"{place} already exists and differs from {source}; {_other(place)}")
    version, missing = mark
    changed = []
    for path, *state in entries_of(folder):
        if missing.pop(path, None) != state:
            changed.append(path)
    is_current = version == sending.source["version"]
    if is_current and not missing:  # files that programs add or change do not matter
        return True
    if changed:
        why = f"has no {_printable(min(missing))}" if is_current else "is not up to date"
        names = ", ".join(map(_printable, sorted(changed)[:NAMED]))
        raise OSError(
            f"{place} {why}, and sending it again would delete files that were added or changed: "
            f"{names}; move them elsewhere, or {_other(place)}"
        )
    return False


def _other(place):  # type: ignore[no-untyped-def]
    sent = "{}:{}-sent".format(sending.source["source"], place)
    return f"choose another place: --send {shlex.quote(sent)}"


def _is_same(place):  # type: ignore[no-untyped-def]
    """Whether a folder that was not sent is the same as the source, as far as rsync compares them.

    Its owner is also checked, since another user could have created it with other contents.
    """
    with contextlib.suppress(OSError):  # it cannot be read, or is a file
        if os.stat(place).st_uid in (0, os.geteuid(), sending.source["owner"]):
            found = [*itertools.islice(entries_of(place), sending.source["count"] + 1)]
            return version_of(found) == sending.source["version"]
    return False


def _mark_of(place):  # type: ignore[no-untyped-def]
    """The version of one of our folders, and what was sent, by path; None for any other folder."""
    if not _is_own_folder(place):
        return None
    try:
        with open(os.path.join(place, DATA_MARK), encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            version, entries = json.load(file)
        return version, {path: state for path, *state in entries}
    except (OSError, ValueError, TypeError):
        return None


def _complete(place):  # type: ignore[no-untyped-def]
    folder = data_folder(place)
    entries = [*entries_of(folder)]
    if version_of(entries) != sending.source["version"]:
        raise OSError(f"{folder} differs from the source after the copy; start the run again")
    with open(os.path.join(folder, DATA_MARK), "w", encoding="utf-8") as file:
        json.dump([sending.source["version"], entries], file)
    if _is_complete(place):  # another user of the disk has put the data there
        return
    if not os.path.lexists(place):
        os.rename(folder, place)
        return
    old = _old_folder(place)
    shutil.rmtree(old, ignore_errors=True)
    with _replaceable(place):
        os.rename(place, old)
        try:
            _is_complete(place, moved=old)  # files may have been added in the meantime
            os.rename(folder, place)
        except OSError:
            os.rename(old, place)
            raise


def _old_folder(place):  # type: ignore[no-untyped-def]
    return os.path.join(_sending_folder(place), "old")


def _sending_folder(place):  # type: ignore[no-untyped-def]
    folder, name = os.path.split(place)
    return os.path.join(folder, SENDING.format(name))


def _is_sending_folder(path):  # type: ignore[no-untyped-def]
    return SENDING.rpartition("}")[2] in os.path.basename(path)


def _is_own_folder(path):  # type: ignore[no-untyped-def]
    try:
        state = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()


def _is_ours(path):  # type: ignore[no-untyped-def]
    """Whether --send created this folder."""
    return _is_own_folder(path) and (_is_sending_folder(path) or _mark_of(path) is not None)


def _folders_of(place):  # type: ignore[no-untyped-def]
    """The folders that --send created for this place: the place itself, and folders beside it."""
    beside = glob.glob(glob.escape(_sending_folder(place)) + "*")
    return [path for path in [place, *sorted(beside)] if _is_ours(path)]


def _remove_folder(path, place):  # type: ignore[no-untyped-def]
    """Remove a folder that this process has locked; others may create a new one meanwhile."""
    removed = "{}-{}".format(_sending_folder(place), os.urandom(4).hex())
    with contextlib.suppress(OSError):  # a full disk may have no room for a name
        os.rename(path, removed)
        path = removed
    shutil.rmtree(path)


# -- locks ----------------------------------------------------------------------------------------


def _locked(folder):  # type: ignore[no-untyped-def]
    """The descriptor of the locked file in the sending folder; -1 while another process locks it.

    Raises:
        OSError: the folder belongs to another user, or its disk does not support locks.
    """
    is_new = not os.path.lexists(folder)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    if os.path.lexists(folder) and not _is_own_folder(folder):
        raise OSError(errno.EEXIST, "the folder is not yours", folder)
    path = os.path.join(folder, "lock")
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:  # removed by the process that had it
        return -1
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):  # or removed by the process that had it
        pass
    except OSError as error:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        why = "files cannot be locked on this disk; choose another disk"
        raise OSError(error.errno, why, folder) from None
    os.close(descriptor)
    return -1


def _leave(state, remove):  # type: ignore[no-untyped-def]
    """Unlock the place, and stop copying; `remove`: also remove the folder beside it."""
    if sending.copy is not None:
        sending.copy.terminate()
        sending.copy.wait()
    if remove:
        with contextlib.suppress(OSError):
            _remove_folder(_sending_folder(sending.place), sending.place)
    os.close(sending.lock)
    sending.state = state


@contextlib.contextmanager
def _replaceable(place):  # type: ignore[no-untyped-def]
    """Prevent runs from starting to use the place within this context.

    Raises:
        OSError: a run is using it.
    """
    with _unused(place) as is_unused:
        if not is_unused:
            raise OSError(
                f"{place} is not up to date, but a run is using it; wait for it, or {_other(place)}"
            )
        yield


@contextlib.contextmanager
def _unused(path):  # type: ignore[no-untyped-def]
    """Whether no run uses a place, or no data is sent into a sending folder; locked if so."""
    name = "lock" if _is_sending_folder(path) else DATA_MARK
    with contextlib.ExitStack() as stack:
        is_unused = True
        try:
            file = stack.enter_context(open(os.path.join(path, name), "r+b"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_unused = False
        except OSError:  # there is no such file, or the disk does not support locks
            pass
        yield is_unused


# -- the list of places for `jobs clean` ----------------------------------------------------------


def _register_folder():  # type: ignore[no-untyped-def]
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "muster", "data")


def _registered():  # type: ignore[no-untyped-def]
    """The links to the places on this node, which may share its home with other nodes."""
    folder = _register_folder()
    host = socket.gethostname()
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    links = [os.path.join(folder, name) for name in names if name.rpartition("-")[0] == host]
    return [(link, os.readlink(link)) for link in links if os.path.islink(link)]


def _register(place):  # type: ignore[no-untyped-def]
    digest = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    link = os.path.join(_register_folder(), f"{socket.gethostname()}-{digest}")
    with contextlib.suppress(OSError):  # without a home nobody would find it there
        os.makedirs(_register_folder(), exist_ok=True)
        os.symlink(place, link)


def _unlink(path):  # type: ignore[no-untyped-def]
    with contextlib.suppress(OSError):
        os.unlink(path)


def _is_full(error):  # type: ignore[no-untyped-def]
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _reason(error):  # type: ignore[no-untyped-def]
    """The error as one printable line."""
    text = str(error)
    if error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return _printable(text)


def _printable(text):  # type: ignore[no-untyped-def]
    text = " ".join(text.split())
    return text if text.isprintable() else ascii(text)
