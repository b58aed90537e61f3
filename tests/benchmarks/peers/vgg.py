"""VGG-11 on generated images as it is written by hand: DistributedDataParallel and a DataLoader."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import muster
from tests.benchmarks.peers import common
from train.tasks.cs744 import CLASSES, LAYERS, SHAPE, Vgg

WRAPPED = {"ddp": DistributedDataParallel, "muster": muster.sync}


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--sync", choices=WRAPPED, default="ddp")
    parser.add_argument("--compile", action="store_true", help="the model, by torch.compile")
    args = parser.parse_args()
    device = common.join(args)
    torch.manual_seed(args.seed)
    images = torch.randn(args.batch_size * args.steps, *SHAPE)
    samples = TensorDataset(images, torch.randint(CLASSES, (len(images),)))
    sampler: DistributedSampler[object] = DistributedSampler(samples, seed=args.seed)
    part = args.batch_size // dist.get_world_size()
    workers = 2 if device.type == "cuda" else 0
    pinned = device.type == "cuda"
    batches = iter(
        DataLoader(samples, part, sampler=sampler, num_workers=workers, pin_memory=pinned)
    )
    model = Vgg(LAYERS["vgg11"], CLASSES).to(device)
    if args.compile:
        model.compile()
    wrapped = WRAPPED[args.sync](model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    losses = []
    seconds = []
    for _ in range(args.steps):
        begin = time.perf_counter()
        inputs, labels = (tensor.to(device, non_blocking=True) for tensor in next(batches))
        loss = functional.cross_entropy(wrapped(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    common.report_and_end(losses, seconds)


if __name__ == "__main__":
    main()
