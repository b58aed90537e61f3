"""The rows of the GPU page: what each row runs, and which results are right."""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from configs import plugins
from muster.errors import MusterError
from tests.benchmarks.places import Steps
from tests.commands import cause_in
from tests.gpu.bench import Bench, end_of_run, printed_lines, records
from tests.gpu.programs.killed_worker import VARIABLE

SINGLE = "single"
AGAIN = "single, again"
TESTS = "tests of tests/gpu"
RESUMED = "stopped, resumed"
KILLED = "a rank killed, resumed by others"
STUCK = "a rank stopped in .cpu()"
STREAMS = "muster.sync on and off the default stream"
SECONDS = "muster.record beside events"
EVERY_GPU = "--nproc-per-node gpu"
DOCTOR = "muster doctor"
IMAGES = "BatchNorm, single"
EMPTY_PART = "BatchNorm, an empty part"
PLAIN, SCRIPT, TRAINER = "plain DDP script", "the script with muster.sync", "the trainer, ddp"
BERT = "BERT"
VGG = "VGG-11"
SHARED = "of one GPU"  # several workers on one GPU, which NCCL refuses and gloo allows
NEEDS_NCCL = ("gather_scatter",)  # on a GPU, as all compressors do
INEXACT = ("local_sgd",)  # modes whose losses differ, but not by much
COMPRESSORS = {"bf16": 5e-2, "fp16": 5e-2, "powersgd": 3e-1}  # limits of the losses' difference
# How far a loss may be from the single process's: with float32 sums in another order, with compiled
# kernels, with 16 bits, and with another method.
SAME, CLOSE, NEAR, ALIKE = 1e-4, 1e-3, 5e-2, 3e-1
WARM_UP = 10  # first steps, which do not count for speed
MIB = 2**20
HANG_AFTER_S = 8
TESTS_S = 240.0  # limit for the tests of tests/gpu, which take 97 s on 16 cores


@dataclass
class Row:
    """What it runs, with how many workers; and what came of it."""

    name: str
    workers: int
    work: Callable[["Row", Bench, Path], None] = lambda row, bench, folder: None
    within: float = SAME  # allowed difference from the losses of `against`
    against: str = SINGLE  # the row with the expected losses; "": none
    cores: int = 0  # that it takes; 0: one for each worker
    alone: bool = False  # nothing runs beside it, since its speed is measured
    pair: str = ""  # the model whose plain script its speed is compared with
    needs: tuple[str, ...] = ()  # packages in addition to those that every row needs
    steps: Steps | None = None
    first_step: int = 1  # of `steps`
    seconds: float = 0.0  # of the whole row, its start included
    gpu_mib: float = 0.0  # of the worker that needs most
    not_run: str = ""  # the reason
    problem: str = ""
    log: str = ""  # the end of a failed row's output
    notes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{self.name}, {self.workers}"

    @property
    def steps_per_s(self) -> float | None:
        if self.steps is None or not self.alone:
            return None
        return 1 / median(self.steps.step_s[WARM_UP:] or self.steps.step_s)

    @property
    def result(self) -> str:
        """`right`, or what is wrong, or why the row was not run."""
        if self.not_run:
            return f"not run: {self.not_run}"
        return f"**wrong**: {self.problem}" if self.problem else "right"


