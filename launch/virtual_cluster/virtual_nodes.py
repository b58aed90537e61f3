"""The options of a testbed, its nodes, and the record of who made it.

A machine has at most one testbed, and only one process at a time makes or removes it. Every user
can read who made it.

A node's names, addresses and cores follow from its number.
"""

import fcntl
import json
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from muster.writing import write_json

STATE = Path("/run/muster-testbed")
RECORD = STATE / "testbed.json"
LOGS = STATE / "log"
UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# At a lower rate a packet of 1500 bytes takes longer than Slurm and ssh wait for an answer.
LEAST_RATE = 64 * UNITS["kbit"]
MOST_RATE = 100 * UNITS["gbit"]
EXPERIMENT_NET = "10.10.1"
CONTROL_NET = "192.168.77"
EXPERIMENT_NET_6 = "fd00:10:10:1::"
BOX = 254  # the number of the machine itself, on each of the two networks


@dataclass(frozen=True)
class Options:
    """The options of a testbed; two testbeds with equal options are the same."""

    nodes: int = 4
    rate: int | None = None  # bits per second of each link; None: no limit
    control_network: bool = False
    ipv6: bool = False  # no IPv4 on the experiment network; then there is a control network
    gpus: int = 0  # fake GPUs of each node, for Slurm
    private_home: bool = False
    venv: str | None = None  # visible in a private home; None: there is none

    def __str__(self) -> str:
        flags = [f"--nodes {self.nodes}"]
        flags += [f"--rate {rate_text(self.rate)}"] if self.rate else []
        flags += [f"--gpus {self.gpus}"] if self.gpus else []
        switches = "ipv6" if self.ipv6 else "control_network", "private_home"
        flags += [f"--{name.replace('_', '-')}" for name in switches if getattr(self, name)]
        flags += [f"with {self.venv}"] if self.venv else []
        return " ".join(flags)


def rate(text: str) -> int:
    """Bits per second, for the flag --rate.

    Raises:
        ArgumentTypeError: `text` is not a rate that links can have.
    """
    bits = rate_bits(text)
    if not (bits and LEAST_RATE <= bits <= MOST_RATE):
        raise ArgumentTypeError(
            f"{text!r}: expected a speed from {rate_text(LEAST_RATE)} to {rate_text(MOST_RATE)}, "
            "such as 100mbit or 1gbit; without it, links are not limited"
        )
    return bits


def rate_bits(text: str) -> int | None:
    """Bits per second of `text` like 1gbit, in tc's form; None if it is not a rate."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(kbit|mbit|gbit)", text.lower())
    return round(float(match[1]) * UNITS[match[2]]) if match else None


def rate_text(bits: int) -> str:
    """`bits` per second in the largest unit without a fraction: 1gbit, 100mbit."""
    unit = max((unit for unit in UNITS if UNITS[unit] <= bits), key=UNITS.__getitem__)
    return f"{bits / UNITS[unit]:.6g}{unit}"


@dataclass(frozen=True)
class VirtualNode:
    """One host of the testbed."""

    number: int
    address: str  # on the experiment network, where training traffic goes
    control: str | None  # on the control network, if the testbed has one
    cores: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"node{self.number}"

    def daemon(self, kind: str) -> str:
        """The name of one of the node's daemons; `kind` is, for example, sshd."""
        return f"{self.name}.{kind}"

    @property
    def netns(self) -> str:
        return f"muster-{self.name}"

    @property
    def resolved_address(self) -> str:
        """The address to which the node's name resolves."""
        return self.control or self.address

    @property
    def slurm_address(self) -> str:
        """The address for Slurm, which would need a setting to use IPv6."""
        return self.resolved_address if ":" in self.address else self.address


@dataclass(frozen=True)
class ClusterState:
    """Who made the testbed, its options, and whether it is complete."""

    checkout: str
    holder: str  # who made it, and when
    options: Options
    cores: tuple[int, ...]
    ready: bool = False

    @property
    def nodes(self) -> list[VirtualNode]:
        """The nodes of the testbed; each has its share of the cores."""
        options = self.options
        cores = self.cores
        share = max(1, len(cores) // options.nodes)
        net = EXPERIMENT_NET_6 if options.ipv6 else EXPERIMENT_NET + "."
        return [
            VirtualNode(
                number=number,
                address=f"{net}{number + 1}",
                control=f"{CONTROL_NET}.{number + 1}" if options.control_network else None,
                cores=tuple(cores[(number * share + i) % len(cores)] for i in range(share)),
            )
            for number in range(options.nodes)
        ]


@contextmanager
def locked() -> Iterator[None]:
    """A context that holds the lock of the machine's testbed, and waits for it if necessary."""
    descriptor = os.open(STATE.parent, os.O_RDONLY)  # this folder exists before and after a testbed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_state() -> ClusterState | None:
    """The recorded testbed; None if there is none, or it cannot be read."""
    try:
        record = json.loads(RECORD.read_text(encoding="utf-8"))
        options = Options(**record.pop("options"))
        cores = tuple(record.pop("cores"))
        return ClusterState(**record, options=options, cores=cores)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_state(cluster: ClusterState) -> None:
    """Record `cluster`, so that a crash leaves the old or the new record, never half of one."""
    write_json(RECORD, asdict(cluster))
