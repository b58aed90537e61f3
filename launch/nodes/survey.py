"""Ask all nodes the same questions at the same time, over one connection to each.

How it works: a `Transport` has the commands that start Python on the nodes: through ssh, as one
srun step, or here. Each process gets the text of `resources` and `node_facts` through stdin, and
then one question after another. `ask` sends the name of one of their functions and its arguments,
and collects each node's result. Nothing is installed or left on a node. A probe ends when its stdin
ends, so nothing keeps running there when this process is gone.

Nodes may appear and disappear in the meantime. Only an answer to the latest question counts.
Otherwise an answer that is later than `timeout_s` would be taken for the answer to the next
question. A command's end is checked before its output is read, so that a last answer is not lost.

A node can only answer for itself: the connection identifies the node. srun has one connection for
all nodes, so there an answer names its node. If an answer does not fit its type, or has no end, the
node counts as not answering, and nothing more is accepted from it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from msgspec.json import Decoder

from launch.deadlines import BEAT_EVERY_S, NODE_ANSWERS_SURVEY_S, NODE_LEAVES_SURVEY_S
from launch.nodes import node_facts, resources
from launch.nodes.answers import Part, Probe, Reply, answer_to, reply_in
from launch.nodes.channel import MESSAGE_MARK, Channel, running_s, start_with_pipes, wait_for_news
from launch.nodes.messages import OddMessage, quoted
from launch.nodes.scheduler import SchedulerJob, job_class
from muster.checkout import CHECKOUT, IS_INSTALLED, own_python
from muster.errors import MusterError
from muster.printable import printable
from muster.run_files import own_logs
from muster.terminal import TIP

# The first line of stdin is the size of the text that follows; the rest is for the probe.
LOST_INPUT = "a part of its input is lost"
LOAD = (
    "import sys; sys.version_info < (3, 8) and sys.exit('python3 is older than 3.8 there');"
    " stdin = sys.stdin.buffer; size = stdin.readline().strip();"
    f" size.isdigit() or sys.exit('{LOST_INPUT}');"
    " exec(compile(stdin.read(int(size)), 'node_facts', 'exec'))"
)
# What else may read a command's input, or print before the command, and what to do about that.
START_UP = "the start-up file of its login shell, such as ~/.bashrc,"
ONLY_BY_HAND = "let it do that only in interactive shells: [[ $- == *i* ]] || return"
# The code's folder in the home of a node that does not see this machine's files. A user of an
# installation may also have a clone.
FOLDER = ".muster/checkout" if IS_INSTALLED else "muster"
# The maximum lengths of an answer, and of the reason for a failure.
ANSWER_CHARACTERS = 1_000_000
FAILED_CHARACTERS = 1_000
ERROR_BYTES = 65_536  # read from the beginning of a command's stderr, and from its end
NO_ANSWER = "its answer is not valid"
LOOK = "check python3 and the login shell on that node"

# Part of the line about such a node, by which `refuse_broken` recognises it.
CONNECTION_BROKE = "the connection to it was lost"


class ConnectionBroken(MusterError):
    """An open connection broke while nodes were being asked; another try may succeed."""


@dataclass(frozen=True)
class Transport:
    """Commands that start a probe on each node: one for each, or one that starts them all.

    `explain` makes one line about a command that ended too early. Its arguments are the node's
    index, and the command's exit code and stderr.
    """

    names: Sequence[str]  # of the nodes, in messages
    commands: Sequence[Sequence[str]]
    explain: Callable[[int, int, str], str]
    env: Mapping[str, str] | None = None  # None: the environment of this process
    renames: bool = True  # use the host names from the answers, if they differ
    job: type[SchedulerJob] | None = None  # the class of the job that the nodes are in
    means: str = ""  # how the nodes are reached, in messages; "": by the launcher's name


@dataclass(frozen=True)
class Answer:
    """The result of a node's function, and when it was asked for and received, by our clock."""

    value: Any
    asked_unix_s: float
    heard_unix_s: float