def rows_for(gpus: int, device: str) -> Iterator[Row]:
    """The rows of a machine with so many GPUs: the single process, then what shows most first."""
    on_gpu = device == "cuda"
    modes = [mode for mode in plugins.names("train.sync.modes") if mode != SINGLE]
    most = gpus if on_gpu else min(gpus, 2)
    through = ("--backend", "gloo") if on_gpu else ()  # for several workers on one GPU
    shared = 2  # workers
    yield Row(SINGLE, 1, trained("--sync", SINGLE))
    if on_gpu:
        yield Row(TESTS, 1, gpu_tests, against="", cores=8)
    sharing = [mode for mode in modes if not (on_gpu and mode in NEEDS_NCCL)]
    for mode in modes:
        if on_gpu:
            yield _mode(mode, 1)
        if mode in sharing:
            yield _mode(mode, shared, *through, place=SHARED if on_gpu else "")
    if on_gpu and most > 1:
        for mode in modes:
            yield _mode(mode, most)
    yield Row("bf16", most, trained("--precision", "bf16"), NEAR)
    if on_gpu:  # slow on CPUs
        yield Row("fp16", most, trained("--precision", "fp16"), NEAR)
        yield Row("TF32", most, trained("--float32-matmul", "high"), NEAR)
    hooked = most if on_gpu else shared  # workers whose gradients a hook may send
    yield Row(STREAMS, hooked, streams(), against="")
    yield Row(SECONDS, 1, seconds_beside_events, against="")
    yield Row(STUCK, shared, stopped_rank(*through), against="")
    yield Row(KILLED, shared, killed_and_resumed(*through))
    yield Row(RESUMED, most, stopped_and_resumed)
    yield Row("compile", most, trained("--compile"), CLOSE)
    for name, within in COMPRESSORS.items() if hooked > 1 else ():
        flags = ("--sync", "all_reduce", "--compress", name)
        yield Row(f"compress {name}", hooked, trained(*flags), within)
    parts = 4 if on_gpu else 2
    yield Row(IMAGES, 1, empty_part(parts - 1), against="")
    yield Row(EMPTY_PART, parts, empty_part(parts - 1, *through), against=IMAGES)
    if on_gpu:
        yield Row(EVERY_GPU, gpus, every_gpu, against="")
    yield Row(DOCTOR, 1, doctor, against="")
    for more in ((), ("--compile",)):
        for model in (BERT, VGG):
            yield from _speeds(model, most, more)
    if on_gpu:
        yield Row(AGAIN, 1, trained("--sync", SINGLE))  # shows how much the device itself varies
        for mode in sharing:
            yield _mode(mode, 4, *through, place=SHARED)


def _mode(mode: str, workers: int, *flags: str, place: str = "") -> Row:
    within = ALIKE if mode in INEXACT else SAME
    needs = (mode,) if mode == "accelerate" else ()
    name = f"{mode}, {place}" if place else mode
    return Row(name, workers, trained("--sync", mode, *flags), within, needs=needs)


def _speeds(model: str, workers: int, flags: tuple[str, ...]) -> Iterator[Row]:
    """Steps per second of a hand-written script, of it with `muster.sync`, and of the trainer."""
    pair = ", ".join((model, *(flag.strip("-") for flag in flags)))
    shape = "bert" if model == BERT else "vgg"
    end = ",compile" if flags else ""
    for name, work in (
        (PLAIN, scripted(shape, f"ddp{end}")),
        (SCRIPT, scripted(shape, f"muster{end}")),
        (TRAINER, fast_bert(*flags) if model == BERT else fast_images(*flags)),
    ):
        yield Row(f"{pair}: {name}", workers, work, against="", alone=True, pair=pair)


def trained(*flags: str) -> Callable[..., None]:
    """A row of a run of the trainer, whose losses are compared."""

    def work(row: Row, bench: Bench, folder: Path) -> None:
        row.steps = bench.train(row.name, row.workers, flags, folder)

    return work


def scripted(shape: str, case: str) -> Callable[..., None]:
    def work(row: Row, bench: Bench, folder: Path) -> None:
        row.steps = bench.script(shape, case, row.workers, folder)

    return work


def fast_bert(*flags: str) -> Callable[..., None]:
    def work(row: Row, bench: Bench, folder: Path) -> None:
        own = ("--sync", "ddp", *flags)
        row.steps = bench.train(row.name, row.workers, own, folder, fast=True)
        row.notes.append(waits_for_data(folder))

    return work


def fast_images(*flags: str) -> Callable[..., None]:
    def work(row: Row, bench: Bench, folder: Path) -> None:
        own = ("--sync", "ddp", "--max-steps", str(bench.args.speed_steps), *flags)
        row.steps = bench.images(row.workers, bench.args.images, own, folder)
        row.notes.append(waits_for_data(folder))

    return work


def waits_for_data(folder: Path) -> str:
    """How much of a step rank 0 waits for its batch, after the first steps."""
    lines = records(folder)[WARM_UP:] or records(folder)
    share = sum(line["data_s"] for line in lines) / sum(line["step_s"] for line in lines)
    return f"waits for data {share:.1%} of a step"


def empty_part(batch_size: int, *flags: str) -> Callable[..., None]:
    """BatchNorm over fewer samples than workers, so that a worker has none.

    It computes in float64: torch lets convolutions of float32 use TF32, and so few samples make
    such a difference large.
    """

    def work(row: Row, bench: Bench, folder: Path) -> None:
        sync = () if row.workers == 1 else ("--sync", "all_reduce")
        own = (*sync, "--max-steps", "4", "--precision", "fp64", *flags)
        row.steps = bench.images(row.workers, batch_size, own, folder)

    return work


