"""A node's side of --send: it says where data may go there, takes them, and checks them.

The text of this file is sent to the node's `python3`, so it needs only the standard library of
Python 3.8. It comes in two ways: in front of `node_facts.py`, whose survey asks the functions that
have a `question`; or alone, with `receive`, which takes data from stdin.

Data come into a work folder beside their place. Once they are whole and checked, the folder is
renamed, so what stands at the place is never half of it. What was brought before a cut stays in the
work folder, and the next try goes on from there: entries come in an order that depends on their
names alone, so those that are there are the first ones. A lock on the work folder lets one process
bring data at a time: others wait, such as nodes that share the disk.

A place is ours if a file in it, DATA_MARK, says what was sent. An agent holds a lock on that file
while its run uses the place.

An entry is [path, kind, size, mode, mtime_ns, link, inode, ctime_ns]; its kind is "folder", "file",
"link" or "other". The version of a source is made of names, sizes and times, so it is known at
once, and only the same files have it. The content is made of the files' bytes.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import select
import shutil
import socket
import stat
import sys
import tempfile
import threading
import time

DATA_MARK = ".muster-data"  # in a folder that --send has made
WORK = ".{}.muster-sending"  # beside it, as long as it is not whole
CHUNK_BYTES = 1 << 20  # read of a file at a time
SILENT_S = 30.0  # then who sends is gone, and another try must not wait for this one
WAIT_S = 1.0  # between two looks at a lock
NAMED = 4  # at most, of files in the way
VARIABLE = re.compile(r"\$(?:(\w+)|{(\w+)})")


class Refused(Exception):
    """Data that cannot be used; nothing of them may stay."""


def data_entries(root):  # type: ignore[no-untyped-def]
    """Each folder, file and link below `root`, without our own mark; a folder before its content.

    Raises:
        OSError: a folder cannot be read.
    """
    folders = [("", root)]
    while folders:
        below, folder = folders.pop()
        if below:
            yield _entry(below[:-1], folder)
        with os.scandir(folder) as found:
            names = sorted((item.name for item in found), key=os.fsencode)
        inner = []
        for name in names:
            path = os.path.join(folder, name)
            if below + name == DATA_MARK:
                continue
            if stat.S_ISDIR(os.lstat(path).st_mode):
                inner.append((f"{below}{name}/", path))
            else:
                yield _entry(below + name, path)
        folders += reversed(inner)


def _entry(name, path):  # type: ignore[no-untyped-def]
    state = os.lstat(path)
    kinds = {stat.S_IFDIR: "folder", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(state.st_mode), "other")
    size = state.st_size if kind == "file" else 0
    link = os.readlink(path) if kind == "link" else ""
    facts = [size, stat.S_IMODE(state.st_mode), state.st_mtime_ns]
    return [name, kind, *facts, link, state.st_ino, state.st_ctime_ns]


def source_entries(source):  # type: ignore[no-untyped-def]
    """The entries of a folder or of one file, and the folder that they are in."""
    if os.path.isdir(source):
        return list(data_entries(source)), source
    return [_entry(os.path.basename(source), source)], os.path.dirname(source)


def version_of(entries):  # type: ignore[no-untyped-def]
    digest = hashlib.sha256()
    for name, kind, size, _, mtime_ns, link, inode, ctime_ns in entries:
        facts = [size, mtime_ns, inode, ctime_ns] if kind == "file" else []
        digest.update(json.dumps([name, kind, link, *facts]).encode() + b"\n")
    return digest.hexdigest()


def add_content(content, entry, digest):  # type: ignore[no-untyped-def]
    """Add an entry to the digest of the content; `digest`: of a file's bytes."""
    name, kind, size, _, _, link = entry[:6]
    content.update(json.dumps([name, kind, size, link, digest]).encode() + b"\n")


def content_of(entries, root):  # type: ignore[no-untyped-def]
    """The digest of the content of these entries.

    Raises:
        OSError: a file cannot be read.
    """
    content = hashlib.sha256()
    for entry in entries:
        add_content(content, entry, _digest_of(root, entry))
    return content.hexdigest()


def _digest_of(root, entry):  # type: ignore[no-untyped-def]
    """The digest of a file's bytes, in hex; "" of any other entry."""
    return _digest(os.path.join(root, entry[0])).hexdigest() if entry[1] == "file" else ""


def _digest(path):  # type: ignore[no-untyped-def]
    digest = hashlib.sha256()
    for chunk in _chunks(path, 0):
        digest.update(chunk)
    return digest