def last_line(text: str, none: str = "no message") -> str:
    """The last line of a command's output, which usually has the reason for a failure."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), none)


class Survey:
    """The probes on all nodes, from their start to their end."""

    def __init__(self, transport: Transport, *more: ModuleType) -> None:
        """`more`: further modules like `node_facts`, whose functions may be asked."""
        self.transport = transport
        # the text must begin with the first module's __future__ import; the last module answers
        self._modules = (resources, *more, node_facts)
        self._number = 0  # of the latest question
        self._timeout_s = NODE_ANSWERS_SURVEY_S  # of that question
        self._parts: dict[int, str] = {}  # of an incomplete answer, by node
        self._failed: dict[int, str] = {}  # the error in the latest function, by node
        self._odd: dict[int, str] = {}  # what a node has sent that is not an answer, by node
        self._starts: list[tuple[subprocess.Popen[bytes], Channel, IO[bytes]]] = []

    @property
    def names(self) -> Sequence[str]:
        """All nodes that are asked, as their transport names them."""
        return self.transport.names

    def __enter__(self) -> "Survey":
        source = b"\n".join(Path(str(each.__file__)).read_bytes() for each in self._modules)
        try:
            for command in self.transport.commands:
                errors = tempfile.TemporaryFile()  # stays open as long as the probe runs
                process, channel = start_with_pipes(
                    command, errors, Decoder(Part).decode, env=self.transport.env
                )
                self._starts.append((process, channel, errors))
                channel.write(b"%d\n%s" % (len(source), source))
        except BaseException:  # a probe could not start, so the earlier ones end
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for _, channel, _ in self._starts:
            channel.close()  # then its probes end
        processes = [process for process, _, _ in self._starts]
        for number in (0, signal.SIGTERM, signal.SIGKILL):  # 0 is no signal
            deadline = running_s() + NODE_LEAVES_SURVEY_S  # for all of them together
            for process in processes:
                process.send_signal(number)  # but to none that has ended
            for process in processes:
                with suppress(subprocess.TimeoutExpired):  # it may wait for a disk for ever
                    process.wait(max(0.0, deadline - running_s()))
        for _, _, errors in self._starts:
            errors.close()

    def ask(
        self,
        function: Callable[..., Any],
        of: Collection[int] | None = None,
        timeout_s: float = NODE_ANSWERS_SURVEY_S,
        **arguments: Any,
    ) -> dict[int, Answer]:
        """The results of `function(arguments)`, by node, from the nodes that answered in time.

        `function` belongs to `node_facts`, to `resources` or to one of the additional modules.
        `of`: the nodes to wait for, if others have never answered; None: all nodes.
        """
        self._number += 1
        self._timeout_s = timeout_s
        self._failed.clear()
        wanted = set(range(len(self.transport.names)) if of is None else of)
        asked_unix_s = time.time()
        deadline = running_s() + timeout_s
        question = {"number": self._number, "function": function.__name__, **arguments}
        channels = [channel for _, channel, _ in self._starts]
        for channel in channels:
            channel.write(MESSAGE_MARK + json.dumps(question).encode() + b"\n")
        answers: dict[int, Answer] = {}
        while left := wanted - answers.keys() - self._failed.keys() - self._odd.keys():
            all_ended = all(self._started_for(index)[1].ended for index in left)
            left_s = deadline - running_s()
            is_over = all_ended or left_s <= 0
            if not is_over:  # never for long, since `running_s` relies on regular looks
                wait_for_news(channels, min(left_s, BEAT_EVERY_S))
            for node, part in self._received():
                try:
                    reply = self._complete_reply(node, part)
                    if reply is None or reply.to != self._number:
                        continue
                    if reply.failed:
                        self._failed[node] = reply.failed
                    else:
                        value = answer_to(function, reply.value)
                        answers[node] = Answer(value, asked_unix_s, time.time())
                except OddMessage as error:
                    self._ignore(node, str(error))
            if is_over:
                break
        return answers

    def probes(self, request: Mapping[str, Any]) -> tuple[dict[int, Probe], dict[int, str]]:
        """The facts about each node, and a line with the reason for each that does not answer.

        A run must not write into an installation. So if only some nodes see the installation, all
        nodes count as nodes with their own disks.
        """
        job = self.transport.job
        request = {**request, "origin": job.origin_variable if job else ""}
        answers = self.ask(node_facts.describe, request=request)
        if IS_INSTALLED and len({answer.value.shared for answer in answers.values()}) > 1:
            answers = self.ask(node_facts.describe, request={**request, "disk_marker": ""})
        probes = {index: answers[index].value for index in sorted(answers)}
        return probes, self.silent(answers)

    def silent(self, answers: Mapping[int, Answer]) -> dict[int, str]:
        """One line for each node without an answer: the reason, and what to do."""
        nodes = range(len(self.transport.names))
        return {index: self._why_silent(index) for index in nodes if index not in answers}

    def refuse_broken(self, nodes: Iterable[int]) -> None:
        """Stop if the connection to one of these nodes has broken.

        Raises:
            ConnectionBroken: a line for each.
        """
        ended = [index for index in nodes if self._started_for(index)[1].ended]
        lines = [self._why_silent(index) for index in ended]
        if broken := [line for line in lines if CONNECTION_BROKE in line]:
            raise ConnectionBroken("\n".join(broken))

    def names_of(self, probes: Mapping[int, Probe]) -> list[str]:
        """The names of the nodes that answered."""
        names = [probe.host.partition(".")[0] for probe in probes.values()]
        if self.transport.renames and len(set(names)) == len(names):
            return names
        return [self.transport.names[index] for index in probes]

    def _started_for(self, index: int) -> "tuple[subprocess.Popen[bytes], Channel, IO[bytes]]":
        """The process that was started for a node, or for all nodes."""
        return self._starts[min(index, len(self._starts) - 1)]

    def _why_silent(self, index: int) -> str:
        name = self.transport.names[index]
        if index in self._failed:
            failed = printable(self._failed[index][:FAILED_CHARACTERS])
            return f"{name}: its Python could not examine the node: {failed}"
        if index in self._odd:
            return f"{name}: {NO_ANSWER}: {self._odd[index]}{TIP}{LOOK}"
        process, channel, errors = self._started_for(index)
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(NODE_LEAVES_SURVEY_S if channel.ended else 0)
            lines = [*channel.noise, _begin_and_end_of(errors)]
            return printable(self.transport.explain(index, code, "\n".join(lines)))
        if channel.ended:
            return f"{name}: {NO_ANSWER}: {quoted(' '.join(channel.noise))}{TIP}{LOOK}"
        return (
            f"{name}: no answer within {self._timeout_s:.0f} s; is it overloaded, or does "
            "the start-up file of its login shell, such as ~/.bashrc, wait for input?"
        )

    def _received(self) -> Iterator[tuple[int, Part | OddMessage]]:
        """The new parts of replies, each with its node."""
        for index, (_, channel, _) in enumerate(self._starts):
            for part in channel.receive():
                node = index if self._is_alone(index) else self._node_named_in(part)
                if node is not None and node not in self._odd:
                    yield node, part

    def _is_alone(self, index: int) -> bool:
        """Whether a node has a connection of its own."""
        return index < len(self._starts) - 1 or len(self._starts) == len(self.transport.names)

    def _node_named_in(self, part: Part | OddMessage) -> int | None:
        """The node that a part names; None if there is no node with that number."""
        numbers = {str(index): index for index in range(len(self.transport.names))}
        return numbers.get(part.node) if isinstance(part, Part) else None

    def _complete_reply(self, node: int, part: Part | OddMessage) -> Reply | None:
        """The complete reply if this is its last part, or None.

        Raises:
            OddMessage: the reply is not valid.
        """
        if isinstance(part, OddMessage):
            raise part
        text = self._parts.get(node, "") + part.part
        if len(text) > ANSWER_CHARACTERS:
            raise OddMessage(f"it does not end: {quoted(text)}")
        if part.more:
            self._parts[node] = text
            return None
        self._parts.pop(node, None)
        return reply_in(text)

    def _ignore(self, node: int, reply: str) -> None:
        """Accept nothing more from a node, because of `reply`."""
        self._odd[node] = reply
        self._parts.pop(node, None)
        if self._is_alone(node):
            self._starts[node][1].close()  # then its probe ends


def _begin_and_end_of(errors: IO[bytes]) -> str:
    """What a command has written to its stderr; only the beginning and the end of a long text."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(0)
    begin = errors.read(ERROR_BYTES)
    errors.seek(max(len(begin), size - ERROR_BYTES))
    return (begin + errors.read(ERROR_BYTES)).decode(errors="replace")


