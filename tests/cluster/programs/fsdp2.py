"""Fully sharded training, as in torch's tutorial on FSDP2: fully_shard, DTensor, state_dict."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard


def main():
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2)]
    model = nn.Sequential(nn.Embedding(64, 32), *layers, nn.Linear(32, 64))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert all(parameter.placements == (Shard(0),) for parameter in model.parameters())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(3):
        x = torch.randint(0, 64, (4, 16))
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} of {mesh.size()}: step {step}, loss {loss.item():.3f}")
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    if rank == 0:
        torch.save(state, "model_state_dict.pt")
        print(f"{len(state)} full tensors saved")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
