"""The records of a run in `logs/<run_id>/`; reports are made from these alone.

One JSON object per line, one file per rank, one writer per file. Seconds are wall-clock seconds of
the writing rank; bytes are counts, never rates. NaN and infinity are written as null.
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
    # Seconds of phases, as `sync/step_times.py` defines them for any loop; they add up to `step_s`.
    data_s: float
    forward_s: float
    backward_s: float
    # Waiting for other ranks, or for data from them, in all phases: in collectives, and from the
    # end of a backward pass until all gradients are averaged. No other phase contains any of it.
    # (On a GPU, gathers of fsdp in its own streams are not distinguished.)
    sync_s: float
    optimizer_s: float
    step_s: float  # the whole step, whatever it was spent on
    lr: float
    # Of the synchronised gradient, before clipping; in local_sgd, of this rank's own gradient.
    grad_norm: float
    # Of the tensors that this rank passed to gradient collectives; in local_sgd, to collectives on
    # parameters, in the steps that exchange them.
    payload_bytes: int
    # Communication that torch's DDP begins in the backward pass, by its own clock: from the start
    # of its first collective to the end of its last. What does not overlap is part of `sync_s`.
    comm_s: float = 0.0
    overlapped_s: float = 0.0  # of that, while gradients were still being computed
    # of `local_samples`, padding included; 0: the task does not know, or all have the same length
    local_tokens: int = 0
    # The part of `sync_s` until the end of the last backward pass. Records of versions that counted
    # it in the other phases do not have this field.
    sync_in_passes_s: float = 0.0
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
    predict_s: float = 0.0  # of `eval_s`: loading and computing samples
    metric_s: float = 0.0  # of `eval_s`: counting predictions
    sync_s: float = 0.0  # of `eval_s`: adding up the ranks' counts, and waiting for slower ranks
    kind: Literal["eval"] = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """One checkpoint, from a rank that writes checkpoints."""

    step: int
    rank: int
    path: str  # of the checkpoints' folder
    payload_bytes: int  # of its tensors
    stall_s: float  # how long the step waited for the copy in memory
    write_s: float  # in the background
    error: str  # why there is no checkpoint; empty if there is one
    kind: Literal["checkpoint"] = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRecord:
    """A new division of --split auto, the same on every rank."""

    step: int  # the last step before it
    rank: int
    parts: list[int]  # samples of a full batch, for each rank
    predicted_gain: float  # in computing speed, over equal parts
    kind: Literal["split"] = "split"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRecord:
    """Parameters were made equal to those of rank 0 (--equalize-every)."""

    step: int  # the step before it
    rank: int
    drift: float  # largest difference of any rank's value from rank 0's; the same on every rank
    kind: Literal["drift"] = "drift"


# operation, shape, dtype, bytes, and the parameter's name if it is for a single parameter
Collective = tuple[str, Sequence[int], str, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesRecord:
    """The gradient collectives of a step; later steps have the same ones until the next record."""

    step: int
    rank: int
    collectives: Sequence[Collective]
    kind: Literal["collectives"] = "collectives"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRecord:
    """The bytes that crossed a host's interface in a part of the run, and the expected bytes.

    The first rank of each host writes it for all ranks on that host; the bytes are those to and
    from other hosts.
    """

    step: int  # the last step in the part
    epoch: int  # 0: before the first step (replicas made equal)
    rank: int
    host: str
    interface: str
    steps: int  # training steps in the part
    seconds: float
    payload_sent_bytes: int  # bytes that the gradient collectives' algorithms send
    payload_received_bytes: int
    control_sent_bytes: int  # the same for everything else: losses, flags, evaluation
    control_received_bytes: int
    wire_bytes_sent: int  # both, with the headers for the link's packet size
    wire_bytes_received: int
    observed_sent_bytes: int  # by the interface's counters
    observed_received_bytes: int
    packet_bytes: int  # the largest packet that the counters see: the MTU, or more with offloads
    note: str  # a reason not to trust the record, such as other traffic; empty: none
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
    # lost_peer: a collective failed because another rank was gone, so the cause is on that rank.
    # stopped: cleanly, with a checkpoint to continue from
    cause: Literal["done", "stopped", "refused", "crash", "lost_peer", "signal"]
    message: str = ""  # one line, or one line per problem
    traceback: str = ""
    peak_memory_bytes: int = 0  # the most resident memory of this process; without its GPU
    peak_gpu_memory_bytes: int = 0  # the most that torch reserved on its GPU
    missing: Sequence[int] = ()  # with lost_peer: the ranks that gave no sign of life
