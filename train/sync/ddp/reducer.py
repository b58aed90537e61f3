"""Everything that this package uses of the private parts of torch's DDP.

How torch works. DDP's reducer (torch/csrc/distributed/c10d/reducer.cpp) has a hook on each
parameter to train. When a backward pass has reached all parameters of a bucket, the bucket is sent.
It sends buckets in order, and waits at the end of the pass until each parameter has been reached.
Its first buckets follow the order in which the model registers its parameters. After the first pass
it rebuilds them, once, in the order in which that pass reached the parameters (`_rebuild_buckets`).
With `find_unused_parameters` it never rebuilds them, and exchanges a bitmap between all ranks in
every step.

What is needed here, and how it is done:

* Fixed buckets. With other buckets, numbers would be added up in another order, so the losses of a
  resumed run would differ in the last bits. `cut_buckets` runs a first pass without gradients,
  parameter by parameter, in a given order. `bucket_order` reads the order that results from a
  program's own first pass, for its checkpoint, and `restore_bucket_order` gives it to a new model.
* Parameters that a loss does not use, without another collective. `reach` adds an autograd node to
  the loss that also has all parameters as inputs, with no gradient for them. So the reducer's hooks
  are called, and the pass ends.
* Bytes and seconds of what DDP sends by itself: its logging data. By default DDP fills it only in
  some of the first steps; `log_each_step` and `logged` provide it for each step. On a GPU, updating
  it would wait for the device, so steps leave that out.
* The hook of a DDP, to find ours in a program's model: `hooks_of`.
* The number of ranks to divide by within `join()`. DDP itself divides by it, but not if a hook
  averages. `divides_by_joined` tells whether it applies.

tests/train/sync/ddp/test_reducer.py checks each of these, on every supported version of torch:
`make versions`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..ranks import Collective

NS = 1e9


class _Reach(torch.autograd.Function):
    """The identity on a loss; its backward pass also reaches all of `params`, without a gradient.

    A parameter for which the pass has a gradient gets just that gradient. For any other parameter,
    the hooks that wait for it are called.
    """

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *params: Tensor) -> Tensor:
        ctx.count = len(params)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *of_loss: Tensor) -> tuple[Tensor | None, ...]:
        return *of_loss, *[None] * ctx.count


def reach(loss: Tensor, params: Sequence[nn.Parameter]) -> Tensor:
    """Return `loss` with a backward pass that also reaches the `params` that it does not use.

    DDP waits for all parameters that were trained when it was created, even if frozen since.
    """
    frozen = [param for param in params if not param.requires_grad]
    for param in frozen:
        param.requires_grad_()
    reaching: Tensor = _Reach.apply(loss, *params)
    for param in frozen:
        param.requires_grad = False
    return reaching


def cut_buckets(model: DistributedDataParallel, params: Sequence[nn.Parameter]) -> None:
    """Have DDP fix its buckets as if its first backward pass had reached `params` in this order.

    The pass has no gradients, so DDP sends zeros, or passes them to its hook. No parameter may have
    a gradient yet.
    """
    model.reducer.prepare_for_backward([])
    for param in params:
        reach(torch.zeros((), device=param.device), [param]).backward()
    for param in params:
        param.grad = None


def can_cut_buckets(model: DistributedDataParallel) -> bool:
    """Whether `model` is new: no pass has fixed its buckets, and DDP would not count the one here.

    With `static_graph` DDP rebuilds its buckets only after a second pass that it counts. Collective
    after the first backward pass.
    """
    is_new = all(param.grad is None for param in model.module.parameters())
    needs_gradients = model.static_graph or has_sparse_gradients(model)
    return is_new and not needs_gradients and not bucket_order(model)


def has_sparse_gradients(model: nn.Module) -> bool:
    """Whether an embedding of `model` is sparse: DDP refuses a pass without its gradient."""
    return any(getattr(module, "sparse", False) for module in model.modules())


def bucket_order(model: DistributedDataParallel) -> list[int]:
    """Return the indices of the parameters, in their order in DDP's rebuilt buckets.

    Empty before the first forward pass, or if DDP never rebuilds its buckets. Collective after the
    first backward pass.
    """
    model.reducer._rebuild_buckets()  # as the next forward pass would
    if model.logger is None:
        return []
    model.logger.set_runtime_stats_and_log()
    indices = model._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    return [int(index) for index in str(indices).replace(",", " ").split()]


def log_each_step(model: DistributedDataParallel) -> None:
    """Have DDP time its collectives in every step, instead of only some of the first."""
    model._set_ddp_runtime_logging_sample_rate(1)


def logged(model: DistributedDataParallel) -> Mapping[str, Any]:
    """Return DDP's logging data; its seconds are from the last step that DDP has timed."""
    if model.logger is not None and not next(model.parameters()).is_cuda:
        model.logger.set_runtime_stats_and_log()  # else it has the data of the step before
    data: Mapping[str, Any] = model._get_ddp_logging_data()
    return data


def logged_seconds(data: Mapping[str, Any]) -> tuple[float, float]:
    """Return a backward pass's seconds of communication, and how many overlapped computing."""
    comm_s = data.get("backward_comm_time", 0) / NS
    overlapped_s = data.get("backward_compute_comm_overlap_time", 0) / NS
    return comm_s, overlapped_s


def collectives(
    model: DistributedDataParallel, data: Mapping[str, Any] | None = None
) -> list[Collective]:
    """Return DDP's own collectives for a step's gradients: one all_reduce per bucket."""
    if data is None:
        data = model._get_ddp_logging_data()
    param = next(param for param in model.parameters() if param.requires_grad)
    dtype = str(param.dtype).removeprefix("torch.")
    listed = data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]
    sizes = [int(size) for size in str(listed).split(",")]  # bytes
    return [Collective("all_reduce", (size // param.itemsize,), dtype, size) for size in sizes]


def hooks_of(model: DistributedDataParallel) -> list[Callable[..., Any]]:
    """Return the communication hooks of `model`: at most one, since DDP accepts only one."""
    return [function for function, _ in model._comm_hooks]


def without_hooks(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pickled state of a DDP as if no hook had been registered."""
    return {**state, "_comm_hooks": []}


def divides_by_joined(model: DistributedDataParallel) -> bool:
    """Whether DDP is within `join()` and divides by the ranks that still have batches.

    `join(divide_by_initial_world_size=False)` asks for that. The answer is the same on all ranks.
    """
    joins = model._join_config.enable and model._join_config.is_first_joinable
    return joins and not model._divide_by_initial_world_size


def in_backward_pass() -> bool:
    """Whether autograd is running a backward pass in this thread.

    A rank without batches calls DDP's hook outside of a backward pass, with zeros: torch makes it
    shadow what the other ranks send.
    """
    return torch._C._current_graph_task_id() != -1
