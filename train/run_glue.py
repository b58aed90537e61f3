r"""Run the COS568 course's own command lines, unchanged, on the same trainer as all other runs.

python train/run_glue.py --model_type bert --model_name_or_path bert-base-cased --task_name RTE \
    --do_train --do_eval --data_dir glue_data/RTE --per_device_train_batch_size 16 \
    --output_dir /tmp/RTE --master_ip 10.10.1.1 --master_port 12356 --world_size 4 --local_rank 0
"""

if __name__ == "__main__":  # run as a script: our modules are not on its path yet
    from pathlib import Path
    from runpy import run_path

    run_path(f"{Path(__file__).resolve().parents[1]}/muster/run_module.py")["start"](__file__)

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from configs.settings.train import ByHand, TrainConfig
from muster.errors import UsageError, refuse
from muster.run_files import MODEL, SUMMARY, new_run_id
from muster.writing import write_text
from train import worker
from train.command_lines import translation
from train.distributed.world import World

FAMILIES = ("bert", "xlnet", "xlm", "roberta", "distilbert")
FLAGS = translation.read("course")
COURSE_TOTAL = 64  # samples per step in the assignment, for any number of workers
COURSE_NAMES = {"accuracy": "acc", "matthews_correlation": "mcc"}  # in the course's files
NO_METRIC = re.compile("epoch|step|eval_loss.*")  # entries of a record that are not metrics


def main(argv: Sequence[str] | None = None) -> int:
    args, words = parse(sys.argv[1:] if argv is None else argv)
    config, by_hand, world = translate(args, words, os.environ)
    if config.cache_dir is not None:  # read when transformers is imported
        os.environ.setdefault("HF_HOME", str(config.cache_dir))
    worker.silence_torch()
    _check_output(args)
    _check_family(args)
    if world.is_main:
        print(batch_size(args, world), flush=True)
    code = worker.train(config, by_hand)
    if code == 0 and world.is_main:
        run_dir = config.logs_root / str(config.run_id)
        if args.do_train:  # for `from_pretrained`, as the skeleton does
            shutil.copytree(MODEL.path(run_dir), args.output_dir, dirs_exist_ok=True)
        if args.do_eval or args.evaluate_during_training:
            write_results(run_dir, args.output_dir)
    return code


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse the skeleton's flags (with dashes or underscores); the remaining words are our flags.

    Raises:
        UsageError: a missing or wrong flag.
    """
    what = "Fine-tune on a GLUE task, with the command line of the COS568 course (formerly COS598D)"
    parser = translation.Parser(FLAGS, "python train/run_glue.py", what)
    add = parser.add_argument
    add(
        "--task_name",
        required=True,
        type=str.lower,
        choices=FLAGS.tasks,
        help="upper or lower case",
    )
    add("--model_name_or_path", required=True, help="Hub name or folder")
    add("--output_dir", required=True, type=Path, help="folder for eval_results.txt")
    add("--model_type", type=str.lower, choices=FAMILIES, help="must match the model's type")
    add("--config_name", default="", help="only the model's own configuration is accepted")
    add("--do_train", action="store_true", help="train")
    add(
        "--do_eval",
        action="store_true",
        help="evaluate after every epoch, or only evaluate (without --do_train)",
    )
    per_worker = ("--per_device_train_batch_size", "--per_gpu_train_batch_size")
    add(*per_worker, type=int, default=8, help="samples per worker")
    add(
        "--total_batch_size",
        type=int,
        help="must equal the sum of all workers' batch sizes",
    )
    add("--evaluate_during_training", action="store_true", help="evaluate after every epoch")
    add("--gradient_accumulation_steps", type=int, default=1, help="batches per step")
    add(
        "--num_train_epochs",
        type=float,
        default=3.0,
        help="passes over the training set, a whole number",
    )
    add("--max_steps", type=int, default=-1, help="if above 0, train for this many steps instead")
    add(
        "--overwrite_output_dir",
        action="store_true",
        help="write to --output_dir even if it is not empty",
    )
    return parser.parted([_underscored(word) for word in argv])


def _underscored(word: str) -> str:
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value if name.startswith("--") else word


def translate(
    args: argparse.Namespace, words: Sequence[str], env: Mapping[str, str]
) -> tuple[TrainConfig, ByHand, World]:
    """Translate a command of the course into settings for one of the run's workers.

    Raises:
        UsageError: a flag is wrong, or has no meaning here; the message lists all problems.
    """
    refuse(_problems(args))
    argv = [*_argv(args), *words]
    config, by_hand, world = translation.worker_settings(argv, env, args.theirs)
    config = config.on(world.world_size)
    if args.total_batch_size not in (None, config.batch_size):
        raise UsageError(
            f"--total_batch_size is {args.total_batch_size}, but {_name_of_batch(args)} "
            f"{args.per_device_train_batch_size} with world size {world.world_size} gives a "
            f"total of {config.batch_size}"
        )
    if config.bucket_mb == 0:
        config = replace(config, overlap=False, sparse_rows=False)
    if world.is_main:  # rank 0 chooses the run's name for all ranks, and needs it afterwards
        run_id = config.run_id or world.run_id
        run_id = run_id or new_run_id(config.logs_root, config.name, str(world.world_size))
        config = replace(config, run_id=run_id)
    return config, by_hand, world


def write_results(run_dir: Path, output_dir: Path) -> None:
    """Write the metrics to `eval_results.txt`, like the skeleton; MNLI's second set goes to -MM."""
    text = SUMMARY.path(run_dir).read_text(encoding="utf-8")
    last = json.loads(text)["evaluations"][-1]
    second = output_dir.with_name(f"{output_dir.name}-MM")
    for folder, suffix in ((output_dir, ""), (second, "_mm")):
        scores = {
            COURSE_NAMES.get(name.removesuffix("_mm"), name.removesuffix("_mm")): value
            for name, value in last.items()
            if name.endswith("_mm") == bool(suffix) and not NO_METRIC.fullmatch(name)
        }
        if scores:
            lines = "".join(f"{name} = {scores[name]}\n" for name in sorted(scores))
            write_text(folder / "eval_results.txt", lines)


