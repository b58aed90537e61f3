"""The types of the messages between a run's leader and its agents, after their forms were checked.

The forms, and what each message is for, are in channel.py. A message is checked by its form. The
types here are for readers of the code, and for mypy.
"""

from collections.abc import Mapping
from typing import Literal, Protocol, TypedDict


class Listening(TypedDict):
    """Where node 0 listens."""

    address: str
    port: int


class ConnectionEnds(TypedDict):
    """A connection of two nodes, by the address and the port of either end."""

    own: tuple[str, int]
    peer: tuple[str, int]


class BrokenConnection(ConnectionEnds):
    """A connection that has ended."""

    how: Literal["closed", "silent"]


class Here(TypedDict, total=False):
    """Which node an agent is on, at which address, and the cores of its workers in words."""

    node: str
    ranks: list[int]
    cores: str
    host: str
    address: str
    interface: str | None


class Frame(TypedDict, total=False):
    """A line in which a thread is."""

    file: str
    line: int | None
    function: str
    text: str
    for_s: float


class Thread(TypedDict):
    """The lines in which a thread is, the innermost line last."""

    name: str
    main: bool
    frames: list[Frame]


class GaveUp(TypedDict, total=False):
    """A collective in which a rank has waited in vain."""

    message: str
    frames: list[Frame]


class GroupReport(TypedDict, total=False):
    """One of torch's process groups."""

    ranks: list[int]
    begun: int


class CollectiveReport(TypedDict):
    """A collective that a rank has begun."""

    group: str
    description: str
    number: int
    operation: str
    shapes: list[list[int]]
    types: list[str]
    waits: bool
    begun_unix_s: float
    age_s: float
    limit_s: float


class InitCallReport(TypedDict):
    """A rank in `init_process_group`."""

    rank: int | None
    world_size: int | None
    store: str
    serves: bool
    by_launcher: bool
    method: str


class ChildReport(TypedDict):
    """A process that a worker's program has started, as the kernel sees it."""

    pid: int
    words: str


class ProcessReport(TypedDict, total=False):
    """A worker, as the kernel sees it."""

    status: str
    words: str
    children: list[ChildReport]


class Report(TypedDict, total=False):
    """What one rank does: its own answer, and what its agent sees."""

    rank: int
    pid: int | None
    time_unix_s: float
    answers: bool
    clock_offset_s: float
    muster: str
    process: ProcessReport
    is_command: bool
    begun: int
    places: list[int]
    gave_up: GaveUp | None
    threads: list[Thread]
    groups: dict[str, GroupReport]
    collectives: list[CollectiveReport]
    meeting: InitCallReport | None


class Still(TypedDict):
    """For how long no worker of a node has made progress, and their longest pause until now."""

    s: float
    pause_s: float


class Inspected(TypedDict, total=False):
    """A part of an agent's answer to a question, or what it reports without a question."""

    id: str
    still: Still
    look: bool
    report: Report
    complete: bool


class Question(TypedDict):
    """What an agent has to look at."""

    id: str
    ask: str


class AgentEnd(TypedDict, total=False):
    """The record of an agent's end."""

    code: int


class AgentMessage(TypedDict, total=False):
    """What an agent says."""

    beat: float
    stands_s: float
    waits_for: str
    listening: Listening
    accepted: ConnectionEnds
    connected: ConnectionEnds
    unreached: str
    broken: BrokenConnection
    master_port: int
    here: Here
    notes: list[str]
    file: str
    at: int
    data: str
    last: bool
    inspected: Inspected
    stopping: float
    all: bool
    done: bool
    failed: Mapping[str, object]
    worker_end: Mapping[str, object]
    ended: AgentEnd
    leaves: bool


class LeaderMessage(TypedDict, total=False):
    """What a leader says."""

    beat: float
    assignment: Mapping[str, object]
    proof: str
    connect: Listening
    keep: ConnectionEnds
    choose_port: bool
    start: int
    notice: bool
    stop: int
    why: str
    signal: str
    hurry: bool
    lost: str
    inspect: Question
    go: bool


class Send(Protocol):
    """Send a message to the other side; its values are by their names."""

    def __call__(self, **message: object) -> None: ...
