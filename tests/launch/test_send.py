"""The data of a run on this machine is used where it is, or copied to a place of its own."""

import sys
from pathlib import Path

import pytest

from launch.nodes import node_data
from launch.runs import leftovers
from tests.launch.submit import start, submit, wait_until
from tests.train.tasks.text.made import small
from tests.written import write

SAYS = """
import os, sys, time
print("data at", os.environ["MUSTER_DATA"], sorted(os.listdir(os.environ["MUSTER_DATA"])))
sys.stdout.flush()
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
"""


@pytest.fixture
def reader(tmp_path) -> Path:
    write(tmp_path / "data", {"a.txt": "first"})
    return write(tmp_path / "project", {"says.py": SAYS})


def words(reader: Path, sending: str, *program: str) -> list[str]:
    own = ["--launcher", "local", "--nodes", "2", "--workers", "manual", "--send", sending]
    return [*own, "--logs-dir", str(reader.parent / "runs"), "--", "says.py", *program]


def test_without_a_place_they_are_used_where_they_are(reader, tmp_path):
    code, out, err = submit(*words(reader, "../data"), cwd=reader)
    assert code == 0, err
    line = f"data at {tmp_path}/data ['a.txt']\n"
    assert line in out  # of rank 0
    outputs = (tmp_path / "runs").glob("*/workers/rank_*.out")
    assert [path.read_text() for path in outputs] == [line, line]
    assert err.count(f"data: {tmp_path}/data (on this machine, nothing is sent)\n") == 1
    assert node_data.data_left({}) == []


@pytest.mark.slow
def test_placed_data_are_held_by_run_then_found_by_clean(reader, tmp_path):
    place = tmp_path / "place"
    goes_on = tmp_path / "goes_on"
    run = start(*words(reader, f"../data:{place}", str(goes_on)), cwd=reader)
    with run:
        try:
            outputs = "*/workers/rank_0000?.out"
            wait_until(
                lambda: (
                    sum(
                        b"data at" in path.read_bytes()
                        for path in (tmp_path / "runs").glob(outputs)
                    )
                    == 2
                    or run.poll() is not None
                )
            )
            (entry,) = node_data.data_left({})
            assert entry["path"] == str(place) and entry["whole"] and entry["used"]
        finally:
            goes_on.touch()
        run.communicate(timeout=300)
    assert run.returncode == 0
    (left,) = [each for each in leftovers.here() if each.path == str(place)]
    assert left.what == "data from --send" and not left.stays
    leftovers.remove(left)
    assert not place.exists() and node_data.data_left({}) == []


@pytest.mark.slow
def test_our_trainer_reads_them_by_itself(tmp_path):
    """As with --data-dir; the message about the folder shows that it was read."""
    write(tmp_path / "data", {"a.txt": ""})
    made = small(tmp_path, ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"])
    flags = ["--launcher", "local", "--task", "rte", "--send", str(tmp_path / "data")]
    flags += [
        "--max-seq-length",
        "24",
        "--model",
        str(made / "config.json"),
        "--tokenizer",
        str(made / "vocab.txt"),
    ]
    code, _, err = submit(*flags, "--logs-dir", str(tmp_path / "runs"), python=sys.executable)
    assert code != 0 and f"--data-dir {tmp_path}/data has no train" in err, err
