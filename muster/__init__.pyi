"""What a program imports: to train on many ranks, to work with its launcher, to start other runs.

    sync, sync_ddp          gradients become the mean over ranks, in any training loop
    init, steps             rank and device; which rank computes which samples
    evaluate                any metric of Hugging Face's evaluate
    checkpoints, record     save and resume; records that reports and comparisons read
    on_stop, stopping       a program that is asked to stop ends cleanly
    launch, map, job, Job   functions on many machines, from Python
    MusterError             any error of Muster
    UsageError, RunFailed   a wrong argument, flag or file; a run has failed

Pages: docs/library.md, docs/own-programs.md (stopping), docs/python.md (functions).

The import needs the standard library alone and loads only what is used: no torch.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

__all__ = [
    "Job",
    "MusterError",
    "RunFailed",
    "UsageError",
    "__version__",
    "checkpoints",
    "evaluate",
    "init",
    "job",
    "launch",
    "map",
    "on_stop",
    "record",
    "steps",
    "stopping",
    "sync",
    "sync_ddp",
]
__version__: str

class MusterError(Exception):
    """An error that a user can act on: Muster's commands print its problems, without a traceback.

    A problem may be followed by its remedy, on a line that begins with `tip: `.
    """

    exit_code: int

    def __str__(self) -> str: ...
    @property
    def problems(self) -> list[str]:
        """Each problem, with its tip."""

class UsageError(MusterError):
    """A wrong flag, file, argument or input."""

    exit_code: int

class RunFailed(MusterError):
    """A run did not end well; its cause is the function's exception, if it can be unpickled."""

    message: str
    rank: int | None
    host: str | None
    traceback: str

    def __init__(
        self,
        message: str,
        code: int,
        rank: int | None = None,
        host: str | None = None,
        traceback: str = "",
    ) -> None: ...

@dataclass(frozen=True)
class Status:
    """What a run is doing: one word, and lines with more details."""

    word: str
    is_over: bool
    detail: str = ...
    notes: tuple[str, ...] = ...

    def __str__(self) -> str: ...

class Job:
    """A run, identified by its folder.

    In a `with` block, an error cancels the run.
    """

    run_dir: Path

    def __init__(self, run_dir: str | os.PathLike[str]) -> None: ...
    @property
    def run_id(self) -> str:
        """The name of the run, also for `muster jobs`."""

    def __enter__(self) -> Job: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None: ...
    def status(self) -> Status:
        """What the run is doing now."""

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until the run is over; return its exit code.

        Raises:
            TimeoutError: it is still running after `timeout_s` seconds.
        """

    def results(self, timeout_s: float | None = None) -> list[Any]:
        """Wait until the run is over; return what each rank's call has returned, by rank.

        Raises:
            RunFailed: a rank failed, or the run was ended; its cause is the rank's own exception.
            TimeoutError: it is still running after `timeout_s` seconds.
            UsageError: the run does not call a function.
        """

    def rank(self, number: int, timeout_s: float | None = None) -> Any:
        """Return what this rank's call has returned; like `results`, but for this rank only.

        Raises:
            UsageError: the run has no such rank.
        """

    def logs(self, *, rank: int | None = None, follow: bool = False) -> Iterator[str]:
        """Iterate over the lines that the workers print; with `follow`, until the run is over.

        Raises:
            UsageError: it has no such rank.
            MusterError: its logs could not be read; stderr says why.
        """

    def stacks(self, *, full: bool = False) -> str:
        """Where each rank is, and what it is waiting for, as `muster jobs stacks` shows it."""

    def cancel(self) -> None:
        """End the run and everything it started; return when that is done."""

@dataclass(frozen=True, kw_only=True)
class World:
    """One worker's place; the names are torchrun's, and `node_rank` is its GROUP_RANK."""

    rank: int = ...
    world_size: int = ...
    local_rank: int = ...
    local_world_size: int = ...
    node_rank: int = ...
    num_nodes: int = ...
    master_addr: str = ...
    master_port: int = ...
    host: str = ...
    run_id: str | None = ...
    attempt: int = ...

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints and saves."""

@dataclass(frozen=True, kw_only=True)
class RankOfRun(World):
    """This process as a rank of its run."""

    device: torch.device
    run_dir: Path

