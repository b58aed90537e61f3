"""Training as it is written by hand, several cases in one start: DDP and `muster.sync`, compiled.

Prints a line of JSON for each case: its losses, means over all ranks, and rank 0's seconds.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import muster
from tests.benchmarks.peers import common
from train.tasks.cs744 import CLASSES, LAYERS, SHAPE, Vgg

WRAPPED = {"ddp": DistributedDataParallel, "muster": muster.sync}
Loss = Callable[[nn.Module, dict[str, Tensor]], Tensor]


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--shape", choices=["bert", "vgg"], required=True)
    parser.add_argument("--cases", nargs="+", required=True, help="ddp, muster, ddp,compile, …")
    args = parser.parse_args()
    device = common.join(args)
    samples, build, loss_of = (bert if args.shape == "bert" else vgg)(args)
    for case in args.cases:
        sync, _, compiled = case.partition(",")
        torch.manual_seed(args.seed)
        model = build().to(device)
        if compiled:
            model.compile()
        losses, seconds = trained(args, WRAPPED[sync](model), loss_of, samples, device)
        mean = torch.tensor(losses, dtype=torch.float64, device=device)
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        if dist.get_rank() == 0:
            line = {"case": case, "losses": mean.tolist(), "step_s": seconds}
            print(json.dumps(line), flush=True)
        del model
    common.report_and_end([], [])


def bert(args: Any) -> tuple[list[Any], Callable[[], nn.Module], Loss]:
    """A text classifier, and samples of one width."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    auto = transformers.AutoModelForSequenceClassification
    samples = [
        {name: torch.tensor(value) for name, value in sample.items()}
        for sample in common.ordered_samples(args, tokenizer)
    ]
    return samples, lambda: auto.from_pretrained(args.model), lambda net, batch: net(**batch).loss


def vgg(args: Any) -> tuple[list[Any], Callable[[], nn.Module], Loss]:
    """VGG-11, and generated images."""
    generator = torch.Generator().manual_seed(args.seed)
    images = torch.randn(args.batch_size * 8, *SHAPE, generator=generator)
    labels = torch.randint(CLASSES, (len(images),), generator=generator)
    samples = [
        {"images": images[number % len(images)], "labels": labels[number % len(images)]}
        for number in range(args.batch_size * args.steps)
    ]
    return (
        samples,
        lambda: Vgg(LAYERS["vgg11"], CLASSES),
        lambda net, batch: functional.cross_entropy(net(batch["images"]), batch["labels"]),
    )


def trained(
    args: Any, model: nn.Module, loss_of: Loss, samples: list[Any], device: torch.device
) -> tuple[list[float], list[float]]:
    """Losses and seconds of each step of this rank."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    losses = []
    seconds = []
    batches = loaded(args, samples, device)
    model.train()
    for _ in range(args.steps):
        begin = time.perf_counter()
        batch = {name: part.to(device, non_blocking=True) for name, part in next(batches).items()}
        loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    return losses, seconds


def loaded(args: Any, samples: list[Any], device: torch.device) -> Iterator[dict[str, Tensor]]:
    """This rank's part of each batch; on a GPU by two processes, pinned."""
    part = args.batch_size // dist.get_world_size()
    first = dist.get_rank() * part
    starts = range(first, len(samples), args.batch_size)
    mine = [list(range(start, start + part)) for start in starts]
    on_gpu = device.type == "cuda"
    return iter(
        DataLoader(samples, batch_sampler=mine, num_workers=2 * on_gpu, pin_memory=on_gpu)  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    main()
