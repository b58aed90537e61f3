"""The torchrun command of one node, and its log; only this file has torchrun's flags and texts."""

import itertools
import os
import re
import time

from launch.ends import WorkerEnd
from launch.spec import PLACEHOLDER, RUN_MODULE, Facts, LaunchSpec, NodeCommand
from launch.starters.base import (
    NodeStart,
    StartedProcess,
    Starter,
    command,
    escaped,
    worker_end,
)

# torchrun names the first worker that failed, after it has ended the others. Before that, it logs a
# line for each of the others to which it sends a signal.
FAILED = re.compile(rb"failed \(exitcode: (-?\d+)\) local_rank: (\d+) ")
ENDS_OTHERS = re.compile(rb"Sending process \d+ closing signal ")
READ_BYTES = 1_000_000  # of a log at a time
# torchrun logs notes, and after a failure a long report that hides the reason.
NOTE = re.compile(r"[IW]\d{4} [\d:.]+ \d+ .*\btorch/distributed/")
REPORT = re.compile(r"E\d{4} [\d:.]+ \d+ .*\btorch/distributed/elastic/")


class TorchrunProcess(StartedProcess):
    """torchrun, whose log shows how a worker ended.

    The log is read as it grows. It contains only lines of torchrun, and of workers before they have
    files of their own.
    """

    def __init__(self, command: NodeCommand, node: NodeStart) -> None:
        self._read_bytes = os.fstat(node.log.fileno()).st_size
        self._unfinished_line = b""
        self._noticed_unix_s: float | None = None  # when torchrun noticed a failed worker
        super().__init__(command, node, node.spawn(command, node.env, node.log))

    def new_ends(self) -> list[WorkerEnd]:
        """See the base class."""
        ends: list[WorkerEnd] = []
        log = self._node.log.fileno()
        ranks = self._node.ranks
        size_bytes = os.fstat(log).st_size
        while self._read_bytes < size_bytes:
            # torchrun shares the position of this file, and each of its writes moves it
            new = os.pread(log, READ_BYTES, self._read_bytes)
            if not new:  # the file was made shorter in the meantime
                break
            self._read_bytes += len(new)
            lines, _, unfinished = (self._unfinished_line + new).rpartition(b"\n")
            self._unfinished_line = unfinished[-READ_BYTES:]
            if self._noticed_unix_s is None and ENDS_OTHERS.search(lines):
                self._noticed_unix_s = time.time()
            for code, local_rank in FAILED.findall(lines):
                if int(local_rank) < len(ranks):  # otherwise a program has printed such a line
                    ends.append(worker_end(ranks[int(local_rank)], int(code), self._noticed_unix_s))
        return ends


class Torchrun(Starter):
    """torchrun's agent, with a static rendezvous: addresses and node ranks come from the plan.

    With c10d, a node other than the one at --master-addr may get rank 0: see
    https://github.com/pytorch/pytorch/issues/137402.
    """

    counts_gpus = True
    serves_port = True
    needs = "torch"

    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        node = facts.nodes[node_rank]
        words = (
            *(f"{node.repository}/{RUN_MODULE}", "torch.distributed.run"),
            *("--nnodes", str(len(facts.nodes))),
            *("--nproc-per-node", str(node.nproc)),
            *("--node-rank", str(node_rank)),
            *("--master-addr", facts.master_addr),
            *("--master-port", str(facts.master_port or PLACEHOLDER)),
            *("--rdzv-id", spec.run_id),  # the workers get it as TORCHELASTIC_RUN_ID
            *("--max-restarts", "0"),
            "--",  # without it `--log` of the program is "ambiguous": --log-dir, --logs-specs
            *escaped(node.worker(spec.program)),
        )
        return [command(spec, facts, node_rank, words)]

    def start(self, command: NodeCommand, node: NodeStart) -> StartedProcess:
        """See the contract."""
        return TorchrunProcess(command, node)


def workers_lines(log: str) -> list[str]:
    """The workers' lines in the log of their node, without torchrun's own lines."""
    lines = itertools.takewhile(lambda line: not REPORT.match(line), log.splitlines())
    return [line for line in lines if not NOTE.match(line)]


build = Torchrun()
