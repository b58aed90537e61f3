"""A sweep runs what is not done yet, several at a time, ends in order, and goes on when called."""

import csv
import errno
import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from launch.studies import cell_runs
from muster.errors import UsageError
from tests.launch.submit import REPOSITORY, alive, wait_until
from tests.preload import interpreter, skip_if_quick
from train.report.data.subject import read_subject

SWEEP = str(REPOSITORY / "launch" / "sweep.py")
LOCAL = ["--launcher", "local", "--workers", "manual"]
# No word of Muster in it but for the folders; it counts how often each combination was begun.
PROGRAM = """
import argparse, json, os, time
from pathlib import Path
parser = argparse.ArgumentParser()
for name in ("lr", "seed", "betas"):
    parser.add_argument("--" + name)
args = parser.parse_args()
with open(Path(__file__).with_name("begun"), "a") as file:
    file.write(f"{args.lr} {args.seed} {args.betas}\\n")
kept = Path(os.environ["MUSTER_CHECKPOINTS"], "state")
step = int(kept.read_text()) if kept.exists() else 0
kept.parent.mkdir(parents=True, exist_ok=True)
kept.write_text(str(step + 1))
if Path("block").exists() and args.seed == "2":
    time.sleep(10_000)
if args.seed == "3" and not Path("repaired").exists():
    raise ValueError("sample 17 is empty")
print("a line that is no JSON {")
print(json.dumps({"loss": float(args.lr) * int(args.seed), "begun": step + 1, "note": "a, b"}))
print("the end")
"""


# What docs/sweeps.md shows; those on a cluster run in tests/cluster/test_sweeps.py.
DOC = (REPOSITORY / "docs" / "sweeps.md").read_text(encoding="utf-8")
EXAMPLES = [
    shlex.split(line)[2:]
    for block in re.findall(r"```bash\n(.*?)```", DOC, re.S)
    for line in block.splitlines()
    if line.startswith("muster sweep")
]


