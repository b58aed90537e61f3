"""All nodes are asked the same at once, and each that can answers."""

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from launch.checks import remote_probe
from launch.checks.transports import Transport
from launch.nodes.channel import Channel

TICK_S = 0.001  # the clocks are compared through it
END_S = 3.0


@dataclass(frozen=True)
class Answer:
    """What a node said, and when it was asked and heard, by the clock here."""

    reply: dict[str, Any]
    asked_unix_s: float
    heard_unix_s: float


class Survey:
    """The guests on all nodes, from their start to their end."""

    def __init__(self, transport: Transport) -> None:
        self._way = transport
        self._number = 0
        self._parts: dict[int, str] = {}
        self._starts: list[tuple[subprocess.Popen[bytes], Channel, IO[bytes]]] = []

    def __enter__(self) -> "Survey":
        source = Path(remote_probe.__file__).read_bytes()
        for command in self._way.commands:
            errors = tempfile.TemporaryFile()  # open as long as the guest
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._way.env,
            )
            assert process.stdin is not None and process.stdout is not None
            reads, writes = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
            process.stdin.close()
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):  # it has failed already, and will say why
                os.write(writes, b"%d\n%s" % (len(source), source))  # less than a pipe holds
            self._starts.append((process, Channel(reads, writes), errors))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _, channel, _ in self._starts:
            channel.close()  # whereupon its remote probes end
        deadline = time.monotonic() + END_S
        for process, _, errors in self._starts:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()
            errors.close()

    def ask(
        self, timeout_s: float, of: Collection[int] | None = None, **message: Any
    ) -> dict[int, Answer]:
        """The answers by node, of those that answered within `timeout_s` seconds.

        `of`: the nodes to wait for, as others have never answered; None: all.
        """
        wanted = set(range(self._way.count) if of is None else of)
        self._number += 1
        asked, deadline = time.time(), time.monotonic() + timeout_s
        for _, channel, _ in self._starts:
            channel.send(**message, number=self._number)
        answers: dict[int, Answer] = {}
        while not wanted <= answers.keys() and time.monotonic() < deadline:
            over = all(channel.ended for _, channel, _ in self._starts)
            for _, channel, _ in self._starts:
                for part in channel.receive():
                    reply = self._whole(part)
                    # an answer that came too late is to another question
                    if reply is not None and reply["to"] == self._number:
                        answers[part["node"]] = Answer(reply, asked, time.time())
            if over or self._missing_are_gone(answers):
                break
            time.sleep(TICK_S)
        return answers

    def silence(self, index: int) -> str:
        """One line on why node `index` does not answer, and what to do."""
        process, channel, errors = self._starts[min(index, len(self._starts) - 1)]
        if process.poll() is None and not channel.ended:
            return f"node {index}: no answer; is it overloaded, or does its login shell ask?"
        errors.seek(0)
        reply = errors.read().decode(errors="replace")
        return self._way.explain(index, "\n".join([*channel.noise, reply]))

    def _missing_are_gone(self, answers: dict[int, Answer]) -> bool:
        if len(self._starts) < self._way.count:
            return False
        channels = [channel for _, channel, _ in self._starts]
        return all(channel.ended for index, channel in enumerate(channels) if index not in answers)

    def _whole(self, part: dict[str, Any]) -> dict[str, Any] | None:
        index = part["node"]
        self._parts[index] = self._parts.get(index, "") + part["part"]
        if part["more"]:
            return None
        message: dict[str, Any] = json.loads(self._parts.pop(index))
        return message
