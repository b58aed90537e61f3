r"""Run HetSeq's own command lines unchanged, on the same trainer as all others.

python train/command_lines/hetseq.py --task bert --data wiki --dict vocab.txt \
    --config_file bert_config.json --max-sentences 32 --max-update 20000 --lr 1e-4 \
    --distributed-world-size 8 --distributed-gpus 4 --distributed-rank 0 \
    --distributed-init-method tcp://10.0.0.1:11111

It starts the workers of this node, from --distributed-rank on.
"""

if __name__ == "__main__":  # as a script, which has no module of ours on its path yet
    from pathlib import Path
    from runpy import run_path

    run_path(f"{Path(__file__).resolve().parents[2]}/muster/run_module.py")["start"](
        __file__, "main_process"
    )

import argparse
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from configs import cli
from configs.settings.train import ByHand, TrainConfig
from muster.errors import MusterError, UsageError, refuse
from muster.worker.process import end_with_parent
from train import worker
from train.command_lines import translation
from train.distributed.address import interfaces

FLAGS = translation.read("hetseq")
OPTIMIZER_FLAGS = {"adam": "--optimizer=adamw", "adadelta": "--optimizer=adadelta"}
PAIR = re.compile(r"\(?\s*([\d.e-]+)\s*,\s*([\d.e-]+)\s*\)?")
NOT_FROM_OTHERS = ("127.", "::1", "fe80")  # addresses that other nodes cannot reach


def main(argv: Sequence[str] | None = None) -> int:
    args, more = parse(sys.argv[1:] if argv is None else argv)
    config, ranks = translate(args, more), ranks_here(args)
    if args.device_id is not None and len(ranks) == 1:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(args.device_id))
    size = args.distributed_world_size
    with rendezvous_address(args.distributed_init_method, ranks, size, config.join_timeout_s) as at:
        each = [ByHand(master_ip=at[0], master_port=at[1], world_size=size, rank=r) for r in ranks]
        return worker.train(config, each[0]) if len(each) == 1 else _train_each(config, each)


def main_process() -> NoReturn:
    """Run `main` as a whole process."""
    worker.end_process(main())


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse HetSeq's flags for this node's workers and batches; the other words become our flags.

    Raises:
        UsageError: a flag is wrong, or has no meaning here; all problems at once.
    """
    what = "Train with HetSeq's command line"
    parser = translation.Parser(FLAGS, "python train/command_lines/hetseq.py", what)
    add = parser.add_argument
    add("--task", required=True, choices=FLAGS.tasks)
    add("--optimizer", default="adam", choices=OPTIMIZER_FLAGS, help="adam means AdamW")
    add(
        "--max-sentences",
        "--batch-size",
        type=int,
        default=0,
        help="samples per worker in each pass",
    )
    add("--update-freq", type=int, default=1, help="passes per step (--accumulation)")
    add(
        "--max-epoch",
        "--me",
        type=int,
        default=0,
        help="passes over the training set (--epochs); 0: until --max-update",
    )
    add(
        "--max-update",
        "--mu",
        type=int,
        default=0,
        help="number of steps (--max-steps); 0: until --max-epoch",
    )
    add("--adam-betas", default="(0.9, 0.999)", help="both betas (--adam-beta1, --adam-beta2)")
    add("--no-save", action="store_true", help="write no checkpoints and no model")
    add("--restore-file", help="checkpoint to resume from (default: the last one in --save-dir)")
    add("--distributed-world-size", type=int, default=1, help="workers on all nodes")
    add("--distributed-rank", type=int, default=0, help="rank of this node's first worker")
    add("--distributed-gpus", type=int, default=4, help="workers on this node (default: 4)")
    add(
        "--distributed-init-method",
        help="tcp://IP:PORT of rank 0, or file:///PATH that all nodes share",
    )
    add("--distributed-no-spawn", action="store_true", help="one worker on this node")
    add("--device-id", "--local-rank", type=int, help="GPU of a node's only worker")
    args, words = parser.parted(cli.dashed_flags(argv))
    refuse(_problems(args))
    return args, words


def translate(args: argparse.Namespace, ours: Sequence[str]) -> TrainConfig:
    """The settings that a HetSeq command stands for.

    Raises:
        UsageError: a setting is wrong; all problems at once, in HetSeq's words.
    """
    config: TrainConfig = translation.settings([TrainConfig], [*_argv(args, ours)], args.theirs)[0]
    return config


def _argv(args: argparse.Namespace, ours: Sequence[str]) -> Iterator[str]:
    yield from (
        f"--task={FLAGS.tasks[args.task]}",
        *FLAGS.defaults,
        OPTIMIZER_FLAGS[args.optimizer],
    )
    yield f"--epochs={args.max_epoch or args.max_update}"  # no set is too small for so many steps
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
        yield "training would never end\ntip: add --max-epoch or --max-update"
    if not PAIR.fullmatch(args.adam_betas):
        yield f"--adam-betas {args.adam_betas!r}: expected two numbers, such as '(0.9, 0.999)'"
    size, rank = args.distributed_world_size, args.distributed_rank
    method = args.distributed_init_method
    if not 0 <= rank < size:
        yield f"--distributed-rank {rank} must be below --distributed-world-size {size}"
    if method and not re.fullmatch(r"tcp://.+:\d+|file:///.+", method):
        yield f"--distributed-init-method {method!r}: expected tcp://IP:PORT or file:///PATH"
    elif not method and len(ranks_here(args)) < size:
        yield (
            f"--distributed-init-method is missing: only {len(ranks_here(args))} of {size} "
            "workers are on this node (--distributed-gpus)"
            "\ntip: give tcp://IP:PORT of rank 0"
        )


def ranks_here(args: argparse.Namespace) -> range:
    """The ranks of this node's workers."""
    first = args.distributed_rank
    count = 1 if args.distributed_no_spawn else args.distributed_gpus
    return range(first, min(args.distributed_world_size, first + count))


