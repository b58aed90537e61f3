"""Files and messages may be damaged: a reader treats them as absent, or refuses them by name.

The damage may be due to nodes, programs, other versions, other users, and full disks. Each file and
each message is damaged in every way; the messages that readers print are in tests/refusals.
"""

import contextlib
import errno
import io
import json
import os
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save

from configs.settings.launch import ONE_WORKER
from launch import jobs
from launch.agent.inspection import local_workers
from launch.in_job import run_job
from launch.nodes.messages import REFUSED as REFUSED_MESSAGES
from launch.nodes.messages import from_agent, from_leader
from launch.programs import project_snapshot
from launch.programs.command_line import CommandLine
from launch.runs import node_history, restart, run_record
from launch.runs.watching import step_progress
from launch.runs.watching.run_document import RunEvents
from launch.slurm.current_job import CurrentJob
from launch.spec import LaunchSpec, Program
from launch.ssh.hosts import read_hosts
from launch.studies import cell_runs, study_file
from launch.studies.cells import Cell, Sweep, check_cells
from muster import json_output, records, run_files
from muster.errors import MusterError, UsageError
from muster.worker.function_call import read_private, write_private
from muster.writing import CannotWrite, read_json, write_json
from tests.configs.made import train_config
from tests.damaged_records import RECORDS
from tests.required import need
from tests.written import write
from train.checkpoints import storage
from train.distributed import agreement
from train.loop import export

DAMAGE = {
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "null": lambda whole: b"null\n",
    "deep": lambda whole: b"[" * 100_000,
    "binary": lambda whole: b"\n\xff\xfe\0\n",
    "other": lambda whole: b'{"kind": "other"}\n',  # of another version
}
KINDS = [*DAMAGE, "fifo", "folder", "theirs"]
ABSENT, REFUSED, WHOLE, HARMLESS = "absent", "refused", "whole", "harmless"


def damage(path: Path, kind: str) -> None:
    if kind == "theirs":
        need("root")
        os.chown(path, 12_345, 12_345)
        return
    whole = path.read_bytes()
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":  # nobody will ever write to it
        os.mkfifo(path)
    else:
        path.write_bytes(DAMAGE[kind](whole))


@dataclass(frozen=True)
class Reader:
    """A file that others write, and the function that reads it.

    A damaged file is treated as absent or, with `refuses`, raises this error, which names it. A
    file of another user is read. `unlike` maps kinds of damage to another outcome; None: no damage.
    """

    file: str
    write: Mapping[str, object] | Callable[[Path], object]
    read: Callable[[Path], object]
    refuses: type[Exception] | None = None
    unlike: Mapping[str, str | None] = field(default_factory=dict)

    def outcome(self, kind: str) -> str | None:
        usual = WHOLE if kind == "theirs" else REFUSED if self.refuses else ABSENT
        return self.unlike.get(kind, usual)


# the folder of a run


def shown(run_dir: Path) -> str:
    """Return what commands print about a run; none may fail, and another run is still listed."""
    good = write(run_dir.parent / "good", {"config.yaml": "", "exit.json": {"code": 0}})
    printed = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        Path(os.devnull).open("wb") as documents,
        contextlib.redirect_stdout(printed),
    ):
        patch.setattr(json_output, "_descriptor", documents.fileno())
        jobs._list([run_dir, good], 20, None)
        jobs._status(run_dir)
        RunEvents(run_dir).report(last=True)
    lines = printed.getvalue().splitlines()
    assert {"good", run_dir.name} <= {line.split()[0] for line in lines if line}
    return printed.getvalue()


def run_reader(file: str) -> Reader:
    """Return a file of a run's folder with a function that reads it as commands do."""

    def read(folder: Path) -> object:
        text = shown(folder / "run")
        path = folder / "run" / file
        if file.endswith(".jsonl"):
            return records.last_objects(path), restart.last_step(folder / "run")
        if file == "config.yaml":
            return step_progress.settings_of(folder / "run")
        name = file.removeprefix("attempts/0/")
        (kind,) = (one for one in records.FORMS if one.match(name) is not None)
        assert file != name or records.why_unreadable(kind, path) in text
        return records.read(kind, path)

    without = {"exit.json"} - {file}
    whole = {
        f"run/{name}": json.dumps(record) + "\n"
        for name, record in RECORDS.items()
        if name not in without
    }
    return Reader(f"run/{file}", whole, read, unlike={"other": HARMLESS})  # without any key


