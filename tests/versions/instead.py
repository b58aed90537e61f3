"""Names that not all versions of torch have, or none promises, and what stands in for each."""

from tests.versions.names import DDP, FSDP

TRAINER = "the toolkit's own trainer alone uses it, on the torch of its lock"
SHARDED = "zero1 and fsdp are the toolkit's own trainer's, on the torch of its lock"
NO_DETAILS = "stacks say less of collectives"
NEWER = {
    "torch.distributed.all_gather_single": "all_gather_into_tensor",
    "torch.distributed.reduce_scatter_single": "reduce_scatter_tensor",
    "torch.distributed.set_timeout": "_set_pg_timeout",
    "torch.cpu.get_capabilities": "no advice on bf16",
    f"{FSDP}.set_custom_all_gather": SHARDED,
    f"{FSDP}.set_custom_reduce_scatter": SHARDED,
    f"{FSDP}.set_reduce_scatter_unused_params": SHARDED,
}
NO_LINE = "nothing: then no run is said to have workers that ran alone"
PRIVATE = {
    "torch._C._distributed_c10d._dump_fr_trace_json": NO_DETAILS,
    "torch._C._distributed_c10d": "nothing: it is torch.distributed itself",
    "torch._C._distributed_c10d._dump_nccl_trace_json": NO_DETAILS,
    "torch.distributed.distributed_c10d._abort_process_group": "a lost rank is waited for",
    "torch._C": "nothing: it is torch itself",
    "torch._C._current_graph_task_id": "nothing: torch's checkpointing itself uses it",
    "torch.distributed.distributed_c10d._world": NO_DETAILS,
    "torch.distributed.distributed_c10d._world.pg_names": "nothing: new_group itself uses it",
    "torch.distributed.distributed_c10d._backend": NO_LINE,
    "torch.distributed.distributed_c10d._default_pg_init_method": NO_LINE,
    "torch.distributed.rpc.api._ALL_WORKER_NAMES": NO_LINE,
    "torch.distributed.Reducer._rebuild_buckets": "nothing: DDP's forward pass itself calls it",
    # deprecated from 2.14 on
    "torch.distributed.distributed_c10d._set_pg_timeout": "set_timeout",
    f"{DDP}._get_ddp_logging_data": "nothing: bytes of torch's own buckets",
    f"{DDP}._set_ddp_runtime_logging_sample_rate": TRAINER,
    "torch.nn.Module._apply": TRAINER,
    "torch.nn.Module._buffers": TRAINER,
    "torch.nn.Module._parameters": SHARDED,
    "torch.nn.modules.batchnorm._BatchNorm": "nothing: documented as its classes",
    "torch.nn.modules.dropout._DropoutNd": TRAINER,
    "torch._foreach_copy_": SHARDED,
    "torch.autograd.Variable._execution_engine": "nothing: DDP itself uses it",
    "torch.autograd.Variable._execution_engine.queue_callback": "as before",
}
# In a test, which then sees the same numbers.
TAKEN_AWAY = (
    "torch.distributed.all_gather_single",
    "torch.distributed.reduce_scatter_single",
    "torch.distributed.set_timeout",
)
