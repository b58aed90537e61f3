"""Train a small GPT with a tied head as nanoGPT's train.py does on several processes.

As there, only the backward pass of the last micro-batch sends gradients, which the attribute
`require_backward_grad_sync` controls. The model's shape is from nanoGPT's character-level
Shakespeare configuration (10.7 million parameters, 42.7 MB); batch size and context are the values
that it gives for a CPU. The characters are drawn at random here, which does not change the times.
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

import muster
from tests.benchmarks.peers import common

CHARACTERS, CONTEXT, BATCH, ACCUMULATION = 65, 64, 12, 2
BUCKET_MB = 4.0  # as in muster.sync on gloo
WRAPPED = {
    "ddp": DistributedDataParallel,
    "ddp_4mib": lambda model: DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB),
    "muster": muster.sync,
}


def groups(model: nn.Module) -> list[dict[str, object]]:
    """Return parameter groups: matrices decay; biases and LayerNorms do not."""
    params = list(model.parameters())
    return [
        {"params": [param for param in params if param.dim() >= 2], "weight_decay": 0.1},
        {"params": [param for param in params if param.dim() < 2], "weight_decay": 0.0},
    ]


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--sync", choices=WRAPPED, default="ddp")
    args = parser.parse_args()  # its model, data and batch are nanoGPT's, whatever the flags say
    device = common.join(args)

    torch.manual_seed(1337)
    shape = {"n_layer": 6, "n_head": 6, "n_embd": 384, "n_positions": 256}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=CHARACTERS, **shape, **dropout)).to(device)
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3, betas=(0.9, 0.99))
    model = WRAPPED[args.sync](model)

    drawn = torch.Generator().manual_seed(1337 + dist.get_rank())
    losses, seconds = [], []
    for _ in range(args.steps):
        begin = time.perf_counter()
        total = 0.0
        for micro_step in range(ACCUMULATION):
            tokens = torch.randint(CHARACTERS, (BATCH, CONTEXT), generator=drawn).to(device)
            model.require_backward_grad_sync = micro_step == ACCUMULATION - 1
            loss = model(input_ids=tokens, labels=tokens).loss / ACCUMULATION
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
        seconds.append(time.perf_counter() - begin)
    common.report_and_end(losses, seconds)


if __name__ == "__main__":
    main()
