"""The course's command lines keep their meaning, and run from any folder."""

import json
import sys
from collections import namedtuple
from functools import partial
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from muster.errors import UsageError
from tests import commands
from tests.fuzzing import fuzzed
from tests.train.command_lines import translated
from tests.train.tasks.text.made import make
from tests.train.workers import TORCHRUN, errors_of, finish, free_port, start
from train import run_glue

# The assignment's command, except for the folders.
GIVEN = (
    "--model_type bert --model_name_or_path bert-base-cased --task_name RTE --do_train --do_eval"
    " --data_dir /glue/RTE --max_seq_length 128 --per_gpu_train_batch_size 64"
    " --learning_rate 2e-5 --num_train_epochs 3 --output_dir /tmp/RTE/ --overwrite_output_dir"
).split()
ON_RANK_2 = "--master_ip 10.10.1.1 --master_port 12356 --world_size 4 --local_rank 2".split()
LEAST = "--model_name_or_path m --task_name RTE --output_dir out --do_eval".split()


Meant = namedtuple("Meant", "config world output_dir note")


def translate(*argv, env=None):
    args, words = run_glue.parse(argv)
    config, _, world = run_glue.translate(args, words, env or {})
    return Meant(config, world, args.output_dir, run_glue.batch_size(args, world))


refusal = partial(commands.refusal, translate)


def test_the_given_command_on_one_machine():
    run = translate(*GIVEN)
    config = run.config
    assert (config.task, config.model) == ("rte", "bert-base-cased")
    assert (config.data_dir, run.output_dir) == (Path("/glue/RTE"), Path("/tmp/RTE"))
    assert (config.batch_size, config.epochs, config.lr) == (64, 3, 2e-5)
    assert (config.max_seq_length, config.pad, config.sync) == (128, "max_length", "single")
    assert (config.max_steps, config.schedule_steps, config.evaluate) == (None, None, "epoch")
    assert run.world.world_size == 1
    assert run.note.startswith("batch size: 64 per worker x ") and run.note.endswith(
        " = 64 in total"
    )


@pytest.mark.parametrize(
    ("flags", "batch_size", "note"),
    [
        ("", 256, "total of 64 with 4 workers, use --per_gpu_train_batch_size 16"),
        ("--per_gpu_train_batch_size 16", 64, "= 64 in total"),
        ("--gradient_accumulation_steps=2", 512, "use --per_gpu_train_batch_size 8"),
        ("--total_batch_size=256", 256, "use --per_gpu_train_batch_size 16"),
    ],
)
def test_four_machines_say_what_the_batch_size_comes_to(flags, batch_size, note):
    run = translate(*GIVEN, *ON_RANK_2, *flags.split())
    assert (run.config.sync, run.config.batch_size) == ("ddp", batch_size)
    assert (run.world.rank, run.world.world_size, run.world.master_addr) == (2, 4, "10.10.1.1")
    assert f"= {batch_size} in total" in run.note and run.note.endswith(note)


def test_max_steps_is_also_the_horizon_of_the_learning_rate():
    config = translate(*GIVEN, "--max_steps", "40").config
    assert (config.max_steps, config.schedule_steps, config.evaluate) == (40, 40, "end")
    assert config.epochs >= 40  # enough for 40 steps of any data set
    assert translate(*GIVEN, "--max_steps", "-1").config.epochs == 3


@pytest.mark.parametrize(
    "where",
    [
        "--master_addr 10.10.1.1 --master_port 12356 --world_size 4 --local_rank 2",
        "--master_addr 10.10.1.1 --master_port 12356 --nnodes 4 --node_rank 2",
        "--master-ip 10.10.1.1 --master-port 12356 --num-nodes 4 --rank 2",
    ],
)
def test_the_place_of_a_worker_has_the_names_of_students_scripts(where):
    assert translate(*GIVEN, *where.split()).world == translate(*GIVEN, *ON_RANK_2).world


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--node_rank 2 --local_rank 0",
            "--node_rank is 2, but --local_rank is 0, and both set --rank",
        ),
        (
            "--per_gpu_train_batch_size=16 --per_device_train_batch_size 64",
            "--per_gpu_train_batch_size is 16, but --per_device_train_batch_size is 64",
        ),
    ],
)
def test_two_names_of_one_flag_with_different_values_are_refused(words, message):
    """With --local_rank 0 on every node, all workers would be rank 0."""
    assert refusal(*GIVEN, *words.split()).startswith(message)
    translate(*GIVEN, *"--use_cpu --no_cuda --per_device_train_batch_size=64".split())


