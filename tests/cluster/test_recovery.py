"""Whatever a run has lost, it says where the seconds up to its next step went, and keeps that."""

import os
import re

import pytest

from tests.cluster.recoveries import FAULTS, PROGRAMS, WAYS, recover

OF_EACH = ["noticed", "stopped", "agents"]
OF_OURS = [*OF_EACH, "imports", "rendezvous", "model", "checkpoint", "step"]
# In an ordinary run each fault is met once, and one of them by a program that leaves no records.
CHOSEN = [
    ("worker killed", "ssh", "trainer"),
    ("worker killed", "sbatch", "plain script"),
    ("agent killed", "sbatch", "script"),
    ("link down", "ssh", "script"),
    ("node lost", "sbatch", "trainer"),
]
ALL = [(fault, way, program) for fault in FAULTS for way in WAYS for program in PROGRAMS]
MEETINGS = ALL if "WHOLE_MATRIX" in os.environ else CHOSEN


@pytest.mark.parametrize(("fault", "way", "program"), MEETINGS, ids=map("-".join, MEETINGS))
def test_it_says_where_the_seconds_went(cluster, tmp_path, fault, way, program):
    line, record = recover(cluster, way, program, fault, tmp_path)
    parts = record["parts_s"]
    assert list(parts) == (OF_OURS if program == "trainer" else [*OF_EACH, "program"])
    assert record["total_s"] == pytest.approx(sum(parts.values()), abs=0.01)
    back = "first output" if program == "plain script" else "step [0-9]+ again"
    shown = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
    assert re.fullmatch(f"attempt 2: {back} after {record['total_s']:.1f} s: {shown}", line)
