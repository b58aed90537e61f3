"""Fine-tune with a hand-written script: DistributedDataParallel, or a loop over the gradients."""

import time

import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import muster
from tests.benchmarks.peers import common


def gather_scatter(model: nn.Module) -> None:
    """Gather each gradient on rank 0, and scatter its mean."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for param in model.parameters():
        if rank == 0:
            gathered = [torch.zeros_like(param.grad) for _ in range(world_size)]
            dist.gather(param.grad, gathered, dst=0)
            mean = torch.stack(gathered).mean(dim=0)
            dist.scatter(param.grad, [mean] * world_size, src=0)
        else:
            dist.gather(param.grad, dst=0)
            dist.scatter(param.grad, src=0)


def all_reduce(model: nn.Module) -> None:
    """Average the gradients with one all_reduce each."""
    for param in model.parameters():
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


BUCKET_MB = 4.0  # as in muster.sync on gloo
SYNCS = {"all_reduce": all_reduce, "gather_scatter": gather_scatter}
WRAPPED = {
    "ddp": DistributedDataParallel,
    "ddp_4mib": lambda model: DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB),
    "muster": muster.sync,
}


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--sync", choices=["none", *WRAPPED, *SYNCS], default="ddp")
    args = parser.parse_args()
    device = common.join(args)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    samples = common.ordered_samples(args, tokenizer)
    part = args.batch_size // world_size
    mine = [
        list(range(start + rank * part, start + (rank + 1) * part))
        for start in range(0, len(samples), args.batch_size)
    ]
    collate = transformers.DataCollatorWithPadding(
        tokenizer
    )  # samples with the full width already stay as they are
    batches = iter(DataLoader(samples, batch_sampler=mine, collate_fn=collate))

    model = transformers.AutoModelForSequenceClassification.from_pretrained(args.model).to(device)
    if args.sync in WRAPPED:
        model = WRAPPED[args.sync](model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, args.schedule_steps)

    losses, seconds = [], []
    model.train()
    for _ in range(args.steps):
        begin = time.perf_counter()
        batch = {name: tensor.to(device) for name, tensor in next(batches).items()}
        loss = model(**batch).loss
        loss.backward()
        if args.sync in SYNCS:
            SYNCS[args.sync](model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    common.report_and_end(losses, seconds)


if __name__ == "__main__":
    main()
