"""Copy the project from a laptop to the login node; later copies send only the changes.

It goes into its own folder below Muster's. rsync sends the files that git tracks or would track. A
file that was sent once and no longer exists here is removed there. Files that programs have made
there, such as `logs/`, stay.
"""

import os
import socket
from hashlib import sha256
from pathlib import Path

from launch.programs import project_snapshot
from launch.ssh.login_node.installation import Installation

SENT = ".muster-sent-files"  # in the copy: the names of the files sent last
# Removes files of the first list that the second one lacks; names end with a NUL.
REMOVE = """cd -- "$1" && touch -- "$2" && cat > "$2.$$" &&
comm -z -23 "$2" "$2.$$" | xargs -0 -r rm -f -- && mv -f -- "$2.$$" "$2"
"""


def send(installation: Installation, project: Path) -> str:
    """Update the copy; return its folder on the login node.

    Raises:
        UsageError: git leaves too much untracked; the message says what to do.
        MusterError: it cannot be copied.
    """
    connection = installation.connection
    name = sha256(f"{socket.gethostname()}\0{project}".encode()).hexdigest()[:8]
    folder = f"{installation.folder}/projects/{project.name}-{name}"
    files = sorted(
        os.fsencode(path.relative_to(project)) for path in project_snapshot.files_of(project)
    )
    listed = b"".join(name + b"\0" for name in files)
    connection.run(["mkdir", "-p", "--", folder])
    connection.rsync(["--from0", "--files-from=-"], f"{project}/", f":{folder}/", listed)
    connection.run(["env", "LC_ALL=C", "sh", "-c", REMOVE, "sh", folder, SENT], listed)
    return folder