def _chunks(path, offset):  # type: ignore[no-untyped-def]
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while True:
            chunk = file.read(CHUNK_BYTES)
            if not chunk:
                return
            yield chunk


# -- questions of a survey ------------------------------------------------------------------------


def look_for_data(question):  # type: ignore[no-untyped-def]
    """The places to choose from, in order, and whether this node sees the source.

    `place`: as it was typed. `name`: of the folder to make where the place is a folder already; ""
    if only the place itself is meant.
    """
    try:
        place = _expanded(question["place"])
        options = [_option(place)]
        if question["name"] and options[0]["state"] == "foreign" and os.path.isdir(place):
            options.append(_option(os.path.join(place, question["name"])))
    except OSError as error:
        return {"failed": _reason(error)}
    return {"options": options, "sees": os.path.exists(question["source"])}


def compare_data(question):  # type: ignore[no-untyped-def]
    """Whether a folder has the same data: "same", "differs", or "unknown" without a `content`."""
    place = question["places"].get(question["node"])
    if place is None or os.path.islink(place) or not os.path.isdir(place):
        return "differs"
    entries = list(data_entries(place))
    if [len(entries), sum(entry[2] for entry in entries)] != question["size"]:
        return "differs"
    if version_of(entries) == question["version"]:
        return "same"
    if not question["content"]:
        return "unknown"
    return "same" if content_of(entries, place) == question["content"] else "differs"


def fetch_data(question):  # type: ignore[no-untyped-def]
    """Begin to copy the source, which this node sees, to its place; see `data_progress`."""
    place = question["places"].get(question["node"])
    if place is not None:
        request = dict(question["request"], place=place)
        _fetched.update(bytes=0, over=False, failed="", content="")
        threading.Thread(target=_fetch, args=(request, question["source"]), daemon=True).start()
    return True


_fetched = {"bytes": 0, "over": True, "failed": "", "content": ""}


def _fetch(request, source):  # type: ignore[no-untyped-def]
    def feed(index, offset):  # type: ignore[no-untyped-def]
        entries, root = source_entries(source)
        _fetched["bytes"] = sum(entry[2] for entry in entries[:index]) + offset
        for entry in entries[index:]:
            path = os.path.join(root, entry[0])
            yield entry, _counted(_chunks(path, offset)) if entry[1] == "file" else ()
            offset = 0

    try:
        _fetched["content"] = _bring(request, feed, lambda **message: None)
    except Exception as error:  # noqa: BLE001  # whatever it is, the leader has to be told
        _fetched["failed"] = _reason(error)
    _fetched["over"] = True


def _counted(chunks):  # type: ignore[no-untyped-def]
    for chunk in chunks:
        _fetched["bytes"] += len(chunk)  # type: ignore[operator]
        yield chunk


def data_progress(question):  # type: ignore[no-untyped-def]
    return dict(_fetched)


def data_left(question):  # type: ignore[no-untyped-def]
    """The folders that --send has made on this node, and those that are not whole."""
    left = []
    for link, place in _registered():
        found = [path for path in (place, _work_of(place)) if _is_ours(path)]
        if not found:
            _unlink(link)
        for path in found:
            entry = {"path": path, "bytes": _size_of(path)}
            left.append(dict(entry, whole=path == place, used=_is_in_use(path)))
    return left


def remove_data(question):  # type: ignore[no-untyped-def]
    """Remove the requested ones of `data_left`; returns the errors, by path."""
    wanted = question["paths"][question["node"]]
    failed = {}
    for _, place in _registered():
        for path in (place, _work_of(place)):
            if path not in wanted or not _is_ours(path):
                continue
            if _is_in_use(path):
                failed[path] = "a run has begun to use it"
                continue
            try:
                shutil.rmtree(path)
            except OSError as error:
                failed[path] = error.strerror or str(error)
    return failed


# -- places ---------------------------------------------------------------------------------------


def _expanded(text):  # type: ignore[no-untyped-def]
    """The path that was typed, with this node's variables and home; no shell reads it.

    Raises:
        OSError: a variable is not set here, or it is no absolute path.
    """
    env = {"TMPDIR": tempfile.gettempdir(), **os.environ}

    def value(found):  # type: ignore[no-untyped-def]
        name = found.group(1) or found.group(2)
        if not env.get(name):
            raise OSError(f"--send: ${name} is not set there")
        return env[name]

    path = os.path.expanduser(VARIABLE.sub(value, text))
    if not os.path.isabs(path):
        raise OSError(f"--send: {path} is no absolute path there")
    return os.path.realpath(path)


