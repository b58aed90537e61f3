"""Another launcher as the program would make as many runs as there are workers: it is refused."""

import shlex
import sys
from pathlib import Path

import pytest

from launch.programs import other_launchers, python_choice
from launch.programs.command_line import CommandLine
from launch.programs.other_launchers import call_in, in_our_flags, notes
from launch.studies import cells
from muster.checkout import CHECKOUT
from muster.errors import UsageError
from tests.commands import call
from tests.written import executable

TRANSLATED = {
    "torchrun --nproc-per-node 2 train.py --lr 1e-3": "--nproc-per-node 2 -- train.py --lr 1e-3",
    "torchrun --nnodes=2:4 --nproc_per_node=auto --node_rank 1 --rdzv-endpoint a:1 -m a.b --x": (
        "--nodes 2:4 --nproc-per-node gpu -- -m a.b --x"
    ),
    "torchrun --standalone --nproc 2 --max-restarts 3 --no-python ./run.sh": (
        "--nproc-per-node 2 --max-restarts 3 -- ./run.sh"
    ),
    "torchrun": "-- PROGRAM",
    "/opt/env/bin/torchrun train.py": "-- train.py",
    "python -u -m torch.distributed.launch --use_env --nproc_per_node 2 train.py": (
        "--nproc-per-node 2 -- train.py"
    ),
    "-m torch.distributed.run --nproc-per-node=2 train.py": "--nproc-per-node 2 -- train.py",
    "python3.11 /opt/env/bin/torchrun train.py": "-- train.py",
    "/usr/lib/torch/distributed/run.py train.py": "-- train.py",
    "uv run --with torch torchrun --nproc-per-node 2 train.py": "--nproc-per-node 2 -- train.py",
    "env OMP_NUM_THREADS=1 python -m torch.distributed.run train.py": "-- train.py",
    "bash -c 'cd src && OMP_NUM_THREADS=1 torchrun --nproc-per-node=2 train.py; true'": (
        "--nproc-per-node 2 -- train.py"
    ),
    "accelerate launch --num_machines 2 --num_processes 8 --mixed_precision bf16 --cpu a.py b": (
        "--nodes 2 --nproc-per-node 4 --env ACCELERATE_MIXED_PRECISION=bf16 -- a.py b"
    ),
    "python -m accelerate.commands.launch --multi_gpu --num_processes 2 train.py": (
        "--nproc-per-node 2 -- train.py"
    ),
    "mpirun -np 8 --npernode 4 -x KEY --mca btl tcp,self python -u train.py": (
        "--nodes 2 --nproc-per-node 4 --env KEY -- train.py"
    ),
    "mpiexec -n 4 -H node0:2,node1:2 python -m a.b": (
        "--hosts node0,node1 --nproc-per-node 2 -- -m a.b"
    ),
    "mpiexec.hydra -f hosts.txt -genv KEY 1 -ppn 2 ./program": (
        "--hosts hosts.txt --nproc-per-node 2 --env KEY=1 -- ./program"
    ),
    "srun -N2 -n 8 -p gpu --gres=gpu:4 --label python train.py": (
        "--nodes 2 --nproc-per-node 4 --partition gpu --gres gpu:4 -- train.py"
    ),
    "deepspeed --num_nodes 2 --num_gpus 4 --hostfile hosts train.py --deepspeed c.json": (
        "--hosts hosts --nodes 2 --nproc-per-node 4 -- train.py --deepspeed c.json"
    ),
    "horovodrun -np 4 -H a:2,b:2 python train.py": "--hosts a,b --nproc-per-node 2 -- train.py",
    "muster run --nodes 2 -- train.py": "--nodes 2 -- train.py",
}


@pytest.mark.parametrize(("line", "ours"), TRANSLATED.items())
def test_flags_of_another_launcher_are_translated(line, ours):
    found = call_in(shlex.split(line))
    assert found is not None and in_our_flags(found.launcher, found.rest) == ours
    CommandLine.of(shlex.split(ours))  # they are flags of ours


