"""HetSeq's command lines keep their meaning, start a node's workers, and connect them as stated."""

import os
import signal
import socket
from functools import partial
from pathlib import Path

import pytest

from muster.errors import UsageError
from tests import commands
from tests.fuzzing import fuzzed
from tests.launch.submit import wait_until
from tests.train.command_lines import translated
from tests.train.tasks.vision.files import write_mnist
from tests.train.workers import finish, free_port, losses, read_json, start
from train.command_lines import hetseq
from train.distributed.address import bind_own_address
from train.distributed.world import World

# The command of HetSeq's README and article for the second of two nodes, except for the folders.
GIVEN = (
    "--task bert --data /hetseq/test_128/ --dict /hetseq/vocab.txt "
    "--config_file /hetseq/bert_config.json --max-sentences 32 --fast-stat-sync "
    "--max-update 900000 --update-freq 4 --valid-subset test --num-workers 4 "
    "--warmup-updates 10000 --total-num-update 1000000 --lr 0.0001 --weight-decay 0.01 "
    "--distributed-world-size 8 --device-id 0 --save-dir bert_node2gpu4 "
    "--distributed-init-method tcp://10.0.0.1:11111 --distributed-rank 4"
).split()
LEAST = "--task mnist --data mnist --max-sentences 8 --max-epoch 1".split()


def translate(*argv):
    return hetseq.translate(*hetseq.parse(argv))


refusal = partial(commands.refusal, translate)


def test_hetseqs_own_command_is_translated():
    config = translate(*GIVEN)
    assert (config.task, config.data_dir) == ("bert", Path("/hetseq/test_128"))
    assert (config.model, config.tokenizer) == ("/hetseq/bert_config.json", "/hetseq/vocab.txt")
    assert config.on(8).batch_size == 32 * 4 * 8 and config.accumulation == 4
    assert (config.max_steps, config.schedule_steps, config.warmup_steps) == (900_000, 10**6, 10**4)
    assert (config.lr, config.weight_decay, config.decay) == (1e-4, 0.01, "all")
    assert (config.optimizer, config.schedule, config.sync) == ("adamw", "polynomial", "ddp")
    assert (config.checkpoint_dir, config.resume) == (Path("bert_node2gpu4"), "auto")
    assert (config.data_workers, config.seed, config.max_grad_norm) == (4, 19940802, 25)
    args, _ = hetseq.parse(GIVEN)
    assert list(hetseq.ranks_here(args)) == [4, 5, 6, 7]
    alone, _ = hetseq.parse([*GIVEN, "--distributed-no-spawn"])
    assert list(hetseq.ranks_here(alone)) == [4]


def test_hetseqs_mnist_command_takes_our_flags():
    config = translate(
        *LEAST,
        *"--optimizer adadelta --lr 1.01 --adadelta_rho 0.8 --adam-betas (0.8,0.9) --cpu".split(),
        *"--no-save --disable-validation --save-interval-updates=5 --log-every 2".split(),
    )
    assert (config.optimizer, config.lr, config.adadelta_rho) == ("adadelta", 1.01, 0.8)
    assert (config.adam_beta1, config.adam_beta2, config.device) == (0.8, 0.9, "cpu")
    assert (config.epochs, config.max_steps, config.sync) == (1, None, "single")
    assert (config.evaluate, config.save_model, config.log_every) == ("never", False, 2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--hetseq_state_dict a.pt", "--hetseq-state-dict: not read, because a pickle"),
        ("--task BertForELClassification", "invalid choice: 'BertForELClassification' ("),
        ("--max-epoch 0", "--max-epoch or --max-update"),
        ("--adam-betas 0.9", "two numbers"),
        ("--clip-norm=-1", "--clip-norm "),
        ("--distributed-rank 1", "--distributed-rank 1 "),
        ("--distributed-world-size 8", "4 of 8 workers"),
        ("--distributed-init-method 10.0.0.1", "tcp://IP:PORT or file:///PATH"),
        ("--max-sentence 3", "unknown flag --max-sentence"),
    ],
)
def test_hetseq_flag_without_meaning_is_refused_with_a_replacement(flags, message):
    assert message in refusal(*LEAST, *flags.split())


def test_every_refused_hetseq_flag_is_named():
    for flag in hetseq.FLAGS.refused:
        assert f"{flag}: " in refusal(*LEAST, flag, "1")


