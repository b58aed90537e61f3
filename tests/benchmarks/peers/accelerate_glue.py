"""Fine-tune as in Accelerate's GLUE example, which also prepares the data and the schedule."""

import time

import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

import muster
from tests.benchmarks.peers import common


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--muster", action="store_true", help="with one line changed")
    args = parser.parse_args()
    accelerator = Accelerator(cpu=args.device == "cpu")
    workers = accelerator.num_processes
    set_seed(args.seed)

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    # Its batches go to ranks 0, 1, ... in turn, so that each rank has its part of our batch.
    loader = DataLoader(
        common.ordered_samples(args, tokenizer, padding=False),  # as the example pads
        batch_size=args.batch_size // workers,
        collate_fn=transformers.DataCollatorWithPadding(tokenizer),
    )
    model = transformers.AutoModelForSequenceClassification.from_pretrained(args.model)
    if args.muster:
        muster.sync_ddp(accelerator, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    # A prepared schedule steps once for each worker.
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, 0, args.schedule_steps * workers
    )
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    losses, seconds = [], []
    model.train()
    begin = time.perf_counter()
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
    common.report_and_end(losses, seconds)


if __name__ == "__main__":
    main()