OTHERS = [
    "train.py torchrun",
    "-m train torchrun",
    "python train.py --launcher torchrun",
    "python -c 'import torchrun' torchrun",
    "accelerate env",
    "muster jobs list",
    "env KEY=1 python train.py torchrun",
    "./torchrun.sh",
    "bash -c 'echo \"torchrun\"'",
    "bash -c 'torchrun --node-rank $GROUP_RANK --nnodes 2 train.py'",  # one for each node, in a run
    "python -m",
    "bash -c",
]


@pytest.mark.parametrize("line", OTHERS)
def test_command_that_only_mentions_another_launcher_is_not_refused(line):
    assert call_in(shlex.split(line)) is None


def refusal(folder: Path, *argv: str) -> str:
    program = CommandLine.of(["--run-id", "a", *argv]).program(folder)
    with pytest.raises(UsageError) as caught:
        program.check(sys.executable, 2)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_other_launcher_is_refused_as_program_and_as_wrap(tmp_path):
    (tmp_path / "train.py").write_text("")
    line = (
        "torchrun starts workers, and so does Muster: each of Muster's workers would start a run "
        "of its own; without torchrun it is --nproc-per-node 2 -- train.py"
    )
    words = ["torchrun", "--nproc-per-node", "2"]
    assert refusal(tmp_path, "--nodes", "2", "--", *words, "train.py") == line
    wrapped = ["--nodes", "2", "--wrap", shlex.join(words), "--", "train.py"]
    assert refusal(tmp_path, *wrapped) == f"--wrap {line}"


def test_script_of_another_launcher_is_refused_as_program(tmp_path):
    words = ["torch/distributed/run.py", "--nproc-per-node", "2", "train.py"]
    assert "torch.distributed.run starts workers" in refusal(tmp_path, "--", *words)


@pytest.mark.parametrize(
    "words", ["python -m torch.distributed.run", "python -u -m torch.distributed.launch"]
)
def test_module_of_another_launcher_is_refused_after_python(tmp_path, words):
    line = refusal(tmp_path, "--", *words.split(), "--nproc-per-node", "2", "train.py")
    assert line.endswith("it is --nproc-per-node 2 -- train.py")


def test_a_sweep_refuses_it_before_any_of_its_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="torchrun starts workers, and so does Muster"):
        cells.from_grid(["lr=1,2"], ["--launcher", "local"], ["torchrun", "train.py"], None)


def test_a_script_that_may_reach_one_gets_a_note(tmp_path):
    lines = "#!/bin/bash\n# a comment's torchrun\nset -e\nif true; then\n  torchrun \\\n"
    executable(tmp_path / "run.sh", lines + "    --nproc-per-node 2 train.py\nfi\n")
    (note,) = notes(["./run.sh"], tmp_path)
    assert note.startswith("./run.sh starts torchrun; each of Muster's workers would start a run")
    assert note.endswith("without torchrun it is --nproc-per-node 2 -- train.py")
    assert len(list(notes(["bash", "run.sh"], tmp_path))) == 1
    executable(tmp_path / "own.sh", "#!/bin/sh\nexec torchrun --node-rank $GROUP_RANK train.py\n")
    (tmp_path / "train.py").write_text("torchrun = 1\n")
    for words in (["./own.sh"], ["train.py"], ["-m", "a"], ["ls"], ["bash"], ["none.sh"]):
        assert list(notes(words, tmp_path)) == []


def test_the_note_is_printed_once_for_a_sweep(tmp_path, capsys):
    python_choice.say_once.cache_clear()
    executable(tmp_path / "run.sh", "#!/bin/sh\ntorchrun train.py\n")
    program = CommandLine.of(["--run-id", "a", "--", "./run.sh"]).program(tmp_path)
    for _ in range(2):
        program.check(sys.executable, 2)
    assert capsys.readouterr().err.count("note: ./run.sh starts torchrun") == 1


def test_a_batch_script_without_a_leader_asks_for_it_too():
    module = other_launchers.__name__
    for words, code in ((["srun", "train.py"], 2), (["train.py"], 0)):
        done = call(sys.executable, CHECKOUT / "muster" / "run_module.py", module, *words)
        assert done.returncode == code, done.stderr
    assert done.stdout == f"{sys.executable}\n"  # the active one, and not Muster's own
    assert f"{module} " in (CHECKOUT / "slurm" / "multinode_manual.sh").read_text()
