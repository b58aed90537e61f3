"""The COS598D course's own command lines run unchanged, on the same trainer as all others.

python train/run_glue.py --model_type bert --model_name_or_path bert-base-cased --task_name RTE \
    --do_train --do_eval --data_dir glue_data/RTE --per_gpu_train_batch_size 16 \
    --output_dir /tmp/RTE --master_ip 10.10.1.1 --master_port 12356 --world_size 4 --local_rank 0
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

if __name__ == "__main__":
    # A script's own folder is first on the path, where it could hide a library.
    sys.path[: not sys.flags.safe_path] = [str(Path(__file__).resolve().parent.parent)]

    from muster import errors

    errors.begin()

from configs import cli
from configs.settings.program import new_run_id
from configs.settings.train import ByHand, TrainConfig
from muster.errors import UsageError, refuse
from muster.run_files import MODEL, SUMMARY
from muster.writing import write_text
from train import worker
from train.command_lines import course
from train.distributed.world import World

COURSE_TOTAL = 64  # samples per step in the assignment, for any number of workers
COURSE_NAMES = {"accuracy": "acc", "matthews_correlation": "mcc"}  # of metrics in its files
# The course's names for our settings, so that an error names the flag that was typed.
FLAGS = {
    "--batch-size": "--per_gpu_train_batch_size",
    "--eval-batch-size": "--per_gpu_eval_batch_size",
    "--accumulation": "--gradient_accumulation_steps",
    "--lr ": "--learning_rate ",
    "--adam-eps ": "--adam_epsilon ",
    "--epochs": "--num_train_epochs",
    "--schedule-steps": "--max_steps",
    "--rank": "--local_rank",
}


@dataclass(frozen=True)
class CourseRun:
    """A course's command as settings of Muster."""

    config: TrainConfig
    by_hand: ByHand
    world: World
    output_dir: Path
    note: str

    @property
    def run_dir(self) -> Path:
        """The run folder, on the main rank, which has chosen it."""
        assert self.config.run_id is not None
        return self.config.logs_root / self.config.run_id


def main(argv: Sequence[str] | None = None) -> int:
    args = course.parse(sys.argv[1:] if argv is None else argv)
    run = translate(args, os.environ)
    if args.cache_dir:
        os.environ.setdefault("HF_HOME", args.cache_dir)  # read when transformers is imported
    worker.silence_torch()
    _check_output(run.output_dir, args)
    _check_family(args)
    if run.world.is_main:
        print(run.note, flush=True)
    code = worker.train(run.config, run.by_hand)
    if code == 0 and run.world.is_main:
        if args.do_train:
            copy_model(run)
        if args.do_eval:
            write_results(run)
    return code


def translate(args: argparse.Namespace, env: Mapping[str, str]) -> CourseRun:
    """The settings of a command of the course, for one of the run's workers.

    Raises:
        UsageError: a flag is wrong, or has no meaning here; all problems at once.
    """
    refuse(_problems(args))
    try:
        by_hand = ByHand(
            master_ip=args.master_ip,
            master_port=args.master_port,
            world_size=args.world_size,
            rank=args.local_rank,
        )
        world = World.find(env, **asdict(by_hand))
        config = _config(args, world)
    except UsageError as error:
        text = str(error)
        for ours, theirs in FLAGS.items():
            text = text.replace(ours, theirs)
        raise UsageError(text) from None
    if world.is_main:  # it chooses the name for all, and needs it afterwards
        run_id = args.run_id or world.run_id
        run_id = run_id or new_run_id(config, config.name, str(world.world_size))
        config = replace(config, run_id=run_id)
    return CourseRun(config, by_hand, world, args.output_dir, _note(args, config, world))


def copy_model(run: CourseRun) -> None:
    """Copy model and tokenizer for `from_pretrained(OUTPUT_DIR)`, as the skeleton does."""
    shutil.copytree(MODEL.path(run.run_dir), run.output_dir, dirs_exist_ok=True)


def write_results(run: CourseRun) -> None:
    """Write the metrics as `eval_results.txt`, like the skeleton; MNLI's second set into -MM."""
    text = SUMMARY.path(run.run_dir).read_text(encoding="utf-8")
    last = json.loads(text)["evaluations"][-1]
    second = run.output_dir.with_name(f"{run.output_dir.name}-MM")
    for folder, suffix in ((run.output_dir, ""), (second, "_mm")):
        scores = {
            COURSE_NAMES.get(name.removesuffix("_mm"), name.removesuffix("_mm")): value
            for name, value in last.items()
            if name.endswith("_mm") == bool(suffix) and not name.startswith("eval_loss")
        }
        scores.pop("epoch", None)
        scores.pop("step", None)
        if scores:
            lines = "".join(f"{name} = {scores[name]}\n" for name in sorted(scores))
            write_text(folder / "eval_results.txt", lines)


