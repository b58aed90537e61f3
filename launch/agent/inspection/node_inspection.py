"""An agent's part of an inspection: it asks its workers, and looks whether they get anywhere."""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.agent.inspection import local_workers
from launch.agent.membership.peers import Peers
from launch.agent.processes.activity import Activity

LOOK_S = 0.2
CLOSELY_S = 3.0  # for a worker that looks at itself many times
Reply = Callable[[dict[str, Any]], None]


class NodeInspection:
    """Of the workers of one node; `reply` sends to the leader of the run."""

    def __init__(
        self, folder: Path, index: int, node: str, reply: Reply, hang_after_s: float | None
    ) -> None:
        folder.mkdir()
        self.folder = folder
        self.ranks: Sequence[int] = ()
        self._peers: Peers | None = None
        self._index, self._node = index, node
        self._reply = reply
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._activity, self._sampled = Activity(), time.monotonic()
        self._every_s = min(max((hang_after_s or 60.0) / 6, 1.0), 10.0)
        self._samples = hang_after_s != 0
        self._looked, self._has_given_up, self._has_ended = 0.0, False, False

    def begin(self, peers: Peers) -> None:
        """The workers are started, and the other agents are known."""
        self._peers, self.ranks = peers, peers.ranks

    def sees_workers(self) -> bool:
        """Whether any of them has not ended yet."""
        return bool(local_workers.pids_of(self.folder, self.ranks))

    def hear(self, request: Mapping[str, Any]) -> None:
        """Begin to do what is asked; the answer comes with a later tick."""
        match request.get("ask"):
            case "stacks":
                threading.Thread(target=self._ask, args=(request,), daemon=True).start()
            case "resume":
                for path in self.folder.glob("*.gave_up"):
                    path.unlink(missing_ok=True)
                self._has_given_up = False

    def tick(self) -> None:
        """Send what has come; look whether a worker waits to be looked at."""
        if self._peers is None:
            return
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._looked = now
            if not self._has_given_up and any(self.folder.glob("*.gave_up")):
                self._has_given_up = True
                self._reply(self._message("timeout", look=True))
        if self._samples and now - self._sampled > self._every_s:
            self._sampled = now
            threading.Thread(target=self._sample, daemon=True).start()
        while not self._answers.empty():
            self._reply(self._answers.get())

    def last_look(self) -> None:
        """What workers do that are about to be ended; once, and stays until they have answered."""
        if not self._has_ended:
            self._has_ended = True
            self._ask({"id": "end", "ask": "stacks"}, local_workers.HURRIED_S)
            self.tick()

    def _ask(self, request: Mapping[str, Any], patience_s: float = local_workers.ANSWER_S) -> None:
        with self._activity.disturbed():
            reports = local_workers.ask(self.folder, self.ranks, patience_s, ask=request["ask"])
        for report in reports.values():
            report["clock_offset_s"] = self._peers.clock_offset_s if self._peers else 0.0
            self._answers.put(self._message(str(request["id"]), report=report))
        self._answers.put(self._message(str(request["id"]), complete=True))

    def _sample(self) -> None:
        """Say since when no worker has got anywhere."""
        closely = self._activity.still_s > self._every_s  # only where nothing else shows it
        progress = local_workers.ask(
            self.folder, self.ranks, CLOSELY_S, ask="progress", closely=closely
        )
        self._activity.look(local_workers.pids_of(self.folder, self.ranks), progress)
        still = {"s": self._activity.still_s, "pause_s": self._activity.longest_pause_s}
        self._answers.put(self._message("still", still=still))

    def _message(self, name: str, **more: Any) -> dict[str, Any]:
        return {"id": name, "index": self._index, "node": self._node, **more}
