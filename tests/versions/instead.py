"""Names that not all versions of torch have, or none promises, and what stands in for each."""

from typing import NamedTuple

from tests.versions.names import DDP, FSDP


class Instead(NamedTuple):
    first: str  # version that is known to have it
    what: str  # is done without it
    taken_away: bool = False  # in a test, which then sees the same numbers


TRAINER = "the toolkit's own trainer alone uses it, on the torch of its lock"
SHARDED = "zero1 and fsdp are the toolkit's own trainer's, on the torch of its lock"
NO_DETAILS = "stacks say less of collectives"
NEWER = {
    "torch.distributed.all_gather_single": Instead("2.13", "all_gather_into_tensor", True),
    "torch.distributed.reduce_scatter_single": Instead("2.13", "reduce_scatter_tensor", True),
    "torch.distributed.set_timeout": Instead("2.14", "_set_pg_timeout", True),
    "torch.cpu.get_capabilities": Instead("2.13", TRAINER),
    f"{DDP}(forward_sync_buffers)": Instead("2.13", TRAINER),
    f"{FSDP}.set_custom_all_gather": Instead("2.13", SHARDED),
    f"{FSDP}.set_custom_reduce_scatter": Instead("2.13", SHARDED),
    f"{FSDP}.set_reduce_scatter_unused_params": Instead("2.13", SHARDED),
}
PRIVATE = {
    "torch._C._distributed_c10d._dump_fr_trace_json": Instead("2.13", NO_DETAILS),
    "torch.distributed.distributed_c10d._world": Instead("2.6", NO_DETAILS),
    # deprecated from 2.14 on
    "torch.distributed.distributed_c10d._set_pg_timeout": Instead("2.6", "set_timeout"),
    f"{DDP}._get_ddp_logging_data": Instead("2.6", "nothing: bytes of torch's own buckets"),
    f"{DDP}._set_ddp_runtime_logging_sample_rate": Instead("2.6", TRAINER),
    "torch.nn.Module._apply": Instead("2.6", TRAINER),
    "torch.nn.Module._buffers": Instead("2.6", TRAINER),
    "torch.nn.modules.batchnorm._BatchNorm": Instead("2.6", "nothing: documented as its classes"),
    "torch.nn.modules.dropout._DropoutNd": Instead("2.6", TRAINER),
    "torch._foreach_copy_": Instead("2.6", SHARDED),
    "torch.autograd.Variable._execution_engine": Instead("2.6", "nothing: DDP itself uses it"),
    "torch.autograd.Variable._execution_engine.queue_callback": Instead("2.6", "as before"),
}
