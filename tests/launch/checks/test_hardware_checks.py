"""What the doctor has measured is judged by thresholds, and who is beyond one is named."""

from dataclasses import replace

import pytest

from launch.checks.examination import examination
from launch.checks.hardware_checks import DISK_BYTES_S, DISK_FREE_BYTES, SHM_BYTES
from tests.launch.checks.cases import findings

GPU = {
    "index": 0,
    "name": "NVIDIA A100-SXM4-80GB",
    "driver": "550.54.15",
    "ecc": True,
    "ecc_errors": 0,
    "retired_pages": None,
    "retirement_pending": False,
    "remapped_rows": 0,
    "remap_pending": False,
    "remap_failed": False,
    "clock_mhz": 210,
    "max_clock_mhz": 1410,
    "slowed": [],
    "celsius": 31,
    "power_limit_mw": 400_000,
    "default_power_mw": 400_000,
    "memory_bytes": 85_899_345_920,
    "used_bytes": 600_000,
    "processes": [],
}
DISK = {"folder": "/logs", "exists": True, "free_bytes": 80e9}
DISK = {**DISK, "write_bytes_s": 200e6, "read_bytes_s": 900e6}
WELL = {
    "disks": {"run folder": DISK, "data": {**DISK, "folder": "/data"}},
    "open_files": 1024,
    "memory_limit_bytes": None,
    "shm_bytes": 12e9,
    "shm_free_bytes": 12e9,
    "gpus": {"gpus": [GPU, {**GPU, "index": 1}]},
}


def measured(of_node1, count=3):
    """Findings of a cluster that is well, but for what node1 has measured."""
    whole = findings(count)
    nodes = [
        replace(node, hardware=of_node1 if node.name == "node1" else WELL) for node in whole.nodes
    ]
    return replace(whole, nodes=nodes)


def test_well_measured_nodes_are_ok():
    found = {row.check: row for row in examination(measured(WELL)).rows}
    assert len(found) == 19 and {row.verdict for row in found.values()} == {"ok"}
    assert found["GPU health"].found == ("2 idle, driver 550.54.15, ECC on",)
    assert found["disks"].found[0].startswith("slowest node0: run folder 80 GB free, writes 200 MB")
    assert found["limits"].found == ("1024 open files, /dev/shm 12.0 GB",)


def with_gpu(**spoilt):
    return {**WELL, "gpus": {"gpus": [GPU, {**GPU, "index": 1, **spoilt}]}}


def with_disk(what="run folder", **spoilt):
    return {**WELL, "disks": {**WELL["disks"], what: {**DISK, **spoilt}}}


OTHER = {"pid": 4711, "used_bytes": 70_000_000_000, "name": "python train.py"}
SPOILT = {
    "remapping failed": ("GPU health", with_gpu(remap_failed=True), "cannot be replaced", "replac"),
    "ecc errors": ("GPU health", with_gpu(ecc_errors=3), "3 uncorrected memory errors", "reset"),
    "pending": ("GPU health", with_gpu(retirement_pending=True), "at its next reset", "reset"),
    "ecc off": ("GPU health", with_gpu(ecc=False), "ECC is off", "nvidia-smi"),
    "hot": ("GPU health", with_gpu(celsius=91), "91 degrees Celsius", "slowest GPU sets"),
    "slowed": (
        "GPU health",
        with_gpu(slowed=["too hot (hardware)"], clock_mhz=645),
        "slowed down: too hot (hardware) (645 of 1410 MHz)",
        "slowest GPU sets",
    ),
    "power": ("GPU health", with_gpu(power_limit_mw=250_000), "limited to 250 W of 400 W", "pace"),
    "others": ("GPU health", with_gpu(processes=[OTHER]), "python train.py (pid 4711)", "wait"),
    "unseen": ("GPU health", with_gpu(used_bytes=70e9), "70.0 GB of its memory are in use", "wait"),
    "no library": (
        "GPU health",
        {**WELL, "gpus": {"missing": "nvidia-ml-py"}},
        "node1: not looked at: its Python has no nvidia-ml-py",
        "pip install nvidia-ml-py",
    ),
    "no driver": (
        "GPU health",
        {**WELL, "gpus": {"failed": "Driver/library version mismatch"}},
        "node1: not looked at: Driver/library version mismatch",
        "",
    ),
    "full": ("disks", with_disk(free_bytes=DISK_FREE_BYTES - 1e8), "3.9 GB free, below", "room"),
    "slow write": ("disks", with_disk(write_bytes_s=DISK_BYTES_S / 2), "writes 11.0 MB/s", "local"),
    "slow read": ("disks", with_disk(read_bytes_s=5e6), "reads 5.0 MB/s, below 22", "local"),
    "slow data": (
        "disks",
        with_disk("data", read_bytes_s=5e6),
        "data: reads 5.0 MB/s",
        "--data-dir",
    ),
    "no data": ("disks", with_disk("data", exists=False, folder="/d"), "/d is not there", "--data"),
    "read only": ("disks", with_disk(failed="Read-only file system"), "cannot be written", "disk"),
    "silent": ("disks", None, "node1: gave no answer when it was to measure", "disk"),
    "few files": ("limits", {**WELL, "open_files": 256}, "256 open files (ulimit -n)", "ulimit -n"),
    "small shm": (
        "limits",
        {**WELL, "shm_bytes": 64 << 20},
        "/dev/shm of 67 MB, below 308 MB",
        "--shm-size",
    ),
    "no shm": ("limits", {**WELL, "shm_bytes": None}, "no /dev/shm", "--shm-size"),
    "cgroup": ("limits", {**WELL, "memory_limit_bytes": 4e9}, "memory limited to 4.0 GB", "--mem"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_beyond_a_threshold_is_a_warning_that_names_the_node(name):
    check, hardware, words, fix = SPOILT[name]
    (row,) = [row for row in examination(measured(hardware)).rows if row.verdict != "ok"]
    assert (row.check, row.verdict) == (check, "warn")
    line = "\n".join(row.found)
    assert "node1: " in line and words in line and fix in row.fix
    assert "node0" not in line and "node2" not in line


def test_what_is_no_trouble_is_none():
    """Data on a full disk that may only be read; no limit on open files; no GPUs."""
    read_only = with_disk("data", failed="Read-only file system", free_bytes=0.0)
    for well in (read_only, {**WELL, "open_files": -1}, {**WELL, "gpus": None}):
        assert [row.check for row in examination(measured(well)).rows if row.verdict != "ok"] == []
    assert SHM_BYTES == 308_281_344


def test_nodes_that_agree_with_each_other_but_not_with_this_machine_are_told_apart():
    def clocks(skews):
        (row,) = [
            one for one in examination(findings(3, skews=skews)).rows if one.check == "clocks"
        ]
        return row

    row = clocks({0: 3600.0, 1: 3600.2, 2: 3600.1})
    assert row.verdict == "warn" and row.fix.startswith("here: ")
    assert row.found == ("the nodes agree within 200 ms, and are +3600.1 s against this machine",)
    row = clocks({0: 0.0, 1: 3600.0, 2: 0.1})
    assert row.found == ("node1: +3600.0 s against this machine",) and row.fix.startswith("there:")
