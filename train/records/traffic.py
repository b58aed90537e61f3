"""Compare the expected bytes on a host's interface with its counters."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from muster.writing import writing

from .schema import TrafficRecord

HEADER_BYTES = 66  # Ethernet 14, IPv4 20, TCP 20 and its timestamps 12
OFFLOADED_BYTES = 65536  # what a virtual link carries as one packet
MOST_RATIO = 1.08  # of observed to expected bytes: Ethernet headers add less
QUEUED_BYTES = 4e6  # may be unsent when the counters are read
TELLING_BYTES = 30e6  # a smaller amount is hidden by headers and other traffic


def crossing(operation: str, nbytes: float, hosts: Sequence[str], host: str) -> tuple[float, float]:
    """Return the bytes that one collective makes `host` send to and receive from other hosts.

    `hosts` contains the host of each rank; `nbytes` is what each rank passes (for gather and
    scatter: its own part). These are gloo's algorithms. all_reduce (2 (N-1)/N of the bytes to the
    next rank), all_gather and the first half of reduce use rings; gather, scatter and the second
    half of reduce use a star around rank 0; broadcast uses a binomial tree. In all_to_all each rank
    sends every other rank that rank's part, an N-th of what it passes. The star of "gather to rank
    2" is around rank 2.

    Raises:
        ValueError: the algorithm of this operation is unknown.
    """
    n = len(hosts)
    ranks = range(len(hosts))
    ring = [(rank, (rank + 1) % n) for rank in ranks]
    operation, _, root = operation.partition(" to rank ")
    center = int(root or 0)
    star = [(rank, center) for rank in ranks if rank != center]
    flows: dict[str, Callable[[], list[tuple[int, int, float]]]] = {
        "all_reduce": lambda: [(a, b, 2 * (n - 1) / n * nbytes) for a, b in ring],
        "all_gather": lambda: [(a, b, (n - 1) * nbytes) for a, b in ring],
        "reduce": lambda: [
            *((a, b, (n - 1) / n * nbytes) for a, b in ring),
            *((a, b, nbytes / n) for a, b in star),
        ],
        "gather": lambda: [(a, b, nbytes) for a, b in star],
        "scatter": lambda: [(b, a, nbytes) for a, b in star],
        "all_to_all": lambda: [(a, b, nbytes / n) for a in ranks for b in ranks if a != b],
        # rank r receives from the rank without its highest bit
        "broadcast": lambda: [(r - (1 << (r.bit_length() - 1)), r, nbytes) for r in ranks[1:]],
    }
    if operation not in flows:
        raise ValueError(f"the traffic of {operation!r} is unknown")
    transfers = flows[operation]()
    sent = sum(size for a, b, size in transfers if hosts[a] == host != hosts[b])
    received = sum(size for a, b, size in transfers if hosts[b] == host != hosts[a])
    return sent, received


def on_the_wire(payload: float, opposite: float, packet_bytes: int) -> float:
    """Return the bytes including headers.

    At least the headers of the packets are included, and of the answers to every second packet of
    the other direction, unless these can be sent with packets of this direction.
    """
    carried = packet_bytes - HEADER_BYTES
    answers = max(0.0, opposite / 2 - payload) / carried
    return payload * (1 + HEADER_BYTES / carried) + answers * HEADER_BYTES


def packet_size(interface: str) -> int:
    """Return the largest packet that the counters of `interface` see, headers included.

    Packets of a virtual link are not cut to its MTU: that is left to a network card, which it
    lacks.
    """
    stats = psutil.net_if_stats().get(interface)
    mtu = stats.mtu if stats else 1500
    is_virtual = not Path("/sys/class/net", interface, "device").exists()
    return OFFLOADED_BYTES if is_virtual else mtu + 14


class Meter:
    """Reads one host's counters around parts of a run; the first rank does so for all on the host.

    `gradients` and `control` are what this rank has passed to collectives so far: bytes by torch's
    name for the operation. The caller updates them.
    """

    def __init__(
        self,
        rank: int,
        hosts: Sequence[str],
        interface: str,
        gradients: Counter[str],
        control: Counter[str],
        samples: Path,
    ) -> None:
        self._rank = rank
        self._hosts = hosts
        self._host = hosts[rank]
        self._interface = interface
        self._counted = (gradients, control)
        self._packet_bytes = packet_size(interface)
        self._sampler = Sampler(interface, samples)
        self.begin()

    def begin(self) -> None:
        """Begin to count."""
        self._began = time.monotonic()
        self._before = _counters(self._interface)
        self._counts = [Counter(counter) for counter in self._counted]

    def end(self, *, step: int, epoch: int, steps: int) -> TrafficRecord:
        """Return the counts since `begin`."""
        after = _counters(self._interface)
        gradients, control = (
            now - then for now, then in zip(self._counted, self._counts, strict=True)
        )
        payload, unknown = self._crossing(gradients)
        others, _ = self._crossing(control)
        sent = payload[0] + others[0]
        received = payload[1] + others[1]
        observed = (after[0] - self._before[0], after[1] - self._before[1])
        return TrafficRecord(
            step=step,
            epoch=epoch,
            rank=self._rank,
            host=self._host,
            interface=self._interface,
            steps=steps,
            seconds=time.monotonic() - self._began,
            payload_sent_bytes=round(payload[0]),
            payload_received_bytes=round(payload[1]),
            control_sent_bytes=round(others[0]),
            control_received_bytes=round(others[1]),
            wire_bytes_sent=round(on_the_wire(sent, received, self._packet_bytes)),
            wire_bytes_received=round(on_the_wire(received, sent, self._packet_bytes)),
            observed_sent_bytes=observed[0],
            observed_received_bytes=observed[1],
            packet_bytes=self._packet_bytes,
            note=unknown or difference_note((sent, received), observed),
        )

    def close(self) -> None:
        self._sampler.close()

    def _crossing(self, moved: Mapping[str, int]) -> tuple[tuple[float, float], str]:
        sent = received = 0.0
        for operation, nbytes in moved.items():
            try:
                flow = crossing(operation, nbytes, self._hosts, self._host)
            except ValueError as error:
                return (0.0, 0.0), str(error)
            sent = sent + flow[0]
            received = received + flow[1]
        return (sent, received), ""


def difference_note(expected: tuple[float, float], observed: tuple[int, int]) -> str:
    """Return a reason to doubt the numbers; empty if they agree or are too small to tell."""
    for name, wanted, counted in zip(("sent", "received"), expected, observed, strict=True):
        if wanted < TELLING_BYTES:
            continue
        times = f"{counted / wanted:.2f} times the expected bytes {name}"
        if counted > wanted * MOST_RATIO:
            return f"{times}: other traffic shared the interface"
        if counted < wanted - QUEUED_BYTES:
            return f"{times}: the rest was sent over another interface"
    return ""


def _counters(interface: str) -> tuple[int, int]:
    """Return the bytes sent and received in this process's network namespace."""
    counters = psutil.net_io_counters(pernic=True, nowrap=True).get(interface)
    return (counters.bytes_sent, counters.bytes_recv) if counters else (0, 0)


class Sampler:
    """Writes the interface's bytes per second into a CSV file, one line per second, like dstat."""

    def __init__(self, interface: str, path: Path, every_s: float = 1.0) -> None:
        self._interface = interface
        self._every_s = every_s
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = path.open("w", encoding="utf-8", buffering=1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError):  # on a full disk the rank's own records are enough
            self._sample()

    def _sample(self) -> None:
        self._file.write("time_unix_s,recv_bytes_per_s,send_bytes_per_s\n")
        last, sent, received = time.monotonic(), *_counters(self._interface)
        while not self._over.wait(self._every_s):
            now = time.monotonic()
            (more_sent, more_received) = _counters(self._interface)
            rates = ((more_received - received) / (now - last), (more_sent - sent) / (now - last))
            self._file.write(f"{time.time():.2f},{rates[0]:.0f},{rates[1]:.0f}\n")
            last = now
            sent = more_sent
            received = more_received

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        with suppress(OSError):
            self._file.close()