def _problems(args: argparse.Namespace) -> list[str]:
    """Problems that the trainer would not find, or would not report in the course's words."""
    problems = []
    if args.task_name.lower() not in course.TASKS:
        problems.append(
            f"--task_name: unknown {args.task_name!r}; known: {', '.join(course.TASKS)}"
        )
    if not (args.do_train or args.do_eval):
        problems.append("nothing to do: give --do_train, --do_eval, or both")
    if args.config_name not in ("", args.model_name_or_path):
        problems.append(
            f"--config_name {args.config_name}: weights go with their own configuration; leave "
            f"it out, or give it as --model_name_or_path to start from random weights"
        )
    if args.fp16_opt_level is not None:
        problems.append(
            f"--fp16_opt_level {args.fp16_opt_level}: it chose among the ways of NVIDIA apex, "
            "which torch has replaced by one of its own; leave it out, --fp16 is enough"
        )
    if args.num_train_epochs != int(args.num_train_epochs):
        problems.append(f"--num_train_epochs {args.num_train_epochs}: give whole epochs")
    return problems


def _config(args: argparse.Namespace, world: World) -> TrainConfig:
    stops = args.max_steps > 0
    epochs = args.max_steps if stops else int(args.num_train_epochs)
    return TrainConfig(
        task=course.TASKS[args.task_name.lower()],
        data_dir=args.data_dir,
        model=args.model_name_or_path,
        tokenizer=args.tokenizer_name or None,
        lower_case="yes" if args.do_lower_case else "auto",
        max_seq_length=args.max_seq_length,
        pad="max_length",
        epochs=epochs if args.do_train else 0,
        # As in the skeleton, and so that the learning rate is 0 at the last step.
        max_steps=args.max_steps if stops else None,
        schedule_steps=args.max_steps if stops else None,
        batch_size=_total(args, world),
        eval_batch_size=args.per_gpu_eval_batch_size,
        accumulation=args.gradient_accumulation_steps,
        sync=args.sync or ("single" if world.world_size == 1 else "ddp"),
        bucket_mb=args.bucket_mb,
        overlap=args.bucket_mb != 0,
        sparse_rows=args.bucket_mb != 0,
        lr=args.learning_rate,
        warmup_steps=args.warmup_steps,
        weight_decay=args.weight_decay,
        adam_eps=args.adam_epsilon,
        max_grad_norm=args.max_grad_norm,
        precision="fp16" if args.fp16 else "fp32",
        evaluate=("end" if stops else "epoch") if args.do_eval else "never",
        seed=args.seed,
        device="cpu" if args.no_cuda else "auto",
        logs_dir=args.logs_dir,
        run_id=args.run_id,
        overwrite=args.overwrite_output_dir,
        cache_dir=Path(args.cache_dir) if args.cache_dir else None,
    )


def _total(args: argparse.Namespace, world: World) -> int:
    per_step: int = args.per_gpu_train_batch_size * args.gradient_accumulation_steps
    return per_step * world.world_size


def _note(args: argparse.Namespace, config: TrainConfig, world: World) -> str:
    parts = args.gradient_accumulation_steps * world.world_size
    note = (
        f"batch size: {args.per_gpu_train_batch_size} per worker x world size {world.world_size}"
        f" x {args.gradient_accumulation_steps} accumulated = {config.batch_size} in total"
    )
    if world.world_size > 1 and config.batch_size != COURSE_TOTAL and COURSE_TOTAL % parts == 0:
        note += (
            f"\nthe course's total of {COURSE_TOTAL} on {world.world_size} workers needs "
            f"--per_gpu_train_batch_size {COURSE_TOTAL // parts}"
        )
    return note


def _check_output(folder: Path, args: argparse.Namespace) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output_dir {folder} is not a folder")
    used = folder.exists() and any(folder.iterdir())
    if args.do_train and used and not args.overwrite_output_dir:
        raise UsageError(
            f"--output_dir {folder} has something in it; give another, or --overwrite_output_dir"
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
        raise UsageError(f"--model_type {args.model_type}, but {name} is of type {family}")


if __name__ == "__main__":
    cli.run(main)
