"""HetSeq's flags in ours: each is translated, ignored, or refused with what to use instead."""

import argparse
import re
from collections.abc import Iterator, Sequence

from configs import cli
from configs.settings.train import TrainConfig
from muster.errors import refuse
from train.command_lines import translation

FLAGS = translation.read("hetseq")
OF_OPTIMIZER = {"adam": "--optimizer=adamw", "adadelta": "--optimizer=adadelta"}
PAIR = re.compile(r"\(?\s*([\d.e-]+)\s*,\s*([\d.e-]+)\s*\)?")


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """HetSeq's flags about this node's workers and batches; the remaining words as our flags.

    Raises:
        UsageError: one is wrong, or has no meaning here; all problems at once.
    """
    what = "Train with HetSeq's command line"
    parser = translation.Parser(FLAGS, "python train/command_lines/hetseq.py", what)
    add = parser.add_argument
    add("--task", required=True, choices=FLAGS.tasks)
    add("--optimizer", default="adam", choices=OF_OPTIMIZER, help="adam is AdamW")
    add("--max-sentences", "--batch-size", type=int, default=0, help="of each worker in a pass")
    add("--update-freq", type=int, default=1, help="passes per step (--accumulation)")
    add("--max-epoch", "--me", type=int, default=0, help="--epochs; 0: until --max-update")
    add("--max-update", "--mu", type=int, default=0, help="--max-steps; 0: until --max-epoch")
    add("--adam-betas", default="(0.9, 0.999)", help="--adam-beta1, --adam-beta2")
    add("--no-save", action="store_true", help="--checkpoint-every never --no-save-model")
    add("--restore-file", help="--resume; the default: the last one of --save-dir")
    add("--distributed-world-size", type=int, default=1, help="workers on all nodes")
    add("--distributed-rank", type=int, default=0, help="of this node's first worker")
    add("--distributed-gpus", type=int, default=4, help="workers of this node (default: 4)")
    add("--distributed-init-method", help="tcp://IP:PORT of rank 0, or file:///PATH all nodes see")
    add("--distributed-no-spawn", action="store_true", help="one worker on this node")
    add("--device-id", "--local-rank", type=int, help="GPU of a node's only worker")
    args, words = parser.parted(cli.dashed_flags(argv))
    refuse(_problems(args))
    return args, words


def translate(args: argparse.Namespace, ours: Sequence[str]) -> TrainConfig:
    """The settings that a command of HetSeq stands for.

    Raises:
        UsageError: one is wrong; all problems at once, in HetSeq's words.
    """
    (config,) = translation.settings([TrainConfig], [*_argv(args, ours)], FLAGS.same)
    assert isinstance(config, TrainConfig)
    return config


def _argv(args: argparse.Namespace, ours: Sequence[str]) -> Iterator[str]:
    yield from (f"--task={FLAGS.tasks[args.task]}", *FLAGS.defaults, OF_OPTIMIZER[args.optimizer])
    yield f"--epochs={args.max_epoch or args.max_update}"  # no set is too small for the steps
    yield f"--max-steps={args.max_update or 'null'}"
    yield f"--local-batch-size={args.max_sentences * args.update_freq}"
    yield f"--accumulation={args.update_freq}"
    if betas := PAIR.fullmatch(args.adam_betas):
        yield from (f"--adam-beta1={betas[1]}", f"--adam-beta2={betas[2]}")
    if args.distributed_world_size == 1:
        yield "--sync=single"
    if args.no_save:
        yield from ("--checkpoint-every=never", "--no-save-model")
    if args.restore_file not in (None, "checkpoint_last.pt"):
        yield f"--resume={args.restore_file}"
    elif any(word.startswith("--checkpoint-dir") for word in ours):
        yield "--resume=auto"
    yield from ours


def _problems(args: argparse.Namespace) -> Iterator[str]:
    for name in ("max_sentences", "update_freq", "distributed_world_size", "distributed_gpus"):
        if getattr(args, name) < 1:
            yield f"--{name.replace('_', '-')} must be at least 1 (got {getattr(args, name)})"
    if max(args.max_epoch, args.max_update) < 1:
        yield "give --max-epoch or --max-update: without both, training never ends"
    if not PAIR.fullmatch(args.adam_betas):
        yield f"--adam-betas {args.adam_betas!r}: give two numbers: '(0.9, 0.999)'"
    size, rank = args.distributed_world_size, args.distributed_rank
    method = args.distributed_init_method
    if not 0 <= rank < size:
        yield f"--distributed-rank {rank} is not below --distributed-world-size {size}"
    if method and not re.fullmatch(r"tcp://.+:\d+|file:///.+", method):
        yield f"--distributed-init-method {method!r}: give tcp://IP:PORT or file:///PATH"
    elif not method and len(ranks_here(args)) < size:
        yield (
            f"--distributed-init-method is missing: of {size} workers {len(ranks_here(args))} are "
            "on this node (--distributed-gpus); give tcp://IP:PORT of rank 0"
        )


def ranks_here(args: argparse.Namespace) -> range:
    """The workers of this node."""
    first = args.distributed_rank
    count = 1 if args.distributed_no_spawn else args.distributed_gpus
    return range(first, min(args.distributed_world_size, first + count))
