"""The flags of the COS598D course's skeleton, and what each one means here."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from train.command_lines import translation

FAMILIES = ("bert", "xlnet", "xlm", "roberta", "distilbert")
FLAGS = translation.read("course")


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """What the skeleton's flags say, with dashes or underscores; the other words as ours.

    Raises:
        UsageError: a missing or wrong flag.
    """
    what = "Fine-tune on a GLUE task, with the command line of the COS598D course"
    parser = translation.Parser(FLAGS, "python train/run_glue.py", what)
    add = parser.add_argument
    add("--task_name", required=True, type=str.lower, choices=FLAGS.tasks, help="in any case")
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
    return parser.parted([_underscored(word) for word in argv])


def _underscored(word: str) -> str:
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value if name.startswith("--") else word
