"""Whether a file that the user has not named may decide what runs as this user.

Its owner, and anyone who may write to it or its folder, can run commands as this user, so they must
be this user or root. A group whose only member is this user may also write: with umask 002, as on
many systems, all files are writable for it.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path


def distrusted(path: Path) -> str | None:
    """Why a file or a folder is not to be trusted, or None. The target of a link is checked, too.

    Raises:
        OSError: its owner and mode cannot be read.
    """
    states = [(path, path.lstat()), (path, path.stat()), (path.parent, path.parent.stat())]
    for place, state in states:
        if state.st_uid not in _own_ids():
            return f"{place} belongs to {user_name(state.st_uid)}"
    for place, state in states[1:]:
        # in a folder such as /tmp no user can replace another user's file
        is_sticky = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX
        if not is_sticky and _others_may_write(state):
            return f"other users may write to {place} (mode {stat.S_IMODE(state.st_mode):o})"
    return None


def owner_is_foreign(path: Path) -> bool:
    """Whether something in a folder belongs to neither this user, root nor the folder's owner."""
    return path.lstat().st_uid not in {*_own_ids(), path.parent.stat().st_uid}


def _own_ids() -> set[int]:
    """The ids of this user and root; as in git, also the id of the user who called sudo."""
    own = {0, os.geteuid()}
    caller = os.environ.get("SUDO_UID", "")
    return own | {int(caller)} if os.geteuid() == 0 and caller.isdigit() else own


def _others_may_write(state: os.stat_result) -> bool:
    if state.st_mode & stat.S_IWOTH:
        return True
    return bool(state.st_mode & stat.S_IWGRP) and not _is_private(state.st_gid, state.st_uid)


def _is_private(group: int, owner: int) -> bool:
    """Whether a group has the name of `owner`, and no other members."""
    try:
        user = pwd.getpwuid(owner)
        entry = grp.getgrgid(group)
    except KeyError:
        return False
    return (
        user.pw_gid == group
        and entry.gr_name == user.pw_name
        and set(entry.gr_mem) <= {user.pw_name}
    )


def user_name(number: int) -> str:
    """The name of a user, for messages."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
