"""The flags of the COS598D course's skeleton, each with what it still means."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from train.command_lines.translation import Parser

FAMILIES = ("bert", "xlnet", "xlm", "roberta", "distilbert")
TASKS = {"sst-2": "sst2", "sts-b": "stsb"} | {
    name: name for name in ("cola", "mnli", "mrpc", "qqp", "qnli", "rte", "wnli")
}
# By ours of another name and the same meaning; those of one name need no line.
NAMES = {
    "--model_name_or_path": "--model",
    "--tokenizer_name": "--tokenizer",
    "--do_lower_case": "--lower-case=yes",
    "--per_gpu_train_batch_size": "--local-batch-size",
    "--per_gpu_eval_batch_size": "--eval-batch-size",
    "--gradient_accumulation_steps": "--accumulation",
    "--learning_rate": "--lr",
    "--adam_epsilon": "--adam-eps",
    "--num_train_epochs": "--epochs",
    "--max_steps": "--schedule-steps",
    "--no_cuda": "--device=cpu",
    "--fp16": "--precision=fp16",
    "--local_rank": "--rank",
}
DEFAULTS = ("--pad=max_length", "--eval-batch-size=8", "--lr=5e-5")  # as the skeleton has them


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """What the skeleton's flags say, with dashes or underscores; the other words as ours.

    Raises:
        UsageError: a missing or wrong flag.
    """
    same = ", ".join(f"{theirs} ({ours})" for theirs, ours in NAMES.items())
    parser = Parser(
        prog="python train/run_glue.py",
        description="Fine-tune on a GLUE task, with the command line of the COS598D course; "
        "all flags of train.worker work here, too.",
        epilog=f"Also, with ours in brackets: {same}.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--task_name", required=True, type=str.lower, choices=TASKS, help="in any case")
    add("--model_name_or_path", required=True, help="Hub name or folder")
    add("--output_dir", required=True, type=Path, help="where eval_results.txt goes")
    add("--model_type", type=str.lower, choices=FAMILIES, help="must be what the model is")
    add("--config_name", default="", help="accepted if it is the model's own")
    add("--do_train", action="store_true", help="train")
    add("--do_eval", action="store_true", help="evaluate after every epoch, or only evaluate")
    add("--per_gpu_train_batch_size", type=int, default=8, help="samples per worker")
    add("--gradient_accumulation_steps", type=int, default=1, help="batches per step")
    add("--num_train_epochs", type=float, default=3.0, help="whole passes over the training set")
    add("--max_steps", type=int, default=-1, help="above 0: train so many steps instead")
    add("--overwrite_output_dir", action="store_true", help="write into a folder in use")
    add("--overwrite_cache", action="store_true", help="needless: the cache is never out of date")
    add("--fp16_opt_level", help="refused: apex is gone, see --fp16")
    return parser.parted([_underscored(word) for word in argv], NAMES)


def _underscored(word: str) -> str:
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value if name.startswith("--") else word