def _option(place):  # type: ignore[no-untyped-def]
    """What is at a place: nothing, what --send has brought, or something else."""
    nearest = place
    while not os.path.isdir(nearest):
        nearest = os.path.dirname(nearest)
    work = _work_of(place)
    option = {
        "place": place,
        "state": "foreign" if os.path.lexists(place) else "absent",
        "version": "",
        "content": "",
        "intact": False,
        "changed": [],
        "free_bytes": shutil.disk_usage(nearest).free,
        "partial_bytes": _size_of(work) if _is_ours(work) else 0,
    }
    about = _mark_of(place)
    if about is not None:
        intact, changed = _changes(place, about)
        option.update(state="sent", version=about["version"], content=about["content"])
        option.update(intact=intact, changed=changed)
    return option


def _size_of(folder):  # type: ignore[no-untyped-def]
    return sum(entry[2] for entry in data_entries(folder))


def _mark_of(place):  # type: ignore[no-untyped-def]
    """What was sent to a folder of ours; None for any other folder, also of another user."""
    if not _is_own_folder(place):
        return None
    try:
        with open(os.path.join(place, DATA_MARK), encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            about = json.load(file)
        return about if {"version", "content", "entries"} <= about.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def _changes(place, about):  # type: ignore[no-untyped-def]
    """Whether all that was sent is there unchanged, and the names of what would be lost."""
    sent = {name: facts for name, *facts in about["entries"]}
    found = {entry[0]: [entry[2], _time_of(entry)] for entry in data_entries(place)}
    changed = [name for name in found if found[name] != sent.get(name)]
    names = [name if name.isprintable() else ascii(name) for name in changed[:NAMED]]
    return all(found.get(name) == sent[name] for name in sent), names


def _time_of(entry):  # type: ignore[no-untyped-def]
    """When a file was changed; other entries change with what is in them."""
    return entry[4] if entry[1] == "file" else 0


def _is_own_folder(path):  # type: ignore[no-untyped-def]
    try:
        state = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()


def _is_ours(path):  # type: ignore[no-untyped-def]
    """Whether --send has made this folder: a place, or a work folder."""
    return _is_own_folder(path) and (_is_work(path) or _mark_of(path) is not None)


def _is_work(path):  # type: ignore[no-untyped-def]
    return os.path.basename(path).endswith(WORK.rpartition("}")[2])


def _work_of(place):  # type: ignore[no-untyped-def]
    folder, name = os.path.split(place)
    return os.path.join(folder, WORK.format(name))


def _is_in_use(path):  # type: ignore[no-untyped-def]
    """Whether a run uses a place, or data just come into a work folder."""
    name = "lock" if _is_work(path) else DATA_MARK
    try:
        with open(os.path.join(path, name), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or the disk has no locks
        return False
    return False


def _register_folder():  # type: ignore[no-untyped-def]
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "muster", "data")


def _registered():  # type: ignore[no-untyped-def]
    """The links to the places on this node, which may share its home with others."""
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


# -- data come ------------------------------------------------------------------------------------


def receive():  # type: ignore[no-untyped-def]
    """Take data from stdin: a line with the request, then frames; answers go to stdout."""

    def report(**message):  # type: ignore[no-untyped-def]
        os.write(1, b"\nmuster:" + json.dumps(message).encode() + b"\n")

    # nothing follows this line until it is answered, so nothing is left in Python's buffer
    request = json.loads(sys.stdin.buffer.readline())
    stream = Stream(0)

    def feed(index, offset):  # type: ignore[no-untyped-def]
        report(at=[index, offset])
        while True:
            line = stream.line()
            if not line.strip():  # a sign of life
                continue
            frame = json.loads(line)
            if isinstance(frame, str):
                request["content"] = frame
                return
            yield frame, stream.chunks(frame[2] - offset)
            offset = 0

    try:
        report(content=_bring(request, feed, report))
    except EOFError:  # who sends is gone; what came stays for the next try
        sys.exit(1)
    except Exception as error:  # noqa: BLE001  # whatever it is, the leader has to be told
        report(failed=_reason(error))
        sys.exit(1)


def _reason(error):  # type: ignore[no-untyped-def]
    """One line that can be printed."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = " ".join(text.split())
    return text if text.isprintable() else ascii(text)


class Stream:
    """Lines and bytes that come through a pipe."""

    def __init__(self, descriptor):  # type: ignore[no-untyped-def]
        self._descriptor = descriptor
        self._buffer = memoryview(bytearray(CHUNK_BYTES))  # new memory for each part takes longer
        self._left = self._buffer[:0]  # received, and not taken yet

    def _receive(self):  # type: ignore[no-untyped-def]
        if not select.select([self._descriptor], [], [], SILENT_S)[0]:
            raise EOFError
        count = os.readv(self._descriptor, [self._buffer])
        if not count:
            raise EOFError
        return self._buffer[:count]

    def line(self):  # type: ignore[no-untyped-def]
        """The next line.

        Raises:
            EOFError: the other side is gone.
        """
        text = bytes(self._left)
        while b"\n" not in text:
            text += bytes(self._receive())
        line, _, rest = text.partition(b"\n")
        self._left = memoryview(rest)
        return line

    def chunks(self, size):  # type: ignore[no-untyped-def]
        """The next bytes, `size` of them in all; each part is to be used before the next one."""
        while size > 0:
            if not self._left:
                self._left = self._receive()
            chunk = self._left[:size]
            self._left = self._left[size:]
            size -= len(chunk)
            yield chunk


def _bring(request, feed, report):  # type: ignore[no-untyped-def]
    """Have the data at their place; return the digest of their content.

    `feed(index, offset)` yields each entry from that one on, with its bytes from there on.

    Raises:
        Refused: they are not what was sent, or an archive's member would leave the place.
        OSError: the disk refuses.
        EOFError: the other side is gone.
    """
    place = request["place"]
    os.umask(os.umask(0o077) | 0o022)  # nobody else may change data
    os.makedirs(os.path.dirname(place), exist_ok=True)
    _register(place)
    work = _work_of(place)
    lock = _locked(work, report)
    try:
        about = _mark_of(place)
        # another run, or another node with this disk, may have brought them meanwhile
        if about and about["version"] == request["version"] and _changes(place, about)[0]:
            content = about["content"]
        else:
            content = _take(request, feed, work)
            _finish(request, work, content)
    except (OSError, Refused) as error:
        if isinstance(error, Refused) or error.errno in (errno.ENOSPC, errno.EDQUOT):
            shutil.rmtree(work, ignore_errors=True)
        raise
    else:
        shutil.rmtree(work, ignore_errors=True)
        return content
    finally:
        os.close(lock)


def _locked(work, report):  # type: ignore[no-untyped-def]
    """Have the work folder for this process alone; returns the file that holds the lock."""
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(work, 0o700)
        if not _is_own_folder(work):
            raise OSError(errno.EEXIST, "it is not a folder of yours", work)
        lock = os.path.join(work, "lock")
        try:
            descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # who had it has just removed it
            continue
        while not _has_lock(descriptor):
            report(waits=True)
            time.sleep(WAIT_S)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(lock), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # of a folder that was removed by who had it


def _has_lock(descriptor):  # type: ignore[no-untyped-def]
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a disk without locks
        return True
    return True


def _take(request, feed, work):  # type: ignore[no-untyped-def]
    """Bring what is not there yet into the work folder; return the digest of the content."""
    sent = os.path.join(work, "sent")
    version = os.path.join(work, "version")
    if _read_text(version) != request["version"]:
        shutil.rmtree(sent, ignore_errors=True)
    os.makedirs(sent, exist_ok=True)
    with open(version, "w", encoding="utf-8") as file:
        file.write(request["version"])
    content = hashlib.sha256()
    digest = hashlib.sha256()  # of the next file
    offset = 0  # in it
    present = list(data_entries(sent))
    if present and present[-1][1] == "file":  # it may not be whole
        last = present.pop()
        digest = _digest(os.path.join(sent, last[0]))
        offset = last[2]
    for entry in present:
        add_content(content, entry, _digest_of(sent, entry))
    for entry, chunks in feed(len(present), offset):
        path = os.path.join(sent, entry[0])
        if entry[1] == "folder":
            os.mkdir(path, entry[3] & 0o755 | 0o700)
        elif entry[1] == "link":
            os.symlink(entry[5], path)
        else:
            _write(path, entry, offset, chunks, digest)
        add_content(content, entry, digest.hexdigest() if entry[1] == "file" else "")
        digest = hashlib.sha256()
        offset = 0
    if request.get("content", content.hexdigest()) != content.hexdigest():
        raise Refused("what came is not what was sent; was it changed meanwhile?")
    return content.hexdigest()


def _write(path, entry, offset, chunks, digest):  # type: ignore[no-untyped-def]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        os.lseek(descriptor, offset, os.SEEK_SET)
        for chunk in chunks:
            digest.update(chunk)
            left = memoryview(chunk)
            while left:
                left = left[os.write(descriptor, left) :]
        os.fchmod(descriptor, entry[3] & 0o755 | 0o600)
        os.utime(descriptor, ns=(entry[4], entry[4]))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(descriptor)


def _finish(request, work, content):  # type: ignore[no-untyped-def]
    """Rename what has come to its place, with our mark in it."""
    place = request["place"]
    root = os.path.join(work, "sent")
    if request["archive"]:
        (archive,) = os.listdir(root)
        unpacked = os.path.join(work, "unpacked")
        shutil.rmtree(unpacked, ignore_errors=True)
        os.mkdir(unpacked)
        _unpack(request["archive"], os.path.join(root, archive), unpacked)
        root = unpacked
    entries = [[entry[0], entry[2], _time_of(entry)] for entry in data_entries(root)]
    about = {"version": request["version"], "content": content, "entries": entries}
    with open(os.path.join(root, DATA_MARK), "w", encoding="utf-8") as file:
        json.dump(about, file)
    os.chmod(root, request["mode"] & 0o755 | 0o700)
    if os.path.lexists(place):
        before = _mark_of(place)
        if before is None or _changes(place, before)[1]:
            raise OSError(errno.EEXIST, "something else has come there meanwhile", place)
        if _is_in_use(place):
            raise OSError(errno.EBUSY, "a run uses other data there, which stay", place)
        old = os.path.join(work, "old")
        shutil.rmtree(old, ignore_errors=True)
        os.rename(place, old)
    os.rename(root, place)


def _unpack(kind, path, into):  # type: ignore[no-untyped-def]
    """Unpack an archive; no member may leave the folder.

    Raises:
        Refused: one would, or the archive is damaged.
    """
    import tarfile  # here, since this file is loaded for every survey
    import zipfile

    name = os.path.basename(path)
    try:
        if kind == "zip":
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    if ".." in member.filename.split("/"):
                        raise Refused(f"{name}: {member.filename!r} would be outside the place")
                    if stat.S_ISLNK(member.external_attr >> 16):
                        raise Refused(f"{name}: {member.filename!r} is a link, which is not made")
                archive.extractall(into)
            return
        with tarfile.open(path) as archive:
            # Python's own checks, too, where it has them: Debian 12's does not
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(into, members=_checked(archive, name))
            while archive.fileobj.read(CHUNK_BYTES):  # the check sum of a compressed file is last
                pass
    except Refused:
        raise
    except Exception as error:  # each form of a damaged archive has an error of its own
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise Refused(f"{name}: {error}") from None


def _checked(archive, name):  # type: ignore[no-untyped-def]
    """The members of a tar file, as this user's own files.

    No member is outside the place, or goes through a link. A link climbs only at its beginning, so
    where it leads does not depend on other links. Our own mark is left out.

    Raises:
        Refused: a member would be outside, or is no file, folder or link.
    """
    links = set()
    for member in archive:
        path = os.path.normpath(member.name)
        parts = path.split("/")
        if os.path.isabs(path) or parts[0] == "..":
            raise Refused(f"{name}: {member.name!r} would be outside the place")
        if path == DATA_MARK:  # as a link, it would have our own mark change another file
            continue
        if any("/".join(parts[: end + 1]) in links for end in range(len(parts))):
            raise Refused(f"{name}: {member.name!r} goes through a link of the archive")
        if member.issym() or member.islnk():
            to = member.linkname
            begin = os.path.dirname(path) if member.issym() else ""
            target = os.path.normpath(os.path.join(begin, to))
            climbs = ".." in to.lstrip("./").split("/")
            if os.path.isabs(target) or target.split("/")[0] == ".." or climbs:
                raise Refused(f"{name}: {member.name!r} is a link to {to!r}, outside the place")
            if member.issym():
                links.add(path)
        elif not (member.isreg() or member.isdir()):
            raise Refused(f"{name}: {member.name!r} is no file, folder or link")
        member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
        member.uid = os.geteuid()
        member.gid = os.getegid()
        member.uname = member.gname = ""
        yield member


def _read_text(path):  # type: ignore[no-untyped-def]
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
