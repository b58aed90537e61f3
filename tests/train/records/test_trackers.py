"""TensorBoard and Weights & Biases show rank 0's records, and a run's settings without secrets."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.launch.submit import submit
from tests.train.workers import records, run_program
from train.records.schema import PHASES

BLOCK, WANDB_HEADER, RECORD_HEADER = 32768, 7, 7  # bytes
FULL, LAST = 1, 4  # parts of a record
SECRETS = ("value-of-env", "value-of-argument", "value-of-environment")
PROGRAM = """
import os
import muster

with muster.init(device="cpu") as run:
    attempt = int(os.environ["MUSTER_ATTEMPT"])
    for step in range(attempt * 3 + 1, 7):
        muster.record(step, loss=1 / step + run.rank, log_with=["tensorboard", "wandb"])
        if step == 5 and attempt == 0:
            raise SystemExit(1)
    muster.record(metrics={"accuracy": 0.5})
"""


def shown_in_tensorboard(run_dir: Path) -> tuple[dict[str, list[tuple[int, float]]], str]:
    """Return the steps and values of each number by name, and the settings."""
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    numbers = {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }
    texts = [
        event.tensor_proto.string_val[0].decode()
        for event in events.Tensors("settings/text_summary")
    ]
    return numbers, texts[-1]


def logged(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format, which are split at the ends of blocks."""
    at, record = WANDB_HEADER, b""
    while at + RECORD_HEADER <= len(data):
        if (left := BLOCK - at % BLOCK) < RECORD_HEADER:
            at += left
            continue
        begin = at + RECORD_HEADER
        at = begin + int.from_bytes(data[at + 4 : at + 6], "little")
        record += data[begin:at]
        if data[begin - 1] in (FULL, LAST):
            yield record
            record = b""


def shown_in_wandb(run_dir: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, Any]]:
    """Return the same of all attempts."""
    from wandb.proto import wandb_internal_pb2

    numbers, settings = defaultdict(list), {}
    for path in sorted((run_dir / "wandb").glob("offline-run-*/*.wandb")):
        for data in logged(path.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            for item in record.run.config.update:
                settings[item.key] = json.loads(item.value_json)
            line = {
                item.key or ".".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            for name, value in line.items():
                if name != "step" and not name.startswith("_"):
                    numbers[name].append((line["step"], value))
    return numbers, settings


@pytest.fixture(scope="module", autouse=True)
def environment():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("KEY", SECRETS[2])
        yield


@pytest.fixture(scope="module")
def restarted(tmp_path_factory) -> Path:
    """Return the run folder of a program that fails after step 5 and resumes after step 3."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(PROGRAM)
    flags = ["--launcher", "local", "--nodes", "2", "--max-restarts", "1", "--run-id", "both"]
    flags += ["--env", f"TOKEN={SECRETS[0]}", "--", "train.py", "--token", SECRETS[1]]
    code, _, err = submit(*flags, cwd=folder)
    assert code == 0, err
    return folder / "logs" / "both"


def test_a_restarted_program_continues_in_both(restarted):
    losses = [(step, 1 / step + 0.5) for step in range(1, 7)]
    numbers, settings = shown_in_tensorboard(restarted)
    assert numbers["loss"] == [(step, pytest.approx(loss)) for step, loss in losses]
    assert numbers["evaluation/accuracy"] == [(6, 0.5)]
    assert "\nmax_restarts: 1\n" in settings

    numbers, settings = shown_in_wandb(restarted)
    repeated = [*losses[:5], *losses[3:]]  # its charts go by the step
    assert numbers["loss"] == [(step, pytest.approx(loss)) for step, loss in repeated]
    assert numbers["evaluation/accuracy"] == [(6, 0.5)]
    assert settings["max_restarts"] == 1
    names = {path.stem for path in (restarted / "wandb").glob("offline-run-*/*.wandb")}
    assert names == {f"run-{(restarted / 'wandb' / 'id').read_text()}"}
    assert next(iter(names)).startswith("run-both-2")


def test_no_secret_and_no_argument_reaches_them(restarted):
    files = [
        path
        for name in ("tensorboard", "wandb")
        for path in (restarted / name).rglob("*")
        if path.is_file()
    ]
    assert len(files) > 4
    for path in files:
        text = path.read_bytes()
        assert not [secret for secret in SECRETS if secret.encode() in text], path


def test_the_trainer_shows_its_records_and_a_resumed_run_goes_on(tmp_path):
    flags = ["--task", "synthetic", "--train-samples", "128", "--evaluate", "end"]
    flags += ["--schedule-steps", "9", "--log-with", "tensorboard,wandb"]
    flags += ["--logs-dir", str(tmp_path), "--run-id", "a"]
    for more in (["--max-steps", "2"], ["--max-steps", "4", "--resume", "auto", "--overwrite"]):
        code, _, err = submit(*flags, *more, "--checkpoint-every", "2")
        assert code == 0, err
    run_dir = tmp_path / "a"
    of_second = records(run_dir, 0, "step")
    assert [record["step"] for record in of_second] == [3, 4]
    for numbers, settings in (shown_in_tensorboard(run_dir), shown_in_wandb(run_dir)):
        assert "max_steps" in settings
        assert [step for step, _ in numbers["loss"]] == [1, 2, 3, 4]
        for name in ("loss", "lr", "grad_norm"):
            wanted = [record[name] for record in of_second]
            assert [value for _, value in numbers[name][2:]] == pytest.approx(wanted)
        for phase in (*PHASES, "step"):
            wanted = [record[f"{phase}_s"] for record in of_second]
            assert [value for _, value in numbers[f"seconds/{phase}"][2:]] == pytest.approx(wanted)
        assert [step for step, _ in numbers["evaluation/accuracy"]] == [2, 4]


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_at_the_first_record(tmp_path, tracker):
    text = (
        "import sys\n"
        f"sys.modules[{tracker!r}] = None  # as if it were not installed\n"
        "import muster\n"
        "with muster.init(device='cpu'):\n"
        f"    muster.record(loss=1.0, log_with={tracker!r})\n"
    )
    ((code, _, err),) = run_program(tmp_path, text)
    problem = f"muster.record: log_with {tracker}: "
    assert code and problem in err.splitlines()[-1]
    assert err.splitlines()[-1].endswith(f"-m pip install --use-pep517 {tracker}")


def test_nothing_of_a_tracker_is_imported_unless_asked_for(tmp_path):
    text = (
        "import sys\n"
        "import muster\n"
        "with muster.init(device='cpu'):\n"
        "    muster.record(loss=1.0)\n"
        "print({'train.records.trackers', 'tensorboard', 'wandb'} & {*sys.modules})\n"
    )
    ((code, out, err),) = run_program(tmp_path, text)
    assert (code, out) == (0, "set()\n"), err