@dataclass(frozen=True)
class MicroBatch:
    """Samples that one rank computes in one forward pass.

    `indices` (n,) are their positions in the dataset. A rank without samples gets a dummy sample of
    weight 0, so that all ranks run the same collectives. The loss to differentiate is the mean over
    the n samples times `weight`. `tokens` counts padding. `share`, from 0 to 1, is this rank's part
    of the global batch.
    """

    indices: tuple[int, ...]
    weight: float
    tokens: int = ...
    share: float = ...
    is_last: bool = ...
    cut_by: str = ...

    @property
    def samples(self) -> int:
        """The number of samples that count: 0 for a dummy."""

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """A context for its forward and backward pass: only a step's last pass synchronises.

        Every rank must use it, with the `model` that `muster.sync` returned. It has no collective
        of its own. It also sets whether the BatchNorm layers of
        `muster.sync(..., synced_batchnorm=True)` count this micro-batch.

        Raises:
            UsageError: there are such layers, and each rank cuts its micro-batches on its own, or
                may leave out samples.
        """

@dataclass(frozen=True)
class StepPlan:
    """One step of one rank: its micro-batches, at least one.

    `samples` is the size of the global batch. `step` counts from 1, `epoch` from 0.
    """

    samples: int
    micro_batches: tuple[MicroBatch, ...]
    step: int = ...
    epoch: int = ...

    @property
    def local_samples(self) -> int:
        """The samples of this rank in this step."""

    @property
    def local_tokens(self) -> int:
        """The tokens of this rank in this step, with padding; 0 if lengths are unknown."""

class Steps:
    """Iterates over the remaining steps, from one epoch to the next; see `steps`.

    Its `state_dict` lets a training continue after the step that was handed out last. So the
    training loop itself must iterate over it. Code that reads ahead of the loop uses `batches`.
    """

    epochs: int

    def __len__(self) -> int:
        """The steps of all epochs together."""

    @property
    def step(self) -> int:
        """The number of the step that was handed out last."""

    def __iter__(self) -> Iterator[StepPlan]: ...
    def batches(self) -> Batches:
        """The samples of each remaining micro-batch, for `batch_sampler=` of a DataLoader.

        It may be read ahead, as by a DataLoader with workers: reading does not move the position.
        Each iteration over it begins after the last step of the loop. The DataLoader needs its own
        generator. Otherwise it draws from torch's when it begins, and dropout differs after a
        resume.

            own = torch.Generator().manual_seed(rank)
            batches = steps.batches()
            loader = iter(DataLoader(dataset, batch_sampler=batches, num_workers=4, generator=own))
            for step in steps:
                for micro, batch in zip(step.micro_batches, loader):

        Raises:
            UsageError: split is "auto", which decides on the parts during the training.
        """

    def state_dict(self) -> dict[str, Any]:
        """The position, and the samples it refers to."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position, on any number of ranks and with any split.

        Raises:
            UsageError: the saved steps were over other samples, or a DataLoader has read ahead.
        """

class Batches:
    """See `Steps.batches`."""

    def __len__(self) -> int:
        """The micro-batches after the last step of the loop, up to the last epoch's end."""

    def __iter__(self) -> Iterator[list[int]]: ...

class Stateful(Protocol):
    """A model, an optimizer, a schedule, a GradScaler, `muster.steps`, or an object of yours."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...

@runtime_checkable
class Collected(Protocol):
    """An object that ranks hold in parts, such as a model that a sync mode has split.

    Every rank must call its methods, in the same order: each may be collective.
    """

    def own_tensors(self) -> Mapping[str, Tensor]:
        """The tensors of this rank alone: the same names and shapes on every rank. Called first."""

    def collected(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor in its full shape, with its name; the same on every rank.

        Every rank takes all of them, one after the other, since taking the next one may be a
        collective. Ranks that write a checkpoint keep copies. The others keep nothing.
        """

    def load_collected(
        self, tensors: Mapping[str, Tensor], own_tensors: Mapping[str, Tensor]
    ) -> None:
        """Continue from what the other methods returned.

        `tensors` lie in mapped files, which may be removed later: copy what you keep, one by one.
        On another number of ranks, `own_tensors` has only the tensors that were equal on all ranks.
        """