def test_hetseqs_ner_command_is_refused_with_ours():
    """The command is from HetSeq's page on named entities, except for the folders."""
    given = (
        "--task BertForTokenClassification --max-epoch 1 --max-sentences 32 --lr 1e-5 "
        "--dict vocab.txt --config_file bert_config.json --transformers_state_dict bert.bin "
        "--train_file train.json --validation_file valid.json --test_file test.json "
        "--extension_file ext.py --load_state_dict_strict"
    )
    lines = refusal(*given.split()).splitlines()
    assert len(lines) == 6 and all(line.startswith("--") for line in lines)
    assert sum("train.txt, valid.txt and test.txt" in line for line in lines) == 4
    ours = "--task BertForTokenClassification --max-epoch 1 --max-sentences 32 --lr 1e-5"
    config = translate(*ours.split(), *"--data conll --model bert --tokenizer vocab.txt".split())
    assert (config.task, config.model, config.data_dir) == ("ner", "bert", Path("conll"))


VALUES = ("", "0", "-1", "3", "1e400", "nan", "(a,.)", "mnist", "/tmp", "tcp://a:1", "\ud800", "=")
PARSER_FLAGS = ("--update-freq", "--max-update", "--adam-betas", "--restore-file", "--device-id",
                "--distributed-gpus", "--distributed-world-size", "--distributed-rank",
                "--distributed-init-method", "--no-save", "--distributed-no-spawn")  # fmt: skip
THEIRS = (*hetseq.FLAGS.same, *hetseq.FLAGS.also, *hetseq.FLAGS.not_needed, *PARSER_FLAGS)


@fuzzed(translated.any_words(THEIRS, VALUES), examples=12)
def test_random_hetseq_flags_are_taken_or_refused(words):
    try:
        config = translate(*LEAST, *words)
    except UsageError as error:
        assert str(error)
    else:
        assert config.task == "mnist"


def command(folder, run_id, *flags):
    given = f"--task mnist --data {folder} --max-sentences 8 --max-epoch 1 --cpu"
    given += f" --optimizer adadelta --logs-dir {folder}/logs --run-id {run_id} --no-save"
    return start([hetseq.__file__, *given.split(), "--threads=1", *flags], cwd="/")


@pytest.mark.slow
def test_hetseq_nodes_meet_through_a_file_with_equal_losses(tmp_path):
    folder, meeting = write_mnist(tmp_path, 64), tmp_path / "meeting"
    two = ("--distributed-world-size", "2")
    ((code, _, err),) = finish([command(folder, "spawned", *two)])
    assert code == 0, err
    where = ("--distributed-init-method", f"file://{meeting}", "--distributed-gpus", "1")
    nodes = [command(folder, "met", *two, *where, "--distributed-rank", str(n)) for n in (1, 0)]
    assert [code for code, _, _ in finish(nodes)] == [0, 0]
    assert not meeting.exists()
    first, second = (losses(folder / "logs" / name) for name in ("spawned", "met"))
    assert first == second and len(first) == 4
    summary = read_json(folder / "logs" / "met" / "summary.json")
    assert (summary["world_size"], summary["batch_size"]) == (2, 16)


def test_meeting_file_of_another_run_is_refused_and_left(tmp_path):
    path = tmp_path / "meeting"
    path.write_text("theirs")
    with pytest.raises(UsageError, match="another run"):
        hetseq.rendezvous_address(f"file://{path}", range(1), 2, 1.0).__enter__()
    assert path.read_text() == "theirs" and list(tmp_path.iterdir()) == [path]


def test_port_of_rank_0_is_reserved_until_it_listens_there():
    with hetseq.rendezvous_address(None, range(2), 2, 1.0) as (address, port):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((address, port))
        world = World(world_size=2, master_addr=address, master_port=port)
        store = bind_own_address(world)
        store.listen()
        socket.create_connection((address, port)).close()
        store.close()


@pytest.mark.slow
def test_sigterm_to_a_hetseq_node_stops_its_workers(tmp_path):
    folder = write_mnist(tmp_path)
    port = free_port()
    flags = ("--distributed-world-size", "2", "--max-update", "100000", "--max-epoch", "100000",
             "--distributed-init-method", f"tcp://127.0.0.1:{port}")  # fmt: skip
    process = command(folder, "stopped", *flags)
    lines = folder / "logs" / "stopped" / "metrics" / "rank_00001.jsonl"
    wait_until(lambda: lines.exists() and lines.read_text())
    os.kill(process.pid, signal.SIGTERM)
    ((code, _, err),) = finish([process])
    assert code == 75, err
