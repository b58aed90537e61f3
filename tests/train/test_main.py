"""The course's command line starts the course's run on four nodes, and a single process on one."""

import json

import pytest

from muster.checkout import CHECKOUT
from muster.errors import UsageError
from tests.train.workers import TORCHRUN, finish, free_port, start
from train import main


def test_command_of_cs744_is_translated():
    config, by_hand = main.parse("--master-ip 10.10.1.1 --num-nodes 4 --rank 2".split(), {})
    assert (config.task, config.batch_size, config.sync) == ("cs744", 256, "ddp")
    assert (by_hand.master_ip, by_hand.world_size, by_hand.rank) == ("10.10.1.1", 4, 2)


@pytest.mark.parametrize(
    "words",
    [
        "-M 10.10.1.1 -N 4 -R 2",
        "--master-ip 10.10.1.1 --num-nodes 4 --node-rank 2",
        "--master_addr=10.10.1.1 --nnodes=4 --node_rank=2",
    ],
)
def test_the_names_of_students_scripts_are_taken(words):
    _, by_hand = main.parse(words.split(), {})
    assert (by_hand.master_ip, by_hand.world_size, by_hand.rank) == ("10.10.1.1", 4, 2)


def test_two_numbers_of_one_worker_are_refused():
    with pytest.raises(
        UsageError, match="--node-rank is 2, but --local-rank is 0, and both set --rank"
    ):
        main.parse("-M 10.10.1.1 -N 4 --node_rank 2 --local_rank 0".split(), {})


def test_our_own_flags_win():
    flags = "--master-ip 10.10.1.1 --num-nodes 4 --rank 2 --sync gather_scatter --model vgg16"
    config, _ = main.parse([*flags.split(), "--batch-size=64"], {})
    assert (config.sync, config.model, config.batch_size) == ("gather_scatter", "vgg16", 64)


@pytest.mark.parametrize("flags", ["", "--num-nodes 1", "--rank -1"])
def test_one_node_runs_sync_single(flags):
    assert main.parse(flags.split(), {})[0].sync == "single"


def test_torchruns_environment_is_read():
    assert main.parse([], TORCHRUN)[0].sync == "ddp"


def test_wrong_flags_are_refused():
    with pytest.raises(UsageError, match="unknown flag --nodes"):
        main.parse(["--nodes", "4"], {})
    with pytest.raises(UsageError, match="--rank is missing"):
        main.parse(["--num-nodes", "4", "--master-ip", "10.10.1.1"], {})


def script(folder, *flags):
    given = f"--logs-dir {folder}/logs --run-id r --device cpu --threads 1 --data-dir generated"
    given += " --train-samples 40 --eval-samples 8"
    return start([str(CHECKOUT / "train" / "main.py"), *given.split(), *flags], cwd="/")


def test_two_nodes_print_what_the_course_asks_for_and_equal_one(tmp_path):
    folder = tmp_path
    short = ("--batch-size=20", "--log-every=1")
    ((code, alone, err),) = finish([script(folder, *short)])
    assert code == 0, err
    where = f"--master-ip 127.0.0.1 --master-port {free_port()} --num-nodes 2 --overwrite".split()
    started = [script(folder, *short, *where, "--rank", str(rank)) for rank in (0, 1)]
    ((code, out, err), (other, silent, _)) = finish(started)
    assert (code, other, silent) == (0, 0, ""), err
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [
        ["step", "1"],
        ["step", "2"],
        ["epoch", "1"],
    ]
    assert "accuracy" in lines[2] and "eval_loss" in lines[2]
    first, wanted = (float(text.splitlines()[0].split()[-1]) for text in (out, alone))
    assert first == pytest.approx(wanted, abs=1e-5)
    summary = json.loads((folder / "logs" / "r" / "summary.json").read_text())
    assert (summary["sync"], summary["world_size"]) == ("ddp", 2)


def test_help_says_that_the_batch_size_is_the_total(tmp_path):
    ((code, out, _),) = finish(
        [start([str(CHECKOUT / "train" / "main.py"), "--help"], cwd=tmp_path)]
    )
    assert code == 0 and "--batch-size is the total of all nodes" in " ".join(out.split())