def stopped_and_resumed(row: Row, bench: Bench, folder: Path) -> None:
    half = str(max(1, bench.args.steps // 2))
    own = ("--run-id", "run", "--resume", "auto", "--overwrite", "--checkpoint-every", half)
    before = bench.train(row.name, row.workers, (*own, "--max-steps", half), folder)
    after = bench.train(row.name, row.workers, own, folder)
    row.steps = Steps([*before.losses, *after.losses], [*before.step_s, *after.step_s])
    row.notes.append(f"stopped after {half}")


def killed_and_resumed(*flags: str) -> Callable[..., None]:
    """The last rank kills itself; another number of ranks goes on from the checkpoint."""

    def work(row: Row, bench: Bench, folder: Path) -> None:
        every = 2
        last = max(4, bench.args.steps - 2)
        made = bench.models[bench.args.model].result()
        shared = ["--checkpoint-dir", str(folder / "checkpoints"), "--checkpoint-every", str(every)]
        args = bench.args
        own = ["-m", "tests.gpu.programs.killed_worker", "--task", "rte", "--data-dir"]
        own += [str(made.data), "--model", str(made.model), "--batch-size", str(args.batch_size)]
        own += ["--lr", str(args.lr), "--seed", str(args.seed), "--device", args.device]
        own += ["--schedule-steps", "117", "--max-steps", str(args.steps), "--dropout", "0"]
        own += ["--evaluate", "never", "--no-save-model", "--pad", "max_length", "--sync", "ddp"]
        own += ["--cache-dir", str(bench.folder / "cache"), *shared, *flags]
        variable = ("--env", f"{VARIABLE}={last}")
        done = bench.launch(row.workers, own, folder / "killed", *variable, codes=None)
        if done.returncode == 0:
            raise MusterError(f"{done.stderr}\nno rank was killed")
        blamed(row, end_of_run(folder / "killed"), "killed")
        resumed = ("--sync", "ddp", "--resume", "auto", *shared)
        row.steps = bench.train(row.name, 1, resumed, folder / "resumed")
        row.first_step = records(folder / "resumed")[0]["step"]
        row.notes.append(f"1 rank goes on from step {row.first_step}")
        if row.first_step == 1:
            raise MusterError("the run did not continue from a checkpoint")

    return work


def blamed(row: Row, end: dict[str, Any], cause: str) -> None:
    """Note which rank a run blames, and after how long.

    Raises:
        MusterError: it is not the last one, or not for this cause.
    """
    began = (end.get("end") or {}).get("time_unix_s") or end["time_unix_s"]
    over_s = end["time_unix_s"] - began
    row.notes.append(f"{end['message'].removeprefix('error: ')} (run over {over_s:.1f} s later)")
    if (end["rank"], end["cause"]) != (row.workers - 1, cause):
        raise MusterError(f"rank {end['rank']} is blamed for {end['cause']}: {end['message']}")


def stopped_rank(*flags: str) -> Callable[..., None]:
    def work(row: Row, bench: Bench, folder: Path) -> None:
        begin = time.monotonic()
        hang = ("--hang-after-s", str(HANG_AFTER_S), "--on-hang", "stop", "--stop-grace-s", "3")
        program = ["-m", "tests.gpu.programs.stopped_rank", "--device", bench.args.device, *flags]
        done = bench.launch(row.workers, program, folder, *hang, codes=None)
        row.log = done.stderr
        end = end_of_run(folder)
        row.notes.append(f"{end['message']} ({time.monotonic() - begin:.0f} s after the start)")
        if not re.search(rf"rank {row.workers - 1}\b.*stopped_rank.py", done.stderr):
            raise MusterError(f"{done.stderr}\nno line says where rank {row.workers - 1} is")

    return work


def streams(*flags: str) -> Callable[..., None]:
    def work(row: Row, bench: Bench, folder: Path) -> None:
        done = bench.program("streams", row.workers, folder, *flags)
        lines = printed_lines(done.stdout)
        if not lines:
            raise MusterError(f"{done.stdout}{done.stderr}\nit printed no numbers")
        for line in lines:
            row.notes.append(f"{line['case']} {line['off_stream']:.0e}")
            if not line["off_stream"] <= SAME / 10:
                row.problem = f"{line['case']}: weights differ by {line['off_stream']:.1e}"
            exact = line["case"] not in COMPRESSORS
            if exact and not line["from_ddp"] <= SAME:
                row.problem = f"{line['case']}: {line['from_ddp']:.1e} from DDP's weights"

    return work


def seconds_beside_events(row: Row, bench: Bench, folder: Path) -> None:
    done = bench.program("seconds", row.workers, folder)
    by_events = printed_lines(done.stdout)[2:]  # the first steps are not fully recorded
    recorded = records(folder)[2:]
    for name in ("forward_s", "backward_s", "optimizer_s"):
        ours, device = (
            median(line.get(name, float("nan")) for line in lines)
            for lines in (recorded, by_events)
        )
        row.notes.append(f"{name} {1000 * ours:.2f} of {1000 * device:.2f} ms")
        if not abs(ours - device) <= max(0.3 * device, 2e-3):
            row.problem = f"{name}: {1000 * ours:.2f} ms, by events {1000 * device:.2f} ms"


def gpu_tests(row: Row, bench: Bench, folder: Path) -> None:
    words = ["-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "tests/gpu"]
    words += ["-n", str(row.cores), "--durations", "5", "--ignore", "tests/gpu/test_check.py"]
    words += ["--basetemp", str(folder / "pytest")]
    done = bench.command(words, codes=None, most_s=TESTS_S)
    row.log = done.stdout + done.stderr
    lines = done.stdout.strip().splitlines() or ["nothing was printed"]
    row.notes.append(lines[-1].strip("= "))
    if done.returncode:
        wrong = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        raise MusterError(f"{row.log}\n{'; '.join(wrong) or lines[-1]}")


def every_gpu(row: Row, bench: Bench, folder: Path) -> None:
    """A run that asks for a worker on each GPU has so many."""
    words = ["--task", "synthetic", "--max-steps", "4", "--evaluate", "never", "--run-id", "run"]
    words += ["--no-save-model", "--logs-dir", str(folder), "--device", bench.args.device]
    start = ["launch/submit.py", "--launcher", "local", "--nodes", "1", "--nproc-per-node", "gpu"]
    bench.command([*start, *words])
    ranks = len([*folder.glob("run/metrics/rank_*.jsonl")])
    row.notes.append(f"{ranks} ranks")
    if ranks != row.workers:
        raise MusterError(f"{ranks} ranks for {row.workers} GPUs")


def doctor(row: Row, bench: Bench, folder: Path) -> None:
    words = ["launch/doctor.py", "--launcher", "local", "--nodes", "1", "--device"]
    done = bench.command([*words, bench.args.device])
    row.log = done.stdout + done.stderr
    about = [line for line in row.log.splitlines() if "GPU" in line]
    row.notes += [line.strip() for line in about[:2]]


def judge(row: Row, base: Steps | None) -> None:
    """Say what is wrong with the losses of `row`, and how far they are from the base's."""
    losses = row.steps.losses if row.steps else []
    expected = base.losses[row.first_step - 1 :] if base else []
    if base is None:
        row.problem = "nothing to hold the losses against"
    elif len(losses) != len(expected):
        row.problem = f"{len(losses)} steps instead of {len(expected)}"
    else:
        most = np.abs(np.subtract(losses, expected)).max()
        row.notes.insert(0, f"losses within {most:.1e}")
        if not most <= row.within:  # a NaN is not
            row.problem = f"losses differ by {most:.1e}, more than {row.within:.0e}"


def attempt(row: Row, bench: Bench, folder: Path) -> None:
    """Run one row; a failure is what is wrong with it."""
    folder.mkdir()
    begin = time.monotonic()
    try:
        row.work(row, bench, folder)
    except MusterError as error:
        row.log = str(error)
        row.problem = cause_in(str(error).strip())
    except Exception as error:  # noqa: BLE001 - such as of a file that a run did not write
        row.log = f"{row.log}\n{error!r}"
        row.problem = f"{type(error).__name__}: {error}"
    row.seconds = time.monotonic() - begin
    ends = [json.loads(path.read_text()) for path in folder.glob("**/exits/rank_*.json")]
    row.gpu_mib = max((end.get("peak_gpu_memory_bytes", 0) / MIB for end in ends), default=0.0)
