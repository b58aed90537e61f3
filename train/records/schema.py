"""The records of a run: what `logs/<run_id>/` holds, and the only thing reports are made from.

One JSON object a line, one file per rank, one writer per file. Seconds are wall-clock seconds of
the rank that writes; bytes are counts, never rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

PHASES = ("data", "forward", "backward", "sync", "optimizer")  # of a step, each with its seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer step on one rank."""

    step: int  # 1 is the first of the run
    epoch: int  # 1 is the first
    rank: int
    loss: float  # mean over the samples of the global batch: the same on every rank
    samples: int  # of the global batch
    local_samples: int  # of this rank
    data_s: float
    forward_s: float
    backward_s: float  # with ddp and accelerate: includes the communication they overlap with it
    sync_s: float  # communication outside the backward pass
    optimizer_s: float
    step_s: float  # all of the step, whatever it was spent on
    lr: float
    grad_norm: float  # of the synchronised gradient, before clipping
    payload_bytes: int  # of the tensors this rank handed to gradient collectives
    # During the backward pass. Of torch's DDP by its own clock, from the start of its first
    # collective to the end of its last; the rest of it is waited for, as part of `backward_s`. Of
    # the hand-written modes, all of it is overlapped; what is waited for is part of `sync_s`.
    comm_s: float = 0.0
    overlapped_s: float = 0.0  # of that, while gradients were still being computed
    # of `local_samples`, padding included; 0: the task does not know, or all samples are alike
    local_tokens: int = 0
    kind: Literal["step"] = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecord:
    """One evaluation over all ranks, as one rank saw it."""

    step: int
    epoch: int
    rank: int
    samples: int  # of the evaluation sets, each counted once over all ranks
    local_samples: int
    eval_s: float
    metrics: dict[str, float]  # by their own names; the same on every rank
    predict_s: float = 0.0  # of `eval_s`: samples fetched and computed
    metric_s: float = 0.0  # of `eval_s`: predictions counted
    sync_s: float = (
        0.0  # of `eval_s`: counts of all ranks added up, waiting for slower ones included
    )
    kind: Literal["eval"] = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """One checkpoint, by a rank that writes them."""

    step: int
    rank: int
    path: str  # of the folder that holds them
    payload_bytes: int  # of its tensors
    stall_s: float  # that the step waited for the copy in memory
    write_s: float  # in the background
    error: str  # why there is none; empty: there is
    kind: Literal["checkpoint"] = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRecord:
    """A plan of --split auto, the same on every rank."""

    step: int  # after which it holds
    rank: int
    parts: list[int]  # samples of a full batch, for each rank
    predicted_gain: float  # in the speed of computing, over even parts
    kind: Literal["split"] = "split"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRecord:
    """Parameters have been made those of rank 0 (--equalize-every)."""

    step: int  # after which
    rank: int
    drift: float  # how far a value of any rank was from rank 0's at most; the same on every rank
    kind: Literal["drift"] = "drift"


# operation, shape, dtype, bytes, and the parameter's name where it is of one alone
Collective = tuple[str, Sequence[int], str, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesRecord:
    """The gradient collectives of a step; those of later steps are the same until the next one."""

    step: int
    rank: int
    collectives: Sequence[Collective]
    kind: Literal["collectives"] = "collectives"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRecord:
    """What crossed a host's interface in a part of the run, beside what had to.

    Written by the first rank of each host, for all ranks on it; bytes to and from other hosts.
    """

    step: int  # the last one in it
    epoch: int  # 0: before the first step (replicas made equal)
    rank: int
    host: str
    interface: str
    steps: int  # training steps in it
    seconds: float
    payload_sent_bytes: int  # what the gradient collectives' algorithms move
    payload_received_bytes: int
    control_sent_bytes: int  # likewise all else: losses, flags, evaluation
    control_received_bytes: int
    wire_bytes_sent: int  # both, with the headers that the link's packet size adds
    wire_bytes_received: int
    observed_sent_bytes: int  # by the interface's counters
    observed_received_bytes: int
    packet_bytes: int  # the largest packet the counters see: the MTU, or more with offloads
    note: str  # what stands against trusting it (other traffic); empty: nothing
    kind: Literal["traffic"] = "traffic"


Record = (
    StepRecord
    | EvalRecord
    | CheckpointRecord
    | SplitRecord
    | DriftRecord
    | CollectivesRecord
    | TrafficRecord
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How one rank ended: `exits/rank_00003.json`. A rank that was killed leaves none."""

    rank: int
    host: str
    pid: int
    time_unix_s: float
    code: int
    # lost_peer: a collective failed because another rank was gone, so the cause lies elsewhere
    # stopped: in order, with a checkpoint to go on from
    cause: Literal["done", "stopped", "refused", "crash", "lost_peer", "signal"]
    message: str = ""  # one line, or one line per problem
    traceback: str = ""
    peak_memory_bytes: int = 0  # the most that this process had resident; not of its GPU
    peak_gpu_memory_bytes: int = 0  # the most that torch reserved on its GPU
    missing: Sequence[int] = ()  # of a lost peer: the ranks that gave no sign any more
