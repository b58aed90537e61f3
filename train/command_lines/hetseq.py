"""HetSeq's own command lines run unchanged, on the same trainer as all others.

python train/command_lines/hetseq.py --task bert --data wiki --dict vocab.txt \
    --config_file bert_config.json --max-sentences 32 --max-update 20000 --lr 1e-4 \
    --distributed-world-size 8 --distributed-gpus 4 --distributed-rank 0 \
    --distributed-init-method tcp://10.0.0.1:11111

It starts the workers of this node, from --distributed-rank on.
"""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

if __name__ == "__main__":
    # A script's own folder is first on the path, where it could hide a library.
    sys.path[: not sys.flags.safe_path] = [str(Path(__file__).resolve().parents[2])]

    from muster import errors

    errors.begin()

from configs import cli
from configs.settings.train import ByHand, TrainConfig
from muster.errors import MusterError, UsageError
from train import worker
from train.command_lines import hetseq_flags
from train.distributed.address import interfaces

NOT_FROM_OTHERS = ("127.", "::1", "fe80")  # addresses that other nodes cannot reach


def main(argv: Sequence[str] | None = None) -> int:
    args, more = hetseq_flags.parse(sys.argv[1:] if argv is None else argv)
    config, ranks = hetseq_flags.translate(args, more), hetseq_flags.ranks_here(args)
    if args.device_id is not None and len(ranks) == 1:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(args.device_id))
    size = args.distributed_world_size
    with meeting_point(args.distributed_init_method, ranks, size, config.join_timeout_s) as at:
        each = [ByHand(master_ip=at[0], master_port=at[1], world_size=size, rank=r) for r in ranks]
        return worker.train(config, each[0]) if len(each) == 1 else _train_each(config, each)


@contextmanager
def meeting_point(
    method: str | None, ranks: range, size: int, timeout_s: float
) -> Iterator[tuple[str, int]]:
    """Address and port of rank 0: from tcp://, from the file of file://, or on this machine.

    Raises:
        MusterError: rank 0 finds the file there already, or others do not find it in time.
    """
    kind, _, place = (method or "").partition("://")
    if kind == "tcp":
        address, _, text = place.rpartition(":")
        yield address.strip("[]"), int(text)
        return
    if kind == "file" and 0 not in ranks:
        yield _read(Path(place), timeout_s)
        return
    others = (one for _, one in interfaces() if not one.startswith(NOT_FROM_OTHERS))
    address = "127.0.0.1" if len(ranks) == size else next(others, "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    if kind == "file":
        _write(Path(place), f"{address} {port}\n")
    try:
        yield address, port
    finally:
        if kind == "file":
            Path(place).unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    """Never over another's."""
    try:
        with path.open("x", encoding="ascii") as file:
            file.write(text)
    except OSError as error:
        why = str(error.strerror).lower()
        if isinstance(error, FileExistsError):
            why = "another run has written it; delete it, or name another"
        raise UsageError(f"--distributed-init-method file://{path}: {why}") from None


def _read(path: Path, timeout_s: float) -> tuple[str, int]:
    ends = time.monotonic() + timeout_s
    while not (path.exists() and path.read_text(encoding="ascii").endswith("\n")):
        if time.monotonic() > ends:
            raise MusterError(
                f"--distributed-init-method file://{path}: rank 0 has not written it within "
                f"{timeout_s:.0f} s; check that it runs, and that all nodes see that folder"
            )
        time.sleep(0.1)
    address, port = path.read_text(encoding="ascii").split()
    return address, int(port)


def _train_each(config: TrainConfig, each: Sequence[ByHand]) -> int:
    """Train all these workers, a process each; return the exit code of the first that failed."""
    context = multiprocessing.get_context("fork")  # torch is not imported yet
    processes = [context.Process(target=_train, args=(config, one)) for one in each]
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
    worker.die_with_parent()
    cli.run(lambda: worker.end_process(worker.train(config, by_hand)))


if __name__ == "__main__":
    cli.run(lambda: worker.end_process(main()))
