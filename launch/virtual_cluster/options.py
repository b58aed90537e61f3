"""The options of a testbed, checked completely before anything is made."""

import re
from argparse import ArgumentTypeError
from dataclasses import dataclass

UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# Below it a single packet of 1500 bytes takes longer than Slurm and ssh wait for an answer.
LEAST_RATE = 64 * UNITS["kbit"]
MOST_RATE = 100 * UNITS["gbit"]


@dataclass(frozen=True)
class Options:
    """The options of a testbed; two testbeds with equal options are the same."""

    nodes: int = 4
    rate: int | None = None  # bits per second of each link; None: no limit
    control_network: bool = False
    ipv6: bool = False  # no IPv4 on the experiment network; then there is a control network
    gpus: int = 0  # pretended GPUs of each node, for Slurm
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
            f"{text!r}: expected a speed from {rate_text(LEAST_RATE)} to {rate_text(MOST_RATE)} "
            "like 100mbit or 1gbit; without it links are not limited"
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
