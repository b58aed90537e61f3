"""On a machine with a GPU: GPUs are counted, workers get one each, and the doctor is content."""

import json
import sys

import pytest
import torch

from launch.nodes.this_machine import gpu_count
from muster.checkout import CHECKOUT
from tests.commands import call
from tests.launch.submit import submit

pytestmark = pytest.mark.needs("GPU")
PROGRAM = """
import json, os, torch
names = ("WORLD_SIZE", "ACCELERATE_USE_CPU")
print(json.dumps([os.environ.get(name) for name in names] + [torch.cuda.is_available()]))
"""


def test_as_many_gpus_are_counted_as_torch_sees():
    assert gpu_count() == torch.cuda.device_count()


def test_one_worker_for_each_gpu(tmp_path):
    (tmp_path / "say.py").write_text(PROGRAM)
    flags = ["--launcher", "local", "--nproc-per-node", "gpu", "--no-snapshot", "--", "say.py"]
    code, out, err = submit(*flags, cwd=tmp_path, python=sys.executable)
    assert code == 0, err
    assert json.loads(out.splitlines()[-1]) == [str(torch.cuda.device_count()), None, True]


def test_doctor_has_nothing_to_mend(tmp_path):
    doctor = CHECKOUT / "launch" / "doctor.py"
    env = {"COLUMNS": "250"}
    done = call(sys.executable, doctor, "--launcher", "local", "--quick", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert torch.cuda.get_device_name(0) in done.stdout
