"""What a node may answer before a run: a class is an answer's type, check and description.

A node answers a question with a function of `node_facts`, `resources` or `node_data`; `ANSWERS` has
the type of each function's answer. A node may only report facts about itself. If an answer does not
fit its type, or has a text that cannot be printed on one line, the node counts as not answering.
"""

import ipaddress
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from launch.nodes import node_data, node_facts, resources
from launch.nodes.messages import REFUSED, HostName, Line, OddMessage, Port, Size, odd, quoted

MOST_GPUS = 1_024  # on one node
MOST_CPUS = 65_536

NodeNumber = Annotated[str, Meta(pattern=r"\A[0-9]{1,6}\Z")]


class Reported(Struct, frozen=True, forbid_unknown_fields=True):
    """Something that a node reports about itself."""


class Part(Reported, frozen=True):
    """A part of a reply, short enough for srun to pass it on in one piece."""

    node: str  # only used if nodes share a connection
    part: str
    more: bool


class Reply(Reported, frozen=True):
    """The complete reply to a question: the result of the function, or why it has failed."""

    to: int  # the number of the question
    value: Raw = Raw(b"null")  # see `answer_to`, which refuses null
    failed: str = ""


class Versions(Reported, frozen=True):
    """The versions of a Python and of packages; None for a package that it does not have."""

    python: Line
    packages: dict[Line, Line | None]
    plugins: tuple[Line, ...]  # what its packages add to Muster, such as muster.tasks:spirals


class Interface(Reported, frozen=True):
    """An address of the node, and the network card that has it."""

    name: Line
    address: Line
    netmask: Line

    def __post_init__(self) -> None:
        ipaddress.ip_network(f"{self.address}/{self.netmask}", strict=False)


class Disk(Reported, frozen=True):
    """A folder that a run writes to or reads from, and the space on its disk."""

    folder: Line
    exists: bool
    free_bytes: Size


class Probe(Reported, frozen=True):
    """The facts about a node that checks and launchers need."""

    host: HostName
    shared: bool  # it sees this machine's files
    folder: Line  # of its checkout
    python: Line  # for agents
    versions: Versions | None  # of that Python; None: it does not start
    workers: Versions | None  # of the workers' Python, if it is another one and starts
    foreign: tuple[Line, ...]  # names in the folder, if Muster did not send its content
    interfaces: tuple[Interface, ...]
    came_by: tuple[Line, ...]  # its address in this ssh connection
    towards_origin: Line | None  # in a scheduler's job, its address on the way to who asks it
    has_rsync: bool
    disks: dict[Line, Disk]  # by their use
    gpus: Annotated[tuple[Line, ...], Meta(max_length=MOST_GPUS)]  # a line for each


class NodeResources(Reported, frozen=True):
    """What the workers on the node share."""

    shared_memory: resources.SharedMemory | None
    cores: resources.Cores

    def __post_init__(self) -> None:
        cores, limit = self.cores
        if not cores or not all(cores) or sum(map(len, cores)) > MOST_CPUS:
            raise ValueError("no such cores")
        if min(map(min, cores)) < 0 or (limit is not None and limit < 0):
            raise ValueError("negative numbers of cores")
        if self.shared_memory is not None and min(self.shared_memory) < 0:
            raise ValueError("negative numbers of bytes")


class Outcome(Reported, frozen=True):
    """Whether the node has done what it was asked to do."""

    failed: Line = ""  # why it has not


class Claim(Outcome, frozen=True):
    """Whether the folder for the code is now marked as Muster's."""

    foreign: tuple[Line, ...] = ()  # if it is not, the names of other content in it


class LeftFolder(Reported, frozen=True):
    """A folder that was sent to the node for a run; without a run, a killed process has left it."""

    path: Line
    run: Line
    bytes: Size
    used: bool


class DataPlace(Outcome, frozen=True):
    """The place for the data of --send on the node, and whether the data is complete there."""

    place: Line = ""
    complete: bool = False


class DataClaim(Outcome, frozen=True):
    """Whether this run has claimed the place, to send data there."""

    state: Literal["", "claimed", "taken", "complete"] = ""


class DataCopy(Outcome, frozen=True):
    """Whether the node's own copy of the data has ended."""

    is_over: bool = False
    error: Line = ""


class ClearedDisk(Outcome, frozen=True):
    """Whether the node's disk was full, so that the partial copy was removed."""

    full: bool = False


class LeftData(Reported, frozen=True):
    """A folder with data that --send has created on the node."""

    path: Line
    bytes: Size
    whole: bool  # otherwise a part, from an interrupted transfer
    used: bool


ANSWERS: dict[Callable[..., Any], Any] = {
    node_facts.describe: Probe,
    resources.node_resources: NodeResources,
    node_facts.claim: Claim,
    node_facts.claimed_by: tuple[NodeNumber, ...],
    node_facts.leftovers: tuple[LeftFolder, ...],
    node_facts.remove_leftovers: dict[Line, Line],  # errors, by path
    node_data.find_destination: DataPlace,
    node_data.claim_destination: DataClaim,
    node_data.renew_claim: DataCopy,
    node_data.clear_full_disk: ClearedDisk,
    node_data.finish_transfer: Outcome,
    node_data.data_left: tuple[LeftData, ...],
    node_data.remove_data: dict[Line, Line],  # errors, by path
    node_facts.tell_time: float,
    node_facts.listen: Port,
    # by the other node's number: an error or "", and the seconds until it was connected
    node_facts.connect: dict[NodeNumber, tuple[Line, float | None]],
}


def answer_to(function: Callable[..., Any], value: Raw) -> Any:
    """The result of a node's function, as its type in `ANSWERS`.

    Raises:
        OddMessage: it is not of that type.
    """
    try:
        answer = msgspec.json.decode(value, type=ANSWERS[function])
    except REFUSED as error:
        raise odd(error, bytes(value)) from None
    # a Line has no control characters; this also refuses other invisible characters
    if not (text := msgspec.json.encode(answer).decode()).isprintable():
        raise OddMessage(f"a text that cannot be printed: {quoted(text)}")
    return answer


def reply_in(text: str) -> Reply:
    """The reply in a text.

    Raises:
        OddMessage: there is none.
    """
    try:
        return msgspec.json.decode(text, type=Reply)
    except REFUSED as error:
        raise odd(error, text.encode()) from None
