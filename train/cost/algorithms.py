"""Seconds of one synchronisation of S bytes among N workers, by the algorithm that does it.

Each is a number of messages that follow each other, each of them `alpha_s`, and of bytes that one
link must carry one way, at `bytes_per_s`. What moves less over other links costs nothing: it does
so at the same time. The two add up, or overlap where a message waits while bytes of others move:
(latency^p + bandwidth^p)^(1/p), with p = 1 for a sum.

The counts are those of R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective
communication operations in MPICH", 2005; the ring's are optimal in bytes (P. Patarasuk and X. Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

IP_TCP_BYTES = 52  # IPv4, TCP and its timestamps: inside the MTU
FRAME_BYTES = 38  # preamble, Ethernet header, checksum and gap: outside it


def payload_share(mtu_bytes: int) -> float:
    """The part of a link's bits that is payload; the rest is headers, once for each packet."""
    return (mtu_bytes - IP_TCP_BYTES) / (mtu_bytes + FRAME_BYTES)


@dataclass(frozen=True)
class Link:
    """What one worker's link does, each way."""

    alpha_s: float  # of a message, however short
    bytes_per_s: float  # of payload
    overlap: float = 1.0  # the p above

    @classmethod
    def of_rate(cls, bits_per_s: float, mtu_bytes: int, alpha_s: float) -> "Link":
        """A link as it is sold, less its headers."""
        return cls(alpha_s, bits_per_s / 8 * payload_share(mtu_bytes))


@dataclass(frozen=True)
class Load:
    """What a link has to do one after the other."""

    messages: float
    payload_bytes: float

    def latency_s(self, link: Link) -> float:
        return self.messages * link.alpha_s

    def bandwidth_s(self, link: Link) -> float:
        return self.payload_bytes / link.bytes_per_s

    def seconds(self, link: Link) -> float:
        return sum(self.shares_s(link))

    def shares_s(self, link: Link) -> tuple[float, float]:
        """Seconds of latency and of bandwidth: the larger in full, the other as far as it adds."""
        latency, bandwidth = self.latency_s(link), self.bandwidth_s(link)
        larger, smaller = max(latency, bandwidth), min(latency, bandwidth)
        if not larger:
            return 0.0, 0.0
        p = link.overlap
        # log1p, since what a little latency adds to many bytes would be lost in the last digits
        adds = larger * math.expm1(math.log1p((smaller / larger) ** p) / p)
        return (latency, adds) if latency > bandwidth else (adds, bandwidth)


def sendrecv(size_bytes: float, workers: int) -> Load:
    """Each sends one message to its neighbour and receives one."""
    return Load(1, size_bytes)


def broadcast(size_bytes: float, workers: int) -> Load:
    """A binomial tree that passes on whole tensors, as gloo does."""
    levels = math.ceil(math.log2(workers))
    return Load(levels, levels * size_bytes)


def gather(size_bytes: float, workers: int) -> Load:
    """The root receives `size_bytes` from each other worker over its one link."""
    return Load(workers - 1, (workers - 1) * size_bytes)


def all_gather(size_bytes: float, workers: int) -> Load:
    """A ring; `size_bytes` of each worker."""
    return Load(workers - 1, (workers - 1) * size_bytes)


def ring_all_reduce(size_bytes: float, workers: int) -> Load:
    """Reduce-scatter and all-gather around the ring, one part of N at a time."""
    steps = 2 * (workers - 1)
    return Load(steps, steps * size_bytes / workers)


# What nccl-tests measures, by its sizes: of all parts together where there are parts.
MEASURED: dict[str, Callable[[float, int], Load]] = {
    "sendrecv": sendrecv,
    "broadcast": broadcast,
    "gather": lambda size, workers: gather(size / workers, workers),
    "scatter": lambda size, workers: gather(size / workers, workers),
    "all_gather": lambda size, workers: all_gather(size / workers, workers),
    "reduce_scatter": lambda size, workers: all_gather(size / workers, workers),
    "all_reduce": ring_all_reduce,
}


def exposed_s(comm_s: float, last_bucket_s: float, backward_s: float, buckets: int) -> float:
    """What is left to wait for where buckets are sent while the backward pass goes on.

    The first bucket is ready after its part of that pass, the last one at its end.
    """
    hidden_s = backward_s * (buckets - 1) / buckets
    return max(last_bucket_s, comm_s - hidden_s)