class Checkpoints(AbstractContextManager["Checkpoints"]):
    """See `checkpoints`.

    As a context manager it waits at its end until the last checkpoint is on the disk.

    Raises:
        MusterError: at the end of the context, if one was not written: host, folder and reason.
    """

    folder: Path
    step: int

    def resume(self) -> int:
        """Resume from the newest intact checkpoint; return its step, or 0 if there is none yet.

        Every rank must call it. Damaged checkpoints are reported and skipped.

        Raises:
            UsageError: it is a checkpoint of other objects, or all are damaged.
        """

    def after_step(self, step: int) -> None:
        """Save if it is due. If some rank was asked to stop, save and exit with code 75.

        Every rank must call it after each step. It costs one small collective, or none after
        `muster.record` of the same step, which sends the requests with the loss. Files are written
        while the training continues.

        Raises:
            SystemExit: a rank was asked to stop; everything is on the disk.
            UsageError: the ranks pass different steps; raised on every rank.
            NotWritten: a checkpoint before the stop could not be written.
        """

    def save(self, step: int) -> None:
        """Save now, and return when the checkpoint is on the disk; every rank must call it.

        Raises:
            UsageError: the ranks pass different steps; raised on every rank.
            NotWritten: it could not be written.
        """

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

class SingleProcess(nn.Module):
    """The methods of DDP that a script calls, for a single process without a group."""

    module: Any
    require_backward_grad_sync: bool

    def forward(self, *given: Any, **named: Any) -> Any: ...
    def no_sync(self) -> AbstractContextManager[None]: ...
    def join(self, **_: Any) -> AbstractContextManager[None]: ...

def on_stop(save: Callable[[], object]) -> None:
    """Call `save()` when this process is asked to stop; the process then exits with code 75.

    It is called between two lines of Python, wherever the main thread is.

        >>> muster.on_stop(lambda: print("saving"))

    Raises:
        UsageError: `save` is not a function.
        MusterError: this is not the main thread.
    """

def stopping() -> bool:
    """Whether this process was asked to stop; if so, save, and end with exit code 75.

    The ranks of a run are asked at about the same time, not at the same step. Before one of them
    leaves a loop of collectives, they should agree, for example by a reduction of this value.

        >>> muster.stopping()
        False

    Raises:
        MusterError: the first call is not in the main thread.
    """

def job(run: str) -> Job:
    """Find the run whose id is `run` or begins with it, no matter who started it.

        >>> run_id = muster.launch(max, 2, 3, launcher="local").run_id
        >>> muster.job(run_id).wait()  # its exit code
        0

    Raises:
        UsageError: no run matches, or several do.
        MusterError: the connection to a login node failed.
    """

def launch(
    function: Callable[..., Any],
    *args: Any,
    nodes: int | str | None = None,
    nproc_per_node: int | str | None = None,
    launcher: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **flags: Any,
) -> Job:
    """Call `function(*args, **kwargs)` in every worker of a new run.

    Each call finds torchrun's variables in its environment (RANK, WORLD_SIZE, MASTER_ADDR ...).
    Functions from notebooks and scripts are sent as they are; functions from modules are imported,
    from the snapshot of the project if there is one.

        >>> job = muster.launch(max, 2, 3, launcher="local")
        >>> job.results()  # of each rank
        [3]

    Args:
        function: called with `args` and `kwargs`; all arguments and its result must be picklable.
        args: its positional arguments.
        nodes: number of machines (default: 1); simulated ones with launcher="local".
        nproc_per_node: workers on each of them (default: 1).
        launcher: auto (the default), local, ssh (with hosts=...) or slurm.
        kwargs: its keyword arguments.
        flags: any flags of `muster run`, such as login="me@cluster", on="cluster" of muster.toml,
            hosts="node[0-3]", partition="gpu", time=30 (minutes), snapshot=False, or
            env={"NAME": "value"}, whose values no other user can see.

    Raises:
        UsageError: a flag is wrong, or the run could not start; one line for every problem.
        MusterError: a connection or Slurm failed.
        TypeError: the function or its arguments cannot be pickled.
    """