def local_transport(count: int) -> Transport:
    """The transport to nodes that are processes on this machine: local runs simulate several."""

    def explain(index: int, code: int, error_text: str) -> str:
        return f"node{index}: python failed: {last_line(error_text)}\ntip: see above"

    names = [f"node{index}" for index in range(count)]
    commands = [(sys.executable, "-c", LOAD, str(index)) for index in range(count)]
    job = job_class(os.environ)
    return Transport(names, commands, explain, renames=False, job=job, means="a local process")


@contextmanager
def facts_request(
    folder: str | None = None,
    python: str | None = None,
    disks: Mapping[str, Path] | None = None,
    workers: str | None = None,
) -> Iterator[dict[str, Any]]:
    """The arguments for `node_facts.describe`, for the checkout in `folder` and its Python.

    `disks`: folders that a run writes to and reads from, by their use. `workers`: the workers'
    Python, if it is a different one.

    A node sees this machine's files if it sees a file that is created for the question. An equal
    path proves nothing, since machines with the same image have the same paths. If the folder for
    the file cannot be written, a temporary file is used, which only this machine sees. Then the
    code is sent to the other nodes.

    Nothing is written into an installation. The file is then created where the run folders are, and
    the node must also have the same installation in the same place.
    """
    name = f".shared-{os.urandom(8).hex()}"
    marker = _runs_folder() / name
    try:
        marker.parent.mkdir(exist_ok=True)
        marker.touch()
    except OSError:
        marker = Path(tempfile.gettempdir(), name)
        marker.touch()
    try:
        yield {
            "folder": folder or FOLDER,
            "named": folder is not None,
            "disk_marker": str(marker),
            "origin": "",
            "here": str(CHECKOUT),
            "own_python": own_python(),
            "code": _installed_code(),
            "python": python or os.environ.get("MUSTER_PYTHON"),
            "workers": workers,
            "disks": {name: str(path) for name, path in (disks or {}).items()},
        }
    finally:
        marker.unlink(missing_ok=True)


def _runs_folder() -> Path:
    """The folder of run folders, or its parent if an installation has not created it yet."""
    if not IS_INSTALLED:
        return CHECKOUT / "logs"
    logs = own_logs()
    return logs if logs.is_dir() else logs.parent


def _installed_code() -> list[str]:
    """The path and digest of pip's list of an installation's files; empty for a checkout."""
    if not IS_INSTALLED:
        return []
    lists = CHECKOUT.parent.parent.glob("muster-*.dist-info/RECORD")
    path = next(lists, CHECKOUT / "setup.cfg")  # unpacked by hand
    return [str(path), sha256(path.read_bytes()).hexdigest()]