@pytest.fixture
def project(tmp_path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text(PROGRAM)
    return root


def start(project: Path, *words: str, python: str | None = None) -> subprocess.Popen:
    return subprocess.Popen(
        [python or interpreter(), SWEEP, *words], cwd=project, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def sweep(project: Path, *words: str, python: str | None = None) -> tuple[int, str, str]:
    process = start(project, *words, python=python)
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err


def refused(project: Path, *words: str) -> str:
    """What is said; nothing was started or made."""
    code, _, err = sweep(project, *words, python=interpreter(for_workers=False))
    assert code == 2 and not (project / "logs").exists(), err
    return err


def folder_of(project: Path) -> Path:
    (folder,) = (project / "logs" / "sweeps").iterdir()
    return folder


def cells(project: Path) -> dict[str, dict]:
    record = json.loads((folder_of(project) / "sweep.json").read_text())
    return {one["id"]: one for one in record["cells"]}


def begun(project: Path) -> list[str]:
    path = project / "begun"
    return sorted(path.read_text().splitlines()) if path.exists() else []


def test_every_combination_is_run_once_and_what_failed_again(project):
    words = [*LOCAL, "--at-once", "2", "--over", "lr=1e-4,3e-4", "--over", "seed=1,3"]
    words += ["--", "train.py", "--betas", "0.9,0.999"]
    code, out, err = sweep(project, *words)
    assert code == 1, out + err
    assert begun(project) == sorted(
        f"{lr} {seed} 0.9,0.999" for lr in ("1e-4", "3e-4") for seed in "13"
    )
    states = {name: one["state"] for name, one in cells(project).items()}
    assert states == {
        "train-lr-1e-4_seed-1": "done",
        "train-lr-1e-4_seed-3": "failed",
        "train-lr-3e-4_seed-1": "done",
        "train-lr-3e-4_seed-3": "failed",
    }
    table = out[out.index(": 2 of 4 done") :].splitlines()
    assert table[1].split() == ["lr", "seed", "state", "seconds", "loss", "begun"]
    assert table[2].split()[:3] == ["1e-4", "1", "done"] and table[2].split()[4] == "0.0001"
    assert table[3].split()[:3] == ["1e-4", "3", "failed"]
    assert table[3].endswith("ValueError: sample 17 is empty")
    assert "train-lr-1e-4_seed-3 failed: ValueError: sample 17 is empty; see " in err
    with (folder_of(project) / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["lr"], row["seed"], row["loss"], row["note"]) for row in rows] == [
        ("1e-4", "1", "0.0001", "a, b"),
        ("1e-4", "3", "", ""),
        ("3e-4", "1", "0.0003", "a, b"),
        ("3e-4", "3", "", ""),
    ]

    (project / "repaired").touch()
    code, out, err = sweep(project, *words)
    assert code == 0, out + err
    assert len(begun(project)) == 6 and "seed-1: " not in out
    found = cells(project)
    assert found["train-lr-1e-4_seed-1"]["results"]["begun"] == 1
    assert found["train-lr-1e-4_seed-3"]["results"]["begun"] == 2  # with the same checkpoints

    listed = subprocess.run(
        [sys.executable, str(REPOSITORY / "launch" / "jobs.py"), "list"],
        cwd=project, capture_output=True, text=True,
    )  # fmt: skip
    assert listed.returncode == 0 and listed.stdout.count("train-lr-") >= 4, listed.stderr
    entries = read_subject([folder_of(project)]).entries  # what a report is made from
    assert {entry.run.name for entry in entries} == set(states)

    code, out, err = sweep(project, *words, "--more")  # another command is another sweep
    assert len(list((project / "logs" / "sweeps").iterdir())) == 2


def lines_of_processes() -> bytes:
    """The command lines of all processes, as everybody on this machine can read them."""
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += path.read_bytes()
    return found


def test_no_value_of_env_is_written_down_or_on_a_command_line(project):
    (project / "shows.py").write_text(
        "import json, os, time\nfrom pathlib import Path\n"
        "assert 'MUSTER_ENV' not in os.environ\n"
        "Path('seen').write_text(os.environ['TOKEN'])\n"
        "while not Path('go').exists(): time.sleep(0.05)\n"
    )
    secret = f"s3cr3t-{os.getpid()}\nX=1"
    hidden = secret.partition("\n")[0].encode()
    words = [*LOCAL, "--over", "lr=1", "--env", f"TOKEN={secret}"]
    code, out, err = sweep(project, "--dry-run", *words, "--", "shows.py")
    assert code == 0 and hidden.decode() not in out + err
    process = subprocess.Popen(
        [sys.executable, SWEEP, *words, "--", "shows.py"], cwd=project, stdout=subprocess.PIPE
    )
    try:
        seen = project / "seen"
        assert wait_until(lambda: seen.exists() and seen.read_text() == secret)
        assert hidden not in lines_of_processes()
        (project / "go").touch()
        out, _ = process.communicate(timeout=300)
    finally:
        (project / "go").touch()
        process.terminate()
        process.wait(300)
    assert process.returncode == 0 and hidden not in out
    written = [path for path in (project / "logs").rglob("*") if path.is_file()]
    assert [path for path in written if hidden in path.read_bytes()] == []
    assert "--env TOKEN" in json.loads((folder_of(project) / "sweep.json").read_text())["command"]


def test_fresh_runs_all_again_without_checkpoints(project):
    words = [*LOCAL, "--name", "mine", "--over", "lr=1,2"]
    code, _, err = sweep(project, *words, "--", "train.py", "--seed", "1")
    assert code == 0, err
    code, _, err = sweep(project, *words, "--fresh", "--", "train.py", "--seed", "1")
    assert code == 0 and folder_of(project).name == "mine", err
    assert begun(project) == ["1 1 None"] * 2 + ["2 1 None"] * 2
    assert {one["results"]["begun"] for one in cells(project).values()} == {1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_in_order_and_goes_on_where_it_was(project, number):
    skip_if_quick()
    (project / "block").touch()
    words = [*LOCAL, "--at-once", "2", "--over", "seed=1,2,4", "--", "train.py", "--lr", "1"]
    process = start(project, *words, python=sys.executable)
    try:
        both = {"1 1 None", "1 2 None", "1 4 None"}
        assert wait_until(lambda: set(begun(project)) == both)
        assert wait_until(lambda: cells(project)["train-seed-4"]["state"] == "done")
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number, out + err
    assert "the same command goes on with what is left" in err
    assert [one["state"] for one in cells(project).values()] == ["done", "stopped", "done"]
    assert alive(project) == []

    (project / "block").unlink()
    code, out, err = sweep(project, *words)
    assert code == 0, out + err
    assert begun(project) == ["1 1 None", "1 2 None", "1 2 None", "1 4 None"]
    assert [one["results"]["begun"] for one in cells(project).values()] == [1, 2, 1]


def test_after_a_killed_call_the_next_waits_for_what_is_left_of_it(project):
    skip_if_quick()
    (project / "block").touch()
    words = [*LOCAL, "--over", "seed=2", "--", "train.py", "--lr", "1"]
    process = start(project, *words, python=sys.executable)
    try:
        assert wait_until(lambda: begun(project) == ["1 2 None"])
    finally:
        process.kill()
        process.communicate()
    (project / "block").unlink()
    code, out, err = sweep(project, *words)
    assert code == 0 and begun(project) == ["1 2 None"] * 2, out + err
    assert [one["results"]["begun"] for one in cells(project).values()] == [2]


def test_a_file_system_without_locks_keeps_nobody_from_a_sweep(tmp_path, monkeypatch, capsys):
    def unsupported(file, operation):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", unsupported)  # no file system here is without
    with cell_runs.alone(tmp_path):
        assert "cannot be locked (Operation not supported)" in capsys.readouterr().err
    monkeypatch.undo()
    with cell_runs.alone(tmp_path):
        with pytest.raises(UsageError, match="is running already"), cell_runs.alone(tmp_path):
            pass
        assert not capsys.readouterr().err


def test_only_one_leads_a_sweep_and_it_can_go_on_in_the_background(project):
    (project / "block").touch()
    words = [*LOCAL, "--over", "seed=2", "--", "train.py", "--lr", "1"]
    code, out, err = sweep(project, "--detach", *words, python=sys.executable)
    assert code == 0 and "in the background, as process " in out, err
    leader = int(out.partition("as process ")[2].partition(";")[0])
    try:
        code, _, err = sweep(project, *words)
        assert code == 2 and "this sweep is running already: " in err
        assert wait_until(lambda: begun(project) == ["1 2 None"])
    finally:
        os.kill(leader, signal.SIGTERM)
    log = folder_of(project) / "sweep.log"
    assert wait_until(lambda: "the same command goes on" in log.read_text())
    assert [one["state"] for one in cells(project).values()] == ["stopped"]
    assert alive(project) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--", "train.py"], "a sweep needs --over NAME=VALUE,VALUE"),
        (["--over", "lr=1", "--", "train.py", "--lr", "2"], "train.py --lr 2 has --lr already"),
        (["--over", "a-b=1", "--", "train.py", "--a_b=2"], "has --a_b=2 already"),
        (["--over", "lr=1", "--", "tain.py"], "tain.py: No such file or directory"),
        (["--over", "lr=1", "--", "-m", "tain"], "-m tain: no such module"),
        (["--over", "lr=1", "--sync", "single", "--", "train.py"], "--sync is a setting of the"),
        (["--over", "lrr=1,2"], "--over lrr: the trainer that comes with Muster has no such"),
        (["--over", "sync=dpd"], "sync-dpd: --sync: unknown 'dpd'"),
        (["--over", "lr=1", "--nodez", "2", "--", "train.py"], "unknown flag --nodez"),
        (["--over", "lr=1", "--run-id", "a", "--", "train.py"], "--name names the sweep"),
        (["--over", "lr=1", "--at-once", "0", "--", "train.py"], "--at-once must be at least 1"),
        (["--over", "lr=1", "--name", "a/b", "--", "train.py"], "--name 'a/b': use letters"),
        (
            ["--over", "lr=1,2", "--at-once", "2", "--master-port", "29511", "--", "train.py"],
            "--master-port 29511 is one port, but --at-once 2 runs",
        ),
        (
            ["--launcher", "ssh", "--hosts", "a,b,c", "--nodes", "2", "--at-once", "2"]
            + ["--over", "lr=1,2", "--", "train.py"],
            "--at-once 2 of 2 nodes each needs 4 hosts, but there are 3 (a, b, c), enough for 1",
        ),
    ],
)
def test_what_no_run_could_be_is_refused_by_name_before_the_first(project, words, message):
    found = refused(project, *([] if "ssh" in words else ["--launcher", "local"]), *words)
    assert message in found, found