def map(
    function: Callable[..., Any],
    items: Iterable[Any],
    *,
    at_once: int = 1,
    nodes: int | str | None = None,
    nproc_per_node: int | str | None = None,
    launcher: str | None = None,
    **flags: Any,
) -> list[Job]:
    """Call `function(item)` for each item, in a run of its own; at most `at_once` at a time.

    It returns immediately, with a job for each item, in order. On Slurm the jobs form one job
    array; over ssh, jobs that run at the same time use different hosts. The rest is as for
    `launch`.

        >>> jobs = muster.map(abs, [-1, -2], launcher="local")
        >>> [job.rank(0) for job in jobs]
        [1, 2]

    Raises:
        UsageError: a flag is wrong, or the runs could not start; one line for every problem.
        MusterError: a connection or Slurm failed.
        TypeError: the function or an item cannot be pickled.
    """

def checkpoints(
    folder: str | Path | None = None,
    *,
    every: str | None = None,
    keep_last: int = 2,
    name: str | None = None,
    by_rank: Mapping[str, Stateful] | None = None,
    **objects: Stateful | Collected,
) -> Checkpoints:
    """Save and resume `objects`; every rank must call this, and its methods, at the same points.

    One rank of each file system writes. What differs by rank is saved for each rank: random
    generators, errors of compression, and the objects in `by_rank`. Any other object that differs
    is also saved for each rank, with a warning. To detect this, each rank reads its states once per
    checkpoint, and the ranks exchange checksums. A step waits for the checksums and for a copy in
    CPU memory, not for the disk. With another number of ranks, all get rank 0's state.

    The checkpoints in a folder form one chain, whichever runs wrote them. A run that does not call
    `resume` may not use the folder of another run. If it resumes, later checkpoints in the folder
    are moved to `set_aside/`.

        >>> model = torch.nn.Linear(2, 1)
        >>> with muster.checkpoints("saved", every="100 steps", model=model) as checkpoints:
        ...     for step in range(checkpoints.resume() + 1, 101):
        ...         checkpoints.after_step(step)
        >>> os.listdir("saved")
        ['step_00000100']

    Args:
        folder: by default `MUSTER_CHECKPOINTS`, which stays the same when a run is restarted.
        every: "100 steps", "10 min"; None: only when asked to stop, and by `save`.
        keep_last: how many of the latest are kept.
        name: name of a folder in `folder`, for each of several trainings in one program.
        by_rank: objects whose states differ by rank, such as {"loader": loader}.
        objects: each with a name, such as model=model, optimizer=optimizer, steps=steps. A model
            may be the result of `muster.sync`, or the model in it.

    Raises:
        UsageError: no folder is known, an argument is invalid, or an earlier call has taken the
            default folder.
    """

