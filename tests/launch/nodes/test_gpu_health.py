"""A GPU is described from what NVIDIA's library answers; here from answers of its documented form.

No GPU was at hand: names and kinds of the answers are those of nvidia-ml-py, which is asked itself
where a test only needs it to be there.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from launch.nodes import gpu_health, hardware_probe

TOTAL, USED = 85_899_345_920, 456_130_560
# Of an A100, which remaps rows; and of a V100, which retires pages instead.
A100 = {
    "nvmlDeviceGetName": "NVIDIA A100-SXM4-80GB",
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetRemappedRows": (4, 1, 0, 0),
    "nvmlDeviceGetClockInfo": 1095,
    "nvmlDeviceGetMaxClockInfo": 1410,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x40 | 0x01,
    "nvmlDeviceGetTemperature": 88,
    "nvmlDeviceGetEnforcedPowerLimit": 400_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 400_000,
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=TOTAL, used=USED, free=TOTAL - USED),
    "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1, usedGpuMemory=417_333_248)],
}
V100 = {
    "nvmlDeviceGetName": b"Tesla V100-SXM2-16GB",
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetTotalEccErrors": 2,
    "nvmlDeviceGetRetiredPages": [0x1F00, 0x2F00],
    "nvmlDeviceGetRetiredPagesPendingStatus": 1,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x01,
}


class Recorded:
    """NVIDIA's library, with these answers for each GPU; what has none is not supported."""

    NVMLError = pynvml.NVMLError

    def __init__(self, *answers):
        self._answers = answers

    def __getattr__(self, name):
        if not name.startswith("nvmlDevice"):
            return getattr(pynvml, name)  # constants; one that is not there fails here, too

        def answer(device, *_):
            assert callable(getattr(pynvml, name))  # the library does have it
            if name not in self._answers[device]:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return self._answers[device][name]

        return answer

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "550.54.15"

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self._answers)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index


def test_a_gpu_says_what_it_knows_of_itself():
    first, second = gpu_health.describe(Recorded(A100, V100))
    assert (first["index"], first["name"]) == (0, "NVIDIA A100-SXM4-80GB")
    assert first["driver"] == second["driver"] == "550.54.15"
    assert (first["ecc"], first["ecc_errors"], first["remapped_rows"]) == (True, 0, 1)
    assert not first["remap_pending"] and not first["remap_failed"]
    assert first["slowed"] == ["too hot (hardware)"] and first["celsius"] == 88
    assert (first["clock_mhz"], first["max_clock_mhz"]) == (1095, 1410)
    assert (first["memory_bytes"], first["used_bytes"]) == (TOTAL, USED)
    (process,) = first["processes"]
    assert process["pid"] == 1 and process["name"]  # the first process of any machine
    assert second["name"] == "Tesla V100-SXM2-16GB" and second["slowed"] == []
    assert (second["retired_pages"], second["retirement_pending"]) == (2, True)
    assert second["ecc_errors"] == 2 and second["celsius"] is None and second["processes"] == []
    json.dumps([first, second])


def test_an_old_library_has_another_name_for_why_a_clock_is_low():
    class Old(Recorded):
        def __getattr__(self, name):
            if name == "nvmlDeviceGetCurrentClocksEventReasons":
                raise AttributeError(name)
            return super().__getattr__(name)

    (gpu,) = gpu_health.describe(Old({**V100, "nvmlDeviceGetCurrentClocksThrottleReasons": 0x88}))
    assert gpu["slowed"] == ["hardware slowdown", "power brake"]


def asked(python: str, *, has_gpus: bool):
    text = Path(gpu_health.__file__).read_text(encoding="utf-8")
    return hardware_probe.measure(
        {
            "node": "0",
            "folders": {"0": {}},
            "pythons": {"0": python},
            "has_gpus": {"0": has_gpus},
            "gpu_health": text,
        }
    )["gpus"]


def test_a_node_without_a_gpu_is_not_asked():
    assert asked("/nonexistent/python", has_gpus=False) is None


def test_a_node_whose_driver_or_python_fails_says_so(tmp_path):
    answer = asked(sys.executable, has_gpus=True)
    assert "gpus" in answer or "NVML" in answer["failed"] or "river" in answer["failed"]
    assert "No such file" in asked("/nonexistent/python", has_gpus=True)["failed"]
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')  # no packages
    bare.chmod(0o755)
    assert subprocess.run([bare, "-c", "import pynvml"], capture_output=True).returncode
    assert asked(str(bare), has_gpus=True) == {"missing": "nvidia-ml-py"}


@pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetCount"])
def test_the_library_has_what_is_asked_of_it_beside_gpus(name):
    assert callable(getattr(pynvml, name))