def test_a_script_may_evaluate_during_training_alone():
    argv = [*LEAST[:-1], "--do_train", "--evaluate_during_training"]
    assert translate(*argv).config.evaluate == "epoch"


def test_every_refused_flag_is_refused_by_its_name():
    for flag in run_glue.FLAGS.refused:
        assert f"{flag}: " in refusal(*LEAST, flag, "1")


VALUES = (
    "",
    "0",
    "-1",
    "3",
    "2.5",
    "1e400",
    "nan",
    "no",
    "RTE",
    "/tmp",
    "tcp://a:1",
    "\ud800",
    "=",
)
THEIRS = (*run_glue.FLAGS.same, *run_glue.FLAGS.also, *run_glue.FLAGS.refused)
THEIRS += (*run_glue.FLAGS.not_needed, "--max_steps", "--total_batch_size", "--num_train_epochs")


@fuzzed(translated.any_words(THEIRS, VALUES))
def test_any_words_are_a_run_or_are_refused(words):
    try:
        run = translate(*LEAST, "--do_train", *words)
    except UsageError as error:
        assert str(error)
    else:
        assert run.world.world_size == 1 or not {"--master_ip", "--master_addr"}.isdisjoint(words)


def test_evaluation_alone_trains_nothing():
    assert translate(*LEAST).config.epochs == 0
    assert translate(*LEAST[:-1], "--do_train").config.evaluate == "never"
    assert "--do_eval" in refusal(*LEAST[:-1])


AS_THE_SKELETON_HAS_IT = (
    "--local-batch-size=8 --eval-batch-size=8 --accumulation=1 --lr=5e-5 --weight-decay=0"
    " --adam-eps=1e-8 --max-grad-norm=1 --epochs=3 --warmup-steps=0 --seed=42 --precision=fp32"
    " --device=auto --lower-case=auto --max-seq-length=128 --pad=max_length"
)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("", AS_THE_SKELETON_HAS_IT),
        ("--fp16 --no_cuda --do_lower_case", "--precision=fp16 --device=cpu --lower-case=yes"),
        ("--tokenizer_name t --cache_dir c --seed 7", "--tokenizer=t --cache-dir=c --seed=7"),
        ("--weight_decay .1 --adam_epsilon 1e-6", "--weight-decay=.1 --adam-eps=1e-6"),
        ("--max_grad_norm 0 --warmup_steps 5", "--max-grad-norm=0 --warmup-steps=5"),
        ("--per_gpu_eval_batch_size 3 --logs_dir a", "--eval-batch-size=3 --logs-dir=a"),
        ("--config_name m --overwrite_cache", ""),
        ("--per_device_train_batch_size 4", "--local-batch-size=4"),
        ("--per_gpu_train_batch_size 4", "--local-batch-size=4"),
        ("--per_device_eval_batch_size 3", "--eval-batch-size=3"),
        ("--eval_all_checkpoints --timing", ""),
        ("--logging_steps 5 --save_steps 50", "--log-every=5 --checkpoint-every=50"),
        ("--save_total_limit 3 --bf16 --use_cpu", "--keep-last=3 --precision=bf16 --device=cpu"),
        ("--dataloader_num_workers 2 --dist_backend gloo", "--data-workers=2 --backend=gloo"),
    ],
)
def test_flags_are_ours_by_other_names(theirs, ours):
    first, second = (
        translate(*LEAST, "--do_train", "--run_id=r", *flags.split()).config
        for flags in (theirs, ours)
    )
    assert first == second and first.run_id == "r"


@pytest.mark.parametrize("name", ["SST-2", "sts-b", "CoLA", "WNLI", "MNLI", "QNLI"])
def test_tasks_are_named_as_in_the_skeleton(name):
    assert translate(*LEAST, "--task_name", name).config.task == name.lower().replace("-", "")


def test_dashes_are_as_good_as_underscores():
    dashed = [word.replace("_", "-") if word.startswith("--") else word for word in GIVEN]
    assert run_glue.parse(dashed) == run_glue.parse(GIVEN)
    assert translate(*LEAST, "--data-dir=a_b-c").config.data_dir == Path("a_b-c")