# other files


def sweep_of(folder: Path) -> Sweep:
    cells = check_cells([Cell(name, {}, ("--nodes=1", "--", "ls", name)) for name in "ab"])
    return Sweep("s", cells, folder=folder)


def write_sweep(folder: Path) -> None:
    """Write a sweep of two runs that an earlier call has finished."""
    sweep = sweep_of(folder)
    for cell in sweep.cells:
        cell.state = "done"
        run_record.end(sweep.run_dir(cell), 0, "done", None, "done")
    sweep.write()


def begun(folder: Path) -> list[str]:
    cell_runs.begin(sweep := sweep_of(folder))
    return [cell.state for cell in sweep.cells]


def write_checkpoints(folder: Path) -> None:
    content = {"objects.pt": {"weight": torch.ones(9)}, "sync.pt": {"step": torch.ones(1)}}
    for step in (1, 2):
        storage.write(folder, content, storage.SavedState(step=step, world_size=1))


def step_of_newest(folder: Path) -> int:
    newest, notes = storage.newest_intact(folder)
    assert newest is not None and all(note.isprintable() for note in notes)
    return newest.saved.step


def weight_of(folder: Path) -> list[list[float]]:
    model = torch.nn.Linear(2, 1)
    export.load_weights(model, folder)
    return model.weight.tolist()