def evaluate(
    metric: Any,
    *,
    predictions: Any = None,
    references: Any = None,
    positions: Any = None,
    config_name: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Compute a metric of `evaluate` over the samples of all ranks; every rank gets the result.

    Every rank of torch's default group must call it with its own samples: any number of them, or
    none. Without a group the process is a single rank. Rank 0 receives all samples, through gloo
    and CPU memory, and all ranks wait while it computes. So the call waits for the device if
    samples are on it. (`my_metric.py` is the one in docs/library.md.)

        >>> muster.evaluate("./my_metric.py", predictions=[0, 1, 1, 0], references=[0, 1, 0, 0])
        {'f1': 0.6666666666666666, 'n': 4}

    Args:
        metric: a file (`./my_metric.py`), a name (`f1`), a loaded module, or several of them in a
            list, or in a dict, whose names are prefixed to results that would otherwise have the
            same name. Only rank 0's metric counts.
        predictions: one entry per sample of this rank, (n, ...): a tensor, an array or a list.
        references: the true values, in the same form.
        positions: whole numbers (n,) from 0 up, each sample's place in the whole set. The metric
            gets the samples in that order, and only one for each place, so that a sample that a
            sampler gave out twice counts once. Without positions, samples are in rank order.
        config_name: configuration of the module, such as `mrpc` of `glue`.
        more: other columns that the module takes, and arguments of its `compute`.

    Raises:
        UsageError: there is no such metric, the samples do not fit it, or only some of the ranks
            with samples gave a column.
        MusterError: the metric failed; the message contains its error. If any rank raises an error,
            the other ranks raise a MusterError with the same message.
    """

@contextmanager
def init(
    *,
    device: str = "auto",
    backend: str = "auto",
    timeout_s: float = 1800.0,
    join_timeout_s: float = 300.0,
) -> Iterator[RankOfRun]:
    """Join the process group of all ranks, and return this process's rank in the run.

    It works under torchrun, Muster's launchers, srun and mpirun, by hand (see
    `muster.rank_variables`), and for a single process. Every rank must enter the block, and waits
    there for the others; all ranks leave it together. If a rank fails, the others are informed
    immediately. Under torchrun or `muster run`, so are ranks that wait for a rank that has left.
    Each rank gets one device, as `device`, and all ranks of a run get the same `run_dir`.

        >>> with muster.init(device="cpu") as run:
        ...     print(run.rank, run.world_size, run.device)
        0 1 cpu

    Args:
        device: "cuda", "cpu", or "auto": a GPU for each rank if all have one, else the CPU.
        backend: "nccl", "gloo", or "auto": nccl between GPUs.
        timeout_s: seconds that a rank may be late for a collective.
        join_timeout_s: seconds within which all ranks must have started.

    Raises:
        UsageError: an invalid argument, variables that contradict each other, or a process group
            that exists already.
        MusterError: an address, port or rank is missing after `join_timeout_s`, or a rank has no
            GPU for device="cuda".
    """

def record(
    step: StepPlan | int | None = None,
    *,
    loss: Tensor | float | None = None,
    metrics: Mapping[str, float] | None = None,
    model: nn.Module | None = None,
    samples: int = 0,
    lr: Tensor | float = 0.0,
    grad_norm: Tensor | float = 0.0,
    log_with: str | Sequence[str] = (),
) -> float | None:
    """Record a step, or an evaluation, in the run folder; every rank must call this the same way.

    A step has a `loss`. One small collective computes the mean over the ranks' losses, which is
    recorded and returned. The host waits for the device if a number is a tensor on it. An
    evaluation has `metrics`, the same on every rank, and costs no collective. If ranks record
    different metrics, a report shows their mean and says so. NaN and infinity are recorded as null.

        >>> with muster.init(device="cpu"):
        ...     muster.record(1, loss=0.5)  # the mean over ranks
        0.5

    Args:
        step: a step of `muster.steps`, which includes its samples and epoch, or a step number; by
            default one more than the last.
        loss: this rank's loss, a number or a tensor of one element: with `muster.steps` the sum of
            its micro-batches' weighted losses. If all ranks' losses are equal in each of the first
            steps, a warning says so: they may compute the same samples.
        metrics: numbers by name, such as {"accuracy": 0.71}.
        model: the model that `muster.sync` or DDP returned: then the bytes of each step are also
            recorded and, from the second step on, the seconds of its phases. The time that a step
            waits for other ranks is `sync_s`.
        samples: number of samples in the step, over all ranks, if `step` does not include it.
        lr: the learning rate of the step.
        grad_norm: norm of the gradient, before clipping.
        log_with: "tensorboard", "wandb", or both in a list: rank 0 also shows this record and all
            later ones there, with the run's settings.

    Raises:
        UsageError: neither a loss nor metrics, an invalid argument, ranks that record different
            steps, no run folder (no launcher, no `muster.init`), or a tracker that is not
            installed.
    """

def steps(
    dataset: Sized | int,
    *,
    batch_size: int,
    seed: int = 0,
    epochs: int = 1,
    split: Sequence[float] | Literal["even", "auto"] = "even",
    lengths: Sequence[int] | Tensor = (),
    units: Sequence[float] | Tensor = (),
    accumulation: int = 1,
    model: nn.Module | None = None,
) -> Steps:
    """The steps of a training: in each, this rank's micro-batches and their weights.

    Step k of an epoch takes samples [k M, (k + 1) M) of one seeded permutation, whatever the
    number of ranks and the split, with M = `batch_size`. With the mean loss of each micro-batch
    multiplied by its `weight`, the plain mean of gradients over ranks, which `muster.sync`
    computes, is the gradient of the mean loss over all M samples.

        >>> for step in muster.steps(10, batch_size=4):
        ...     print(step.step, [len(micro.indices) for micro in step.micro_batches])
        1 [4]
        2 [4]
        3 [2]

    Args:
        dataset: a dataset with a length, or that length.
        batch_size: samples per step, over all ranks.
        seed: seed of the permutations, of which each epoch has its own.
        epochs: number of passes over all samples.
        split: the ranks' parts: ratios such as [8, 4, 4, 1], "even", or "auto", by the speeds that
            are measured during the training, which needs `model`.
        lengths: tokens of each sample, whole numbers of shape (n,): samples of similar lengths are
            then computed together.
        units: the weight of each sample in the mean loss, numbers of shape (n,), if that is not a
            mean over samples: its number of labels for a mean over tokens, or its class's weight.
        accumulation: least number of micro-batches into which each rank's part is cut.
        model: what `muster.sync` returned.

    Raises:
        UsageError: an invalid argument.
    """

def sync(
    model: nn.Module,
    mode: str = "all_reduce",
    *,
    compress: str = "none",
    compress_rank: int = 4,
    bucket_mb: float | None = None,
    sparse_rows: bool = True,
    synced_batchnorm: bool = False,
    timeout_s: float = 1800.0,
    **ddp_options: Any,
) -> DistributedDataParallel | SingleProcess:
    """Return `DistributedDataParallel(model, **ddp_options)`, which averages gradients by `mode`.

    After `backward()` each `.grad` has the shape of its parameter, and is the mean over ranks, with
    the same bits on every rank. The process group must exist already. A single process without a
    group gets a wrapper with `module` and `no_sync()`, which synchronises nothing. On GPUs,
    "all_reduce" and "ddp" without `compress` are DDP itself, without a hook; everything else needs
    NCCL.

    All ranks of the group must call this: it sends the model from rank 0 to the others. A backward
    pass then costs one collective per bucket, two with "gather_scatter", three with "powersgd", and
    one more for the rows of embeddings; `no_sync()` skips all of them. On a GPU the stream waits
    for them, not the host.

        >>> model = muster.sync(torch.nn.Linear(2, 1))
        >>> model(torch.ones(3, 2)).sum().backward()
        >>> model.module.weight.grad
        tensor([[3., 3.]])

    Args:
        model: the model, on its device.
        mode: "all_reduce", "gather_scatter", "ddp" (torch's buckets, no hook) or "single".
        compress: "none", "bf16", "fp16" or "powersgd" (T. Vogels et al., NeurIPS 2019; torch's
            hook): fewer bytes, and gradients that are approximately the mean.
        compress_rank: rank of PowerSGD's matrices.
        bucket_mb: MiB of gradients per collective; None: the mode's default on gloo, else torch's
            25; 0: one collective per parameter.
        sparse_rows: with gloo, send only the rows of large embeddings that some rank has used.
        synced_batchnorm: BatchNorm layers see the samples of all ranks, even in unequal parts.
        timeout_s: seconds that a rank may be late for a collective of the mode's own groups.
        **ddp_options: DDP's options, such as `find_unused_parameters`, `static_graph` and
            `process_group`.

    Raises:
        UsageError: an option is unknown or does not fit, or there are several ranks but no process
            group.
    """

def sync_ddp(
    framework: Any,
    model: nn.Module | None = None,
    *,
    compress: str = "none",
    compress_rank: int = 4,
    bucket_mb: float | None = None,
    sparse_rows: bool = True,
    timeout_s: float = 1800.0,
) -> Any:
    """Synchronise the gradients of a framework that creates torch's DDP; return `framework`.

    All ranks must call this in the same way, before the framework wraps the model; the call itself
    sends nothing. Each backward pass costs the same as with `muster.sync`:

        muster.sync_ddp(accelerator)                   # before accelerator.prepare
        muster.sync_ddp(trainer)                       # before trainer.train()
        L.Trainer(strategy=muster.sync_ddp(DDPStrategy()))
        L.Fabric(strategy=muster.sync_ddp(DDPStrategy()))     # of lightning.fabric.strategies

        >>> accelerator = muster.sync_ddp(accelerate.Accelerator(cpu=True))
        >>> model = accelerator.prepare(torch.nn.Linear(2, 1))

    Args:
        framework: an `Accelerator`, a transformers `Trainer`, or a `DDPStrategy` of Lightning or of
            Lightning Fabric.
        model: ignored; accepted so that older scripts still run.
        compress: as in `muster.sync`.
        compress_rank: likewise.
        bucket_mb: MiB of gradients per collective; None: 4 on CPUs (25 with "powersgd"), else
            torch's 25.
        sparse_rows: with gloo, send only the rows of large embeddings that some rank has used.
        timeout_s: seconds that a rank may be late for a collective of a compressor's own group.

    Raises:
        UsageError: another kind of object, an invalid option, a hook that is registered
            already, or a model that is already wrapped.
    """
