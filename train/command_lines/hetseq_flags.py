"""HetSeq's flags in ours: each is translated, ignored, or refused with what to use instead."""

import argparse
import re
from collections.abc import Iterator, Sequence

from configs import cli
from configs.settings.train import TrainConfig
from muster.errors import UsageError, refuse
from train.command_lines.course import Parser

TASKS = {"bert": "bert", "mnist": "mnist", "BertForTokenClassification": "ner"}
# Ours with another name and the same value; flags with the same name need no line.
SAME = {
    "--data": "--data-dir",
    "--dict": "--tokenizer",
    "--config-file": "--model",
    "--max-pred-length": "--max-seq-length",
    "--num-workers": "--data-workers",
    "--max-sentences-valid": "--eval-batch-size",
    "--log-interval": "--log-every",
    "--clip-norm": "--max-grad-norm",
    "--warmup-updates": "--warmup-steps",
    "--total-num-update": "--schedule-steps",
    "--end-learning-rate": "--end-lr",
    "--distributed-backend": "--backend",
    "--bucket-cap-mb": "--bucket-mb",
    "--save-dir": "--checkpoint-dir",
    "--save-interval-updates": "--checkpoint-every",
    "--keep-last-epochs": "--keep-last",
    "--best-checkpoint-metric": "--keep-best",
    "--cpu": "--device=cpu",
    "--disable-validation": "--evaluate=never",
    "--reset-dataloader": "--reset-data",
}
FURTHER_NAMES = {
    "--learning-rate": "--lr",
    "--wd": "--weight-decay",
    "--dadelta-weight-decay": "--weight-decay",
}
# HetSeq's defaults; its learning rate of 0.25 suits none of its tasks.
DEFAULTS = (
    "--seed=19940802 --max-grad-norm=25 --weight-decay=0 --decay=all --schedule=polynomial "
    "--schedule-steps=1000000 --warmup-steps=0 --end-lr=0 --power=1 --checkpoint-every=epoch"
).split()
OF_OPTIMIZER = {"adam": "--optimizer=adamw", "adadelta": "--optimizer=adadelta"}
NOT_NEEDED = (
    "--no-progress-bar --find-unused-parameters --fix-batches-to-gpus --fast-stat-sync "
    "--reset-meters --no-epoch-checkpoints --maximize-best-checkpoint-metric --log-format "
    "--valid-subset --ddp-backend --required-batch-size-multiple --lr-scheduler"
).split()
A_PICKLE = "a pickle can run code; convert it to safetensors, and give its folder as --model FOLDER"
BY_NAME = "the files of --data are found by their names: train.txt, valid.txt, test.txt"
LINKING = "entity linking is no task here"
REFUSED = {
    "--max-tokens": "batches are counted in samples; give --max-sentences",
    "--max-tokens-valid": "batches are counted in samples; give --max-sentences-valid",
    "--num-file": "all files of --data are read; --train-samples N takes the first N samples",
    "--train-subset": "files are chosen by their names; move those not to train on",
    "--validate-interval": "give --evaluate epoch, end or never",
    "--curriculum": "every epoch is shuffled",
    "--min-lr": "the schedule ends at --end-learning-rate; stop with --max-update",
    "--force-anneal": "the schedule ends at --total-num-update",
    "--use-bmuf": "give --sync local_sgd, with --outer-lr and --outer-momentum",
    "--optimizer-overrides": "give the settings themselves, such as --lr",
    "--save-interval": "give --checkpoint-every epoch, N steps or Nmin",
    "--keep-interval-updates": "give --keep-last N",
    "--no-last-checkpoints": "a run that is stopped leaves one; give --no-save for none else",
    "--no-save-optimizer-state": "a run could not continue from such a checkpoint",
    "--hetseq-state-dict": A_PICKLE,
    "--transformers-state-dict": A_PICKLE,
    "--load-state-dict-strict": "all weights of --model are loaded",
    "--train-file": BY_NAME,
    "--validation-file": BY_NAME,
    "--test-file": BY_NAME,
    "--extension-file": BY_NAME,
    "--root-data-dir": LINKING,
    "--entities": LINKING,
    "--ent-vecs-filename": LINKING,
}
PAIR = re.compile(r"\(?\s*([\d.e-]+)\s*,\s*([\d.e-]+)\s*\)?")


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """HetSeq's flags about this node's workers and batches; the remaining words as our flags.

    Raises:
        UsageError: one is wrong, or has no meaning here; all problems at once.
    """
    same = ", ".join(f"{theirs} ({ours})" for theirs, ours in SAME.items())
    parser = Parser(
        prog="python train/command_lines/hetseq.py",
        usage="%(prog)s --task TASK [flags]",
        description="Train with HetSeq's command line; all flags of train.worker work here, too.",
        epilog=f"Also, with ours in brackets: {same}. Not needed: {', '.join(NOT_NEEDED)}.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--task", required=True, help=", ".join(TASKS))
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
    for flag in NOT_NEEDED:
        add(flag, nargs="?", help=argparse.SUPPRESS)
    for flag, why in REFUSED.items():
        add(flag, nargs="?", const="", help=f"refused: {why}")
    args, words = parser.parse_known_args(cli.dashed_flags(argv))
    refuse(_problems(args))
    pairs = [word.partition("=") for word in words]
    names = SAME | FURTHER_NAMES
    return args, [names.get(flag, flag) + equals + text for flag, equals, text in pairs]


def translate(args: argparse.Namespace, ours: Sequence[str]) -> TrainConfig:
    """The settings that a command of HetSeq stands for.

    Raises:
        UsageError: one is wrong; all problems at once, in HetSeq's words.
    """
    theirs = {ours: theirs for theirs, ours in SAME.items()}
    try:
        (config,) = cli.parse([TrainConfig], [*_argv(args, ours)], prog="", description="")
    except UsageError as error:
        flags = re.compile(r"--[a-z][\w-]*")
        text = flags.sub(lambda found: theirs.get(found[0], found[0]), str(error))
        raise UsageError(text) from None
    assert isinstance(config, TrainConfig)
    return config


def _argv(args: argparse.Namespace, ours: Sequence[str]) -> Iterator[str]:
    yield from (f"--task={TASKS[args.task]}", *DEFAULTS, OF_OPTIMIZER[args.optimizer])
    yield f"--epochs={args.max_epoch or args.max_update}"  # enough for the steps with any set
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
    for flag, why in REFUSED.items():
        if getattr(args, flag[2:].replace("-", "_")) is not None:
            yield f"{flag}: {why}"
    if args.task not in TASKS:
        yield f"--task: unknown {args.task!r}; known: {', '.join(TASKS)}"
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