@contextmanager
def rendezvous_address(
    method: str | None, ranks: range, size: int, timeout_s: float
) -> Iterator[tuple[str, int]]:
    """Address and port of rank 0: from tcp://, from the file of file://, or on this machine.

    Raises:
        MusterError: rank 0 finds the file there already, or others do not find it in time.
    """
    kind, _, target = (method or "").partition("://")
    if kind == "tcp":
        address, _, text = target.rpartition(":")
        yield address.strip("[]"), int(text)
        return
    if kind == "file" and 0 not in ranks:
        yield _read(Path(target), timeout_s)
        return
    others = (address for _, address in interfaces() if not address.startswith(NOT_FROM_OTHERS))
    address = "127.0.0.1" if len(ranks) == size else next(others, "127.0.0.1")
    with socket.socket() as reserved:
        # Rank 0's store may bind it as well, since both allow that; no other program is given it.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        port = reserved.getsockname()[1]
        if kind == "file":
            _write(Path(target), f"{address} {port}\n")
        try:
            yield address, port
        finally:
            if kind == "file":
                Path(target).unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    """Write a new file, but never over an existing one."""
    try:
        with path.open("x", encoding="ascii") as file:
            file.write(text)
    except OSError as error:
        why = str(error.strerror).lower()
        if isinstance(error, FileExistsError):
            why = "the file exists, from another run\ntip: delete it, or choose another file"
        raise UsageError(f"--distributed-init-method file://{path}: {why}") from None


def _read(path: Path, timeout_s: float) -> tuple[str, int]:
    ends = time.monotonic() + timeout_s
    while not (path.exists() and path.read_text(encoding="ascii").endswith("\n")):
        if time.monotonic() > ends:
            raise MusterError(
                f"--distributed-init-method file://{path}: rank 0 did not write the file within "
                f"{timeout_s:.0f} s"
                "\ntip: check that rank 0 is running, and that all nodes share the folder"
            )
        time.sleep(0.1)
    address, port = path.read_text(encoding="ascii").split()
    return address, int(port)


def _train_each(config: TrainConfig, each: Sequence[ByHand]) -> int:
    """Train these workers, each in a process; return the code of the lowest rank that failed."""
    context = multiprocessing.get_context("fork")  # torch is not imported yet
    processes = [context.Process(target=_train, args=(config, worker)) for worker in each]
    for process in processes:
        process.start()

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.terminate()

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to each process
    for process in processes:
        process.join()
    codes = [process.exitcode or 0 for process in processes]
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def _train(config: TrainConfig, by_hand: ByHand) -> None:
    end_with_parent()
    cli.run(lambda: worker.end_process(worker.train(config, by_hand)))