@pytest.mark.parametrize("flag", ["--dry_run", "--dry-run"])
def test_a_dry_run_prints_the_commands_and_makes_nothing(project, flag):
    words = ["--launcher", "local", "--over", "lr=1,2", flag, "--", "train.py", "--x", "a b"]
    code, out, _ = sweep(project, *words, python=interpreter(for_workers=False))
    lines = out.splitlines()
    assert code == 0 and len(lines) == 2 and not (project / "logs").exists()
    assert lines[1].endswith("-- train.py --x 'a b' --lr 2") and "--run-id=train-lr-2" in lines[1]


@pytest.mark.parametrize("words", EXAMPLES, ids=shlex.join)
def test_every_example_of_the_documentation_runs(tmp_path, words):
    script = re.search(r"```python\n(.*?)```", DOC, re.S)
    (tmp_path / "train.py").write_text(script[1])
    (tmp_path / "hosts.txt").write_text("node0\nnode1\nnode2\nnode3\n")
    if "--launcher" in words:  # here as far as it goes without a cluster
        python = interpreter(for_workers=False)
        code, out, err = sweep(tmp_path, "--dry-run", *words, python=python)
        assert code == 0 and len(out.splitlines()) == 4, err
        return
    flags = LOCAL if "--" in words else LOCAL[:2]  # this program needs no torchrun
    code, out, err = sweep(tmp_path, *flags, "--logs-dir", "logs", *words)
    assert code == 0, out + err
    if "--" not in words:
        names = {f"synthetic-sync-{sync}_seed-{n}" for sync in ("ddp", "all_reduce") for n in "12"}
        assert set(cells(tmp_path)) == names
        assert all(one["results"] for one in cells(tmp_path).values())
    shown = re.search(r"```text\n(.*?)```", DOC, re.S)[1].splitlines()
    if words == EXAMPLES[0]:
        table = out.splitlines()[-7:]
        times = r"\d+\.\d"
        assert re.sub(times, "", table[0]) == re.sub(times, "", shown[0])
        for found, line in zip(table[1:-1], shown[1:-1], strict=True):
            assert [word for word in found.split() if not re.fullmatch(times, word)] == [
                word for word in line.split() if not re.fullmatch(times, word)
            ]


def test_the_files_of_a_sweep_are_those_that_the_documentation_names(project):
    code, _, err = sweep(project, *LOCAL, "--over", "lr=1", "--", "train.py", "--seed", "1")
    assert code == 0, err
    table = DOC.partition("## Names and folders")[2].partition("\n## ")[0]
    cells_of_names = re.findall(r"^\| (`.*?) \|", table, re.M)
    named = {name.rstrip("/") for cell in cells_of_names for name in re.findall("`(.*?)`", cell)}
    found = {path.name for path in folder_of(project).iterdir() if path.name[0] != "."}
    assert found == named - {"submissions"}
