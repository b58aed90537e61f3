"""Ask a run something through its folder, from any machine that sees it.

How it works: who asks makes an empty file for the answer and appends a line to requests.jsonl,
which the leader of the run reads twice a second. The answer is appended to the first file. Both
files are opened again for each look, so that a file server's cache is not in between, and neither
is ever replaced. Nothing that is read is run: a request names one of a few things, in JSON.
"""

import json
import secrets
import time
from pathlib import Path
from typing import Any

from muster import json_lines
from muster.errors import MusterError
from muster.run_files import ANSWER, REQUESTS

LOOK_S = 0.5
ASK_S = 0.1
LINE_BYTES = 100_000


class RequestFile:
    """The requests of one run, as the one that leads it sees them; those before are not its."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._path = REQUESTS.path(run_dir)
        self._read = self._path.stat().st_size if self._path.exists() else 0
        self._looked = 0.0
        try:  # it is there from the start: that it is not is what file servers remember
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        except OSError:
            pass

    def new(self) -> list[dict[str, Any]]:
        """Those that have come since."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return []
        self._looked = now
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read(LINE_BYTES)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        ids = ((one, one.get("id")) for one in json_lines.objects(whole))
        return [one for one, name in ids if isinstance(name, str) and name.isalnum()]

    def answer(self, request: str, **message: Any) -> None:
        """Append a line to the answer; whoever asked may have gone."""
        path = ANSWER.path(self._run_dir, name=request)
        try:
            with path.open("r+b") as file:
                file.seek(0, 2)
                file.write(json.dumps(message).encode() + b"\n")
        except OSError:
            return


class Asking:
    """One question to a run, and its answer.

    Raises:
        MusterError: on creation; the run folder cannot be written.
    """

    def __init__(self, run_dir: Path, **request: Any) -> None:
        self._id = secrets.token_hex(6)
        self._path = ANSWER.path(run_dir, name=self._id)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            with REQUESTS.path(run_dir).open("ab") as file:
                file.write(json.dumps({"id": self._id, **request}).encode() + b"\n")
        except OSError as error:
            raise MusterError(f"{self._path.parent}: {error.strerror}") from None

    def wait(self, timeout_s: float) -> dict[str, Any] | None:
        """The answer; None if none comes in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            line, end, _ = self._path.read_bytes().partition(b"\n")
            if end:
                return dict(json.loads(line))
            time.sleep(ASK_S)
        return None

    def close(self) -> None:
        """Remove the answer."""
        self._path.unlink(missing_ok=True)
