"""The flags of the COS598D course's skeleton, and what each one means here."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from muster.errors import UsageError

FAMILIES = ("bert", "xlnet", "xlm", "roberta", "distilbert")
TASKS = {"sst-2": "sst2", "sts-b": "stsb"} | {
    name: name for name in ("cola", "mnli", "mrpc", "qqp", "qnli", "rte", "wnli")
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The skeleton's flags, with dashes or underscores, and a few of ours.

    Raises:
        UsageError: an unknown, missing or wrong flag.
    """
    parser = Parser(
        prog="python train/run_glue.py",
        usage="%(prog)s --task_name TASK --output_dir DIR\n"
        "       --model_name_or_path MODEL [flags]",
        description="Fine-tune on a GLUE task, with the command line of the COS598D course.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--task_name", required=True, help=f"one of {', '.join(TASKS)}, in any case")
    add("--model_name_or_path", required=True, help="Hub name or folder")
    add("--output_dir", required=True, type=Path, help="where eval_results.txt goes")
    add("--data_dir", type=Path, help="folder with the task's TSV files (default: the Hub)")
    add("--model_type", type=str.lower, choices=FAMILIES, help="must be what the model is")
    add("--config_name", default="", help="accepted if it is the model's own")
    add("--tokenizer_name", default="", help="if it is not the model's own")
    add("--cache_dir", default="", help="for downloads and tokenised data")
    add("--max_seq_length", type=int, default=128, help="tokens per sample")
    add("--do_train", action="store_true", help="train")
    add("--do_eval", action="store_true", help="evaluate after every epoch, or only evaluate")
    add("--do_lower_case", action="store_true", help="for a bare vocab.txt")
    add("--per_gpu_train_batch_size", type=int, default=8, help="samples per worker")
    add("--per_gpu_eval_batch_size", type=int, default=8, help="samples per worker")
    add("--gradient_accumulation_steps", type=int, default=1, help="batches per step")
    add("--learning_rate", type=float, default=5e-5, help="peak learning rate")
    add("--weight_decay", type=float, default=0.0, help="of weights, not of biases and norms")
    add("--adam_epsilon", type=float, default=1e-8, help="AdamW's epsilon")
    add("--max_grad_norm", type=float, default=1.0, help="clip the gradient to this norm")
    add("--num_train_epochs", type=float, default=3.0, help="whole passes over the training set")
    add("--max_steps", type=int, default=-1, help="above 0: train so many steps instead")
    add("--warmup_steps", type=int, default=0, help="steps of linear warm-up")
    add("--no_cuda", action="store_true", help="train on the CPU")
    add("--overwrite_output_dir", action="store_true", help="write into a folder in use")
    add("--overwrite_cache", action="store_true", help="needless: the cache is never out of date")
    add("--seed", type=int, default=42, help="of weights, sample order and dropout")
    add("--fp16", action="store_true", help="mixed precision, by torch itself")
    add("--fp16_opt_level", help="refused: apex is gone, see --fp16")
    add("--local_rank", type=int, help="this worker's number from 0; -1: a single process")
    add("--world_size", type=int, help="how many workers")
    add("--master_ip", help="address of worker 0")
    add("--master_port", type=int, help="port of worker 0 (default: 29500)")
    add("--sync", help="how gradients are synchronised (default: ddp; single if alone)")
    add("--bucket_mb", type=float, help="MiB per collective; 0: one per parameter, at the end")
    add("--run_id", help="name of the run folder")
    add("--logs_dir", type=Path, help="where run folders go")
    return parser.parse_args([_underscored(word) for word in argv])


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            known = ", ".join(sorted(flag for flag in self._option_string_actions))
            unknown = message.removeprefix("unrecognized arguments: ")
            message = f"unknown: {unknown}; known: {known}"
        raise UsageError(message)


def _underscored(word: str) -> str:
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value if name.startswith("--") else word
