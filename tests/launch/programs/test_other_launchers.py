"""Another launcher is refused as the program: each worker would start a run of its own."""

import shlex
import sys
from pathlib import Path

import pytest

from launch.programs import other_launchers
from launch.programs.command_line import CommandLine
from launch.programs.other_launchers import launcher_in
from launch.studies import cells
from muster.checkout import CHECKOUT
from muster.errors import UsageError
from tests.commands import call, refusal

COMMANDS = {
    "torchrun --nproc-per-node 2 train.py --lr 1e-3": "torchrun",
    "torchrun": "torchrun",
    "/opt/env/bin/torchrun train.py": "torchrun",
    "python -u -m torch.distributed.launch --use_env train.py": "torch.distributed.launch",
    "-m torch.distributed.run --nproc-per-node=2 train.py": "torch.distributed.run",
    "python3.11 /opt/env/bin/torchrun train.py": "torchrun",
    "/usr/lib/torch/distributed/run.py train.py": "torch.distributed.run",
    "uv run --with torch torchrun --nproc-per-node 2 train.py": "torchrun",
    "env OMP_NUM_THREADS=1 python -m torch.distributed.run train.py": "torch.distributed.run",
    "accelerate launch --num_machines 2 a.py b": "accelerate launch",
    "python -m accelerate.commands.launch --multi_gpu train.py": "accelerate.commands.launch",
    "mpirun -np 8 --npernode 4 -x KEY python -u train.py": "mpirun",
    "mpiexec -n 4 -H node0:2,node1:2 python -m a.b": "mpiexec",
    "mpiexec.hydra -f hosts.txt -ppn 2 ./program": "mpiexec.hydra",
    "srun -N2 -n 8 -p gpu --label python train.py": "srun",
    "deepspeed --num_nodes 2 train.py --deepspeed c.json": "deepspeed",
    "horovodrun -np 4 -H a:2,b:2 python train.py": "horovodrun",
    "muster run --nodes 2 -- train.py": "muster run",
}


@pytest.mark.parametrize(("line", "name"), COMMANDS.items())
def test_another_launcher_is_recognized(line, name):
    assert launcher_in(shlex.split(line)) == name


OTHERS = [
    "train.py torchrun",
    "-m train torchrun",
    "python train.py --launcher torchrun",
    "python -c 'import torchrun' torchrun",
    "accelerate env",
    "muster jobs list",
    "env KEY=1 python train.py torchrun",
    "./torchrun.sh",
    "bash -c 'torchrun train.py'",  # a shell's script is not parsed
    "python -m",
    "bash -c",
]


@pytest.mark.parametrize("line", OTHERS)
def test_command_that_only_mentions_another_launcher_is_not_refused(line):
    assert launcher_in(shlex.split(line)) is None


def check(folder: Path, *argv: str) -> None:
    program = CommandLine.parse(["--run-id", "a", *argv]).program(folder)
    program.check(sys.executable, 2)


def test_other_launcher_is_refused_as_program_and_as_wrap(tmp_path):
    (tmp_path / "train.py").write_text("")
    line = (
        "torchrun starts workers, as Muster does: each of Muster's workers would start a run of "
        "its own; leave it out and use --nodes and --nproc-per-node"
    )
    words = ["torchrun", "--nproc-per-node", "2"]
    assert refusal(check, tmp_path, "--nodes", "2", "--", *words, "train.py") == line
    wrapped = ["--nodes", "2", "--wrap", shlex.join(words), "--", "train.py"]
    assert refusal(check, tmp_path, *wrapped) == f"--wrap {line}"


def test_script_of_another_launcher_is_refused_as_program(tmp_path):
    words = ["torch/distributed/run.py", "--nproc-per-node", "2", "train.py"]
    assert "torch.distributed.run starts workers" in refusal(check, tmp_path, "--", *words)


@pytest.mark.parametrize(
    "words", ["python -m torch.distributed.run", "python -u -m torch.distributed.launch"]
)
def test_module_of_another_launcher_is_refused_after_python(tmp_path, words):
    line = refusal(check, tmp_path, "--", *words.split(), "--nproc-per-node", "2", "train.py")
    assert line.startswith(f"{words.split()[-1]} starts workers")


def test_a_sweep_refuses_it_before_any_of_its_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="torchrun"):
        cells.from_grid(["lr=1,2"], ["--launcher", "local"], ["torchrun", "train.py"], None)


def test_a_batch_script_without_a_leader_asks_for_it_too():
    module = other_launchers.__name__
    for words, code in ((["srun", "train.py"], 2), (["train.py"], 0)):
        done = call(sys.executable, CHECKOUT / "muster" / "run_module.py", module, *words)
        assert done.returncode == code, done.stderr
    assert done.stdout == f"{sys.executable}\n"  # the active one, and not Muster's own
    assert f"{module} " in (CHECKOUT / "slurm" / "multinode_manual.sh").read_text()
