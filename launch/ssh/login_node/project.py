"""The project on a laptop is copied to the login node; the second time only what has changed.

It goes into a folder of its own below Muster's there. What git tracks or would track is sent, by
rsync; a file that was sent once and is gone here is removed there. What programs have made there,
such as `logs/`, stays.
"""

import os
import socket
from hashlib import sha256
from pathlib import Path

from launch.programs import project_snapshot
from launch.ssh.login_node.installation import Installation

SENT = ".muster-sent-files"  # in the copy: the names of what was sent last
# Removes what the second list lacks of the first; names end with a NUL.
REMOVE = """cd -- "$1" && touch -- "$2" && cat > "$2.$$" &&
comm -z -23 "$2" "$2.$$" | xargs -0 -r rm -f -- && mv -f -- "$2.$$" "$2"
"""


def send(installation: Installation, project: Path) -> str:
    """Bring the copy up to date; its folder on the login node.

    Raises:
        UsageError: there is too much that git does not track; the message says what to do.
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