def _problems(args: argparse.Namespace) -> Iterator[str]:
    """Yield problems that the trainer would not find, or not report in the course's terms."""
    if not (args.do_train or args.do_eval):
        yield "nothing to do\ntip: add --do_train, --do_eval, or both"
    if args.config_name not in ("", args.model_name_or_path):
        yield (
            f"--config_name {args.config_name}: the weights of --model_name_or_path need their "
            "own configuration"
            "\ntip: leave it out, or to start from random weights, give it as "
            "--model_name_or_path"
        )
    if not args.num_train_epochs.is_integer():  # nor infinity
        yield f"--num_train_epochs {args.num_train_epochs}: expected a whole number"


def _argv(args: argparse.Namespace) -> Iterator[str]:
    """Translate the course's flags whose meaning is different here into our flags."""
    task, model = FLAGS.tasks[args.task_name], args.model_name_or_path
    yield from (f"--task={task}", f"--model={model}", *FLAGS.defaults)
    epochs, evaluate = int(args.num_train_epochs), "epoch"
    if args.max_steps > 0:  # as in the skeleton: the learning rate is 0 at the last step
        epochs, evaluate = args.max_steps, "end"
        yield from (f"--max-steps={args.max_steps}", f"--schedule-steps={args.max_steps}")
    yield f"--epochs={epochs if args.do_train else 0}"
    evaluates = args.do_eval or args.evaluate_during_training
    yield f"--evaluate={evaluate if evaluates else 'never'}"
    per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps
    yield f"--local-batch-size={per_step}"
    yield f"--accumulation={args.gradient_accumulation_steps}"
    if args.overwrite_output_dir:
        yield "--overwrite"


def batch_size(args: argparse.Namespace, world: World) -> str:
    """Describe the total batch size, and how to get the assignment's total."""
    of_each, parts = args.per_device_train_batch_size, args.gradient_accumulation_steps
    total, parts = of_each * parts * world.world_size, parts * world.world_size
    text = (
        f"batch size: {of_each} per worker x world size {world.world_size}"
        f" x {args.gradient_accumulation_steps} accumulated = {total} in total"
    )
    if world.world_size > 1 and total != COURSE_TOTAL and COURSE_TOTAL % parts == 0:
        text += (
            f"\nto get the course's total of {COURSE_TOTAL} with {world.world_size} workers, use "
            f"{_name_of_batch(args)} {COURSE_TOTAL // parts}"
        )
    return text


def _name_of_batch(args: argparse.Namespace) -> str:
    """Return the flag for a worker's batch size, as it was typed."""
    return str(args.theirs["--local-batch-size"])


def _check_output(args: argparse.Namespace) -> None:
    folder: Path = args.output_dir
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output_dir {folder} is not a folder")
    used = folder.exists() and any(folder.iterdir())
    if args.do_train and used and not args.overwrite_output_dir:
        raise UsageError(
            f"--output_dir {folder} is not empty"
            "\ntip: choose another folder, or add --overwrite_output_dir"
        )


def _check_family(args: argparse.Namespace) -> None:
    """Refuse a --model_type that does not fit the model, which determines the family."""
    if args.model_type is None:
        return
    from transformers import AutoConfig

    from train.tasks.sources import hub

    name = args.model_name_or_path
    family = hub.fetch("--model_name_or_path", name, AutoConfig.from_pretrained).model_type
    if family != args.model_type:
        raise UsageError(f"--model_type is {args.model_type}, but {name} has type {family}")