SPEC = LaunchSpec("run", Path("run"), Program(("train.py",)))
CURRENT = CurrentJob(job_id="12", name="12", num_nodes=1, cluster="here")
OF_SLURM = {"launcher": "slurm", "job_id": "12", "cluster": "here", "host": "a", "pid": 1}
FAILURE = {"time_unix_s": time.time(), "cluster": "a", "node": "n", "run_id": "r", "message": "x"}
MODEL = save({"weight": torch.ones(1, 2), "bias": torch.ones(1)})
PIPE = {"fifo": None}  # a file that a user names may be a pipe; its writer is waited for
NEVER_READ = dict.fromkeys(DAMAGE)  # the reader checks only who may have written it
READERS = {
    **{f"run: {name}": run_reader(name) for name in RECORDS},
    "record": Reader("a.json", {"a.json": {"a": 1}}, lambda at: read_json(at / "a.json", "a")),
    "run of a restarted job": Reader(
        "mine/job.json",
        {"mine/job.json": {**OF_SLURM, "started_unix_s": 1.0}},
        lambda folder: run_job.run_of_job(folder, CURRENT),
        unlike={"theirs": ABSENT},
    ),
    "spec of a job": Reader(
        "run/slurm.json",
        lambda folder: run_job.write_spec(SPEC, {}),
        lambda folder: run_job.read_spec(folder / "run"),
        MusterError,
    ),
    "files of a snapshot": Reader(
        run_files.SNAPSHOT_RECORD.pattern,
        {run_files.SNAPSHOT_RECORD.pattern: {"files": []}, f"{run_files.SNAPSHOT.top}/made": ""},
        project_snapshot.new_files,
    ),
    "process of a rank": Reader(
        "rank_00000.json",
        {"rank_00000.json": {"pid": os.getpid()}},
        lambda folder: local_workers.pids_of(folder, [0]),
    ),
    "failures of nodes": Reader(
        "muster/nodes.json",
        {"muster/nodes.json": {"failures": [FAILURE]}},
        lambda folder: node_history.failures(),
    ),
    "sweep": Reader(str(run_files.SWEEP), write_sweep, begun, UsageError),
    "run of a checkpoint": Reader(
        "step_00000001/state.json",
        {"step_00000001/state.json": {"run_id": "a"}, "step_00000001/manifest.json": {}},
        lambda folder: restart.has_checkpoint(folder, ["a"]),
    ),
    **{
        f"checkpoint: {name}": Reader(f"step_00000002/{name}", write_checkpoints, step_of_newest)
        for name in ("objects.pt", "sync.pt", "state.json", "manifest.json")
    },
    "weights": Reader("model.safetensors", {"model.safetensors": MODEL}, weight_of, UsageError),
    "result": Reader(
        "result.pkl",
        lambda folder: write_private(folder / "result.pkl", pickle.dumps(3)),
        lambda folder: read_private(folder / "result.pkl"),
        OSError,
        unlike={**NEVER_READ, "theirs": REFUSED},
    ),
    "settings": Reader(
        "run.yaml",
        {"run.yaml": 'model: "a name of several words"\n'},
        lambda folder: train_config("--config", str(folder / "run.yaml")).model,
        UsageError,
        unlike={**PIPE, "empty": None},  # which means no settings
    ),
    "clusters": Reader(
        "muster.toml",
        {"muster.toml": '[clusters.a]\naccount = "a name of several words"\n'},
        lambda folder: CommandLine.parse(["--on", "a", "--", "true"]).slurm.account,
        UsageError,
        unlike={"theirs": REFUSED},  # its owner could run commands
    ),
    "hosts": Reader(
        "hosts.txt",
        {"hosts.txt": "node0 slots=2\n"},
        lambda folder: read_hosts(folder / "hosts.txt", ONE_WORKER),
        UsageError,
        unlike={**PIPE, "null": None},  # a valid host name
    ),
    "study": Reader(
        "mine.yaml",
        {"mine.yaml": "{grid: [{task: synthetic, lr: 0.5}]}"},
        lambda folder: study_file.read(folder / "mine.yaml").first.words,
        UsageError,
        unlike=PIPE,
    ),
}
CASES = [
    (name, kind, outcome)
    for name, reader in READERS.items()
    for kind in KINDS
    if (outcome := reader.outcome(kind)) is not None
]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "kind", "outcome"), CASES)
def test_damaged_file_is_absent_to_its_reader_or_refused(name, kind, outcome, tmp_path, read_again):
    def value() -> object:
        read_again()
        return reader.read(tmp_path)

    reader = READERS[name]
    path = tmp_path / reader.file
    write_it = reader.write
    write(tmp_path, write_it) if isinstance(write_it, Mapping) else write_it(tmp_path)
    whole = value()
    if outcome == ABSENT:
        content = path.read_bytes()
        path.unlink()
        absent = value()
        assert absent != whole
        write(tmp_path, {reader.file: content})
    damage(path, kind)
    if outcome == REFUSED:
        with pytest.raises(reader.refuses) as refused:
            value()
        assert path.name in str(refused.value)
    else:
        found = value()
        assert outcome == HARMLESS or found == (absent if outcome == ABSENT else whole)


def tensor_of(data: bytes) -> torch.Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


MESSAGES = {
    "of a leader": (b'{"kind": "beat", "sent_unix_s": 1.0}', from_leader, REFUSED_MESSAGES),
    "of an agent": (b'{"kind": "beat", "sent_unix_s": 1.0}', from_agent, REFUSED_MESSAGES),
    "of a rank": (b'{"a": [1, 2]}', lambda data: agreement.decoded(tensor_of(data)), ValueError),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", MESSAGES)
def test_damaged_message_is_refused(name, kind):
    whole, read, errors = MESSAGES[name]
    assert read(whole) is not None
    if name == "of a rank" and kind in ("null", "other"):
        return  # these are valid values
    with pytest.raises(errors):
        read(DAMAGE[kind](whole))


WRITERS = {
    "record": ("a.json", lambda folder: write_json(folder / "a.json", {})),
    "spec of a job": ("slurm.json", lambda folder: run_job.write_spec(SPEC, {})),
    "sweep": (str(run_files.SWEEP), lambda folder: sweep_of(folder).write()),
}


@pytest.mark.parametrize("name", WRITERS)
def test_full_disk_is_one_line_that_names_the_file(name, tmp_path, monkeypatch):
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr("muster.writing.write_whole", full)
    file, write_it = WRITERS[name]
    with pytest.raises(CannotWrite) as refused:
        write_it(tmp_path)
    assert file in str(refused.value) and "\n" not in str(refused.value)
