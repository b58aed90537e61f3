"""What this package needs of the private parts of torch's DDP, and nothing else does.

What torch does. DDP's reducer (torch/csrc/distributed/c10d/reducer.cpp) has a hook on each
parameter to train. When a backward pass has reached all parameters of a bucket, the bucket is sent.
It sends buckets in their order, and waits at the end of the pass until each parameter was reached.
Its first buckets follow the order in which the model registers its parameters. After the first pass
it rebuilds them, once, in the order in which that pass has reached the parameters
(`_rebuild_buckets`). With `find_unused_parameters` it never rebuilds them, and exchanges a bitmap
between all ranks in every step.

What is needed here, and how:

* Fixed buckets. With other buckets numbers are added up in another order, so losses of a resumed
  run would differ in the last bits. `cut_buckets` runs a first pass without gradients, parameter by
  parameter, in a given order. `bucket_order` reads the order that a program's own first pass has
  made, for its checkpoint, and `restore_bucket_order` gives it to a new model.
* Parameters that a loss does not use, without another collective. `reach` gives the loss a node of
  autograd that has all parameters as inputs, too, with no gradient for them. So the reducer's hooks
  are called, and the pass ends.
* Bytes and seconds of what DDP sends by itself: its logging data. By default it is filled in some
  of the first steps only; `log_each_step` and `logged` have it for each. On a GPU reading it would
  wait for the device, so nobody asks for it there.
* The hook of a DDP, to find ours in a program's model: `hooks_of`.
* The number of ranks to divide by within `join()`. DDP divides by it itself, but not where a hook
  averages. `divides_by_joined` says whether it is in force.

tests/train/sync/ddp/test_reducer.py holds each of them, on every supported version of torch:
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

    A parameter for which the pass has a gradient gets just that. For any other, the hooks that wait
    for it are called.
    """

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *params: Tensor) -> Tensor:
        ctx.count = len(params)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *of_loss: Tensor) -> tuple[Tensor | None, ...]:
        return *of_loss, *[None] * ctx.count


def reach(loss: Tensor, params: Sequence[nn.Parameter]) -> Tensor:
    """`loss`, whose backward pass also reaches those of `params` that it does not use.

    DDP waits for all that were trained when it was made, also for those frozen since.
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

    The pass has no gradients, and DDP sends zeros, or gives them to its hook. No parameter may have
    a gradient yet.
    """
    model.reducer.prepare_for_backward([])
    for param in params:
        reach(torch.zeros((), device=param.device), [param]).backward()
    for param in params:
        param.grad = None


def can_cut_buckets(model: DistributedDataParallel) -> bool:
    """Whether `model` is new: no pass has fixed its buckets, or will count the one that does.

    With `static_graph` DDP rebuilds them only after a second pass that it counts. It refuses a pass
    without the gradient of a sparse embedding. Collective after the first backward pass.
    """
    is_new = all(param.grad is None for param in model.module.parameters())
    return is_new and not model.static_graph and not bucket_order(model)


def bucket_order(model: DistributedDataParallel) -> list[int]:
    """The places of the parameters, in the order in which DDP's rebuilt buckets hold them.

    Empty before the first forward pass, or if it never rebuilds them. Collective after the first
    backward pass.
    """
    model.reducer._rebuild_buckets()  # as the next forward pass would
    if model.logger is None:
        return []
    model.logger.set_runtime_stats_and_log()
    indices = model._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    return [int(index) for index in str(indices).replace(",", " ").split()]


def log_each_step(model: DistributedDataParallel) -> None:
    """Have DDP time its collectives in every step, and not in some of the first."""
    model._set_ddp_runtime_logging_sample_rate(1)


def logged(model: DistributedDataParallel) -> Mapping[str, Any]:
    """DDP's logging data; its seconds are those of the last step that DDP has timed."""
    if model.logger is not None and not next(model.parameters()).is_cuda:
        model.logger.set_runtime_stats_and_log()  # else it has the data of the step before
    data: Mapping[str, Any] = model._get_ddp_logging_data()
    return data


def logged_seconds(data: Mapping[str, Any]) -> tuple[float, float]:
    """Of communication in the step's backward pass, and how much of it beside computing."""
    comm_s = data.get("backward_comm_time", 0) / NS
    overlapped_s = data.get("backward_compute_comm_overlap_time", 0) / NS
    return comm_s, overlapped_s


def collectives(
    model: DistributedDataParallel, data: Mapping[str, Any] | None = None
) -> list[Collective]:
    """DDP's own collectives for a step's gradients: one all_reduce per bucket."""
    if data is None:
        data = model._get_ddp_logging_data()
    param = next(param for param in model.parameters() if param.requires_grad)
    dtype = str(param.dtype).removeprefix("torch.")
    listed = data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]
    sizes = [int(size) for size in str(listed).split(",")]  # bytes
    return [Collective("all_reduce", (size // param.itemsize,), dtype, size) for size in sizes]


def hooks_of(model: DistributedDataParallel) -> list[Callable[..., Any]]:
    """The communication hook of `model`, if one is registered; DDP takes one."""
    return [function for function, _ in model._comm_hooks]


def without_hooks(state: Mapping[str, Any]) -> dict[str, Any]:
    """The pickled state of a DDP as if no hook had been registered."""
    return {**state, "_comm_hooks": []}


def divides_by_joined(model: DistributedDataParallel) -> bool:
    """Whether DDP is within `join()` and divides by the ranks that still have batches.

    `join(divide_by_initial_world_size=False)` asks for that. All ranks answer alike.
    """
    joins = model._join_config.enable and model._join_config.is_first_joinable
    return joins and not model._divide_by_initial_world_size


def in_backward_pass() -> bool:
    """Whether autograd runs a backward pass in this thread.

    A rank without batches calls DDP's hook outside of one, with zeros: torch has it shadow what
    the others send.
    """
    return torch._C._current_graph_task_id() != -1
