"""Users' scripts that do not use Muster, for tests of launchers."""

from pathlib import Path

# Its ranks meet; `--fail RANK` makes a rank fail in its second step.
DDP = """
import argparse, sys, time
import configs
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--fail", type=int)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for step in range(args.steps):
    if step == 1 and rank == args.fail:
        raise ValueError("sample 17 is empty")
    loss = model(torch.full((8, 4), float(rank))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"rank {rank} of {dist.get_world_size()}: step {step}", flush=True)
    if args.steps > 100: time.sleep(0.05)
dist.destroy_process_group()
"""
# The flags that COS598D (COS568) and CS744 prescribe, in a script that reads no variable.
RUN_GLUE = """
import argparse, json
import torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--task_name")
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--master_ip", "--master-ip", type=str, default="")
parser.add_argument("--master_port", type=str, default="PORT")
parser.add_argument("--world_size", "--num-nodes", type=int, default=1)
parser.add_argument("--rank", dest="local_rank", type=int)
args = parser.parse_args()
dist.init_process_group(
    backend="gloo", init_method=f"tcp://{args.master_ip}:{args.master_port}",
    world_size=args.world_size, rank=args.local_rank,
)
total = torch.tensor(args.local_rank)
dist.all_reduce(total)
print(args.task_name, args.local_rank, int(total), flush=True)
dist.destroy_process_group()
"""
COS598D = "--master_ip {master_addr} --master_port {master_port}".split()
COS598D += "--world_size {world_size} --local_rank {rank}".split()
CS744 = "--master-ip {master_addr} --num-nodes {world_size} --rank {rank}".split()
# It prints a worker's number of threads, and the CPUs that the worker may use.
SHOWS_CORES = """
import json, os
print(json.dumps([os.environ["OMP_NUM_THREADS"], sorted(os.sched_getaffinity(0))]), flush=True)
"""


def ready_workers(project: Path) -> list[Path]:
    """Return the output files of the workers that have printed something."""
    found = project.glob("logs/*/workers/*.out")
    return [path for path in found if path.stat().st_size > 0]