def test_the_single_process_rank_and_torchruns_environment():
    assert translate(*GIVEN, "--world_size", "4", "--local_rank", "-1").world.world_size == 1
    env = {name: TORCHRUN[name] for name in TORCHRUN if name != "TORCHELASTIC_RUN_ID"}
    run = translate(*GIVEN, env=env)
    assert (run.world.rank, run.config.batch_size, run.config.sync) == (3, 256, "ddp")
    assert run.config.run_id is None  # rank 0 chooses it for all
    assert translate(*GIVEN, env=env | {"RANK": "0"}).config.run_id


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--fp16 --fp16_opt_level O1", "apex"),
        ("--config_name other", "--config_name other"),
        ("--num_train_epochs 2.5", "--num_train_epochs 2.5"),
        ("--num_train_epochs inf", "--num_train_epochs inf"),
        ("--task_name imdb", "--task_name: invalid choice: 'imdb' (choose from "),
        ("--per_gpu_train_batch_size 0", "--per_gpu_train_batch_size "),
        ("--per_device_train_batch_size 0", "--per_device_train_batch_size "),
        (
            "--total_batch_size 64",
            "64, but --per_device_train_batch_size 8 with world size 1 gives a total of 8",
        ),
        ("--learning_rate 0", "--learning_rate "),
        ("--sync ring", "--sync: unknown 'ring'"),
        ("--learn_rate 1", "unknown flag --learn_rate; "),
        ("--do_tra", "unknown flag --do_tra; "),
        ("--max_steps many", "--max_steps: invalid int value: 'many'"),
        ("--model_type gpt2", "choose from"),
        ("--local_rank 4 --world_size 4 --master_ip a", "--local_rank 4 is not below"),
        ("--local_rank 1 --master_ip a", "--world-size is missing"),
        ("--sync single --local_rank 0 --world_size 4", "--master-ip is missing"),
    ],
)
def test_wrong_flags_are_refused_in_the_courses_words(flags, message):
    assert message in refusal(*LEAST, *flags.split())


def test_flag_that_the_skeleton_needs_is_asked_for():
    assert "--task_name" in refusal("--do_train", "--model_name_or_path", "m")


def test_both_sets_of_mnli_are_written(tmp_path):
    last = {"epoch": 1, "step": 9, "accuracy": 0.5, "eval_loss": 1.0}
    last |= {"accuracy_mm": 0.25, "eval_loss_mm": 1.0}
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "summary.json").write_text(json.dumps({"evaluations": [{}, last]}))
    run_glue.write_results(tmp_path / "r", tmp_path / "out")
    assert (tmp_path / "out" / "eval_results.txt").read_text() == "acc = 0.5\n"
    assert (tmp_path / "out-MM" / "eval_results.txt").read_text() == "acc = 0.25\n"


@pytest.fixture(scope="module")
def course_folder(tmp_path_factory):
    """Make a model's configuration, its vocabulary, and RTE in GLUE's format."""
    return make(tmp_path_factory.mktemp("course"))


def start_script(folder, *flags):
    given = (
        f"--model_name_or_path {folder}/config.json --tokenizer_name {folder}/vocab.txt"
        f" --task_name RTE --data_dir {folder}/rte --output_dir {folder}/out --do_train --do_eval"
        f" --logs_dir {folder}/logs --max_seq_length 24 --no_cuda"
    )
    script = str(CHECKOUT / "train" / "run_glue.py")
    # torch decides at import what it prints
    return start([script, *given.split(), *flags], cwd="/", python=sys.executable)


def test_glue_run_writes_results_and_refuses_to_overwrite_them(course_folder):
    """The run uses two workers with DDP; neither prints a library's warning."""
    where = f"--master_ip 127.0.0.1 --master_port {free_port()} --world_size 2 --model_type bert"
    words = [*where.split(), "--num_train_epochs=2", "--local_rank"]
    ended = finish([start_script(course_folder, *words, str(rank)) for rank in (0, 1)])
    assert [(code, errors_of(err)) for code, _, err in ended] == [(0, [])] * 2
    assert ended[0][1].startswith("batch size: 8 per worker ") and not ended[1][1]
    (run_dir,) = (course_folder / "logs").iterdir()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["steps"], summary["sync"]) == (2, "ddp")
    results = course_folder / "out" / "eval_results.txt"
    assert results.read_text() == f"acc = {summary['accuracy']}\n"
    for path in (run_dir / "model").iterdir():  # as the course's skeleton leaves it
        assert (course_folder / "out" / path.name).read_bytes() == path.read_bytes()
    results.write_text("mine\n")
    ((code, _, err),) = finish([start_script(course_folder)])
    assert (code, results.read_text()) == (2, "mine\n")
    assert err.startswith(f"error: --output_dir {course_folder}/out is not empty\n")
    assert "--overwrite_output_dir" in err


def test_a_model_of_another_family_is_refused(course_folder):
    args, _ = run_glue.parse([*LEAST, "--model_type", "xlnet"])
    args.model_name_or_path = str(course_folder / "config.json")
    with pytest.raises(UsageError, match=r"--model_type .*xlnet.* bert$"):
        run_glue._check_family(args)
