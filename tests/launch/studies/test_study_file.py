"""A study's file becomes cells, each the command line of one run."""

import itertools
import json
import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import strategies as st

from launch.studies import cell_runs, study_file
from launch.studies.cells import Sweep
from muster.checkout import CHECKOUT
from muster.errors import UsageError
from tests.configs import odd_values
from tests.fuzzing import fuzzed

SHIPPED = sorted((CHECKOUT / "configs" / "studies").glob("*.yaml"))


@cache
def shipped(path: Path) -> Sweep:
    return study_file.read(path)


@pytest.fixture
def read(tmp_path):
    def read(text: str, *flags: str, rate: str | None = None) -> Sweep:
        (tmp_path / "mine.yaml").write_text(text)
        return study_file.read(tmp_path / "mine.yaml", flags, rate)

    return read


def test_own_study_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("quick", "configs/studies/quick.yaml"):
        found = study_file.read(Path(name))
        assert (found.name, found.source) == ("quick", "configs/studies/quick.yaml")
    with pytest.raises(UsageError, match=r"quick\.yaml"):
        study_file.read(Path("quick.yaml"))
    (tmp_path / "quick").write_text("{grid: [{task: synthetic}]}")
    assert study_file.read(Path("quick")).source == "quick"


def test_each_block_is_a_product_and_blocks_follow_each_other(read):
    study = read("""
    title: Mine
    base: {task: synthetic, evaluate: never}
    grid:
      - {sync: single}
      - {sync: [ddp, all_reduce], nodes: [2, 4]}
    """)
    assert (study.name, study.title, len(study.cells)) == ("mine", "Mine", 5)
    assert study.cells[4].id == "sync-all_reduce_nodes-4_0" and study.cells[4].nodes == 4
    words = "--task=synthetic --evaluate=never --sync=all_reduce --nodes=4"
    assert study.cells[4].words == tuple(words.split())


def test_repeats_come_last_each_with_a_seed_of_its_own(read):
    cells = read("{base: {task: synthetic}, grid: [{sync: [ddp, all_reduce]}], repeats: 2}").cells
    found = [(cell.settings["sync"], cell.settings["seed"], cell.repeat) for cell in cells]
    assert found[:2] == [("ddp", 42, 0), ("all_reduce", 42, 0)]
    assert found[2:] == [("ddp", 43, 1), ("all_reduce", 43, 1)]


def test_seed_of_a_flag_is_taken_where_repeats_share_none(read):
    text = "{{base: {{task: synthetic{}}}, grid: [{{sync: ddp}}], repeats: {}}}"
    assert read(text.format("", 1), "--seed=5").first.train.seed == 5
    assert read(text.format(", seed: 4", 3), "--seed=5").first.train.seed == 5


def test_an_entry_can_have_a_name_which_is_no_setting(read):
    text = "{base: {task: synthetic}, grid: [{name: 'Task 3: DDP', sync: ddp, nodes: [2, 4]}]}"
    cells = read(text).cells
    assert [cell.name for cell in cells] == ["Task 3: DDP"] * 2
    assert [cell.id for cell in cells] == ["sync-ddp_nodes-2_0", "sync-ddp_nodes-4_0"]
    assert "name" not in cells[0].settings


def test_rate_and_busy_of_the_testbed_are_no_flags(read):
    text = "{grid: [{task: synthetic, rate: [1gbit], nodes: '2:4', save_model: false}]}"
    (cell,) = read(text).cells
    assert cell.rate == "1gbit" and cell.nodes == 4
    assert cell.words == ("--task=synthetic", "--nodes=2:4", "--no-save-model")
    text = "{grid: [{task: synthetic, nodes: 2, busy: [0, 1]}], collectives: [all_reduce]}"
    study = read(text, "--threads=1", rate="10gbit")
    assert [(cell.rate, cell.busy) for cell in study.cells] == [("10gbit", 0), ("10gbit", 1)]
    assert study.cells[1].words == ("--task=synthetic", "--nodes=2", "--threads=1")
    assert study.collectives == ("all_reduce",)


def test_flag_replaces_what_all_runs_have(read):
    text = "{base: {epochs: 1}, grid: [{lr: [0.1, 0.2]}]}"
    assert read(text, "--epochs", "2").first.train.epochs == 2


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_study_is_read(path):
    study = shipped(path)
    assert study.about and len(study.cells) >= 3
    assert study.x and study.series
    # flags may change any number, so the text has none: the report gives those of the runs
    assert not re.search(r"(?<![-\w])\d", study.about)


def test_bscs_own_grid_is_whole():
    """1 to 16 GPUs, with 64 to 256 samples each, or 128 to 4096 in evaluation, in equal parts."""
    study = shipped(CHECKOUT / "configs" / "studies" / "bsc_cluster.yaml")
    found = set()
    for cell in study.cells:
        train, launch = cell.parsed.train, cell.parsed.launch
        workers = launch.most_nodes * launch.nproc_per_node[0].number
        size = train.eval_batch_size if train.epochs == 0 else train.local_batch_size
        found.add((cell.name, workers, size, train.precision))
        assert not train.length_balance
    devices, sizes = (1, 2, 4, 8, 16), [2**power for power in range(7, 13)]
    expected = itertools.product(["Training"], devices, (64, 128, 256), ("fp32", "fp16", "bf16"))
    evaluation = itertools.product(["Evaluation"], devices, sizes, ["fp16"])
    emotion = [("Emotion", n, 256, "fp16") for n in devices]
    emotion += [("Emotion", n, 128, "fp16") for n in (8, 16)]
    assert found == {*expected, *evaluation, *emotion}


def test_texts_of_ones_own_are_kept_for_the_report(tmp_path, read):
    study = read("{question: 'Why?', discussion: 'Because.', grid: [{task: synthetic}]}")
    assert study.texts == {"question": "Why?", "discussion": "Because."}
    study.folder = tmp_path
    cell_runs.begin(study)
    assert json.loads((tmp_path / "study.json").read_text())["texts"] == study.texts


def test_x_series_and_reference_are_in_the_record_for_the_report(tmp_path, read):
    text = "{x: local-batch-size, series: [name], reference: {name: A}, "
    study = read(text + "grid: [{name: A, task: synthetic, local-batch-size: [4, 8]}]}")
    record = study.record()
    assert (record["x"], record["reference"]) == ("local_batch_size", {"name": "A"})
    assert record["series"] == ("name",)


OF_RUN = odd_values.settings(["task", "nodes", "sync", "lr", "seed", "rate", "busy", "name"])
STUDY = odd_values.settings(list(study_file.FORMS)) | st.fixed_dictionaries(
    {"grid": st.lists(OF_RUN, max_size=3)},
    optional={"base": OF_RUN, "repeats": st.integers() | odd_values.VALUES},
)


@fuzzed(STUDY.map(yaml.safe_dump) | st.text(max_size=20), examples=25)
def test_any_file_is_a_study_or_refused_by_name(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        study_file.read(path)
    except UsageError as error:
        assert str(path) in str(error)


# a few bytes that stand for nine lists of nine lists of ...
BOMB = "title: &l0 x\nquestion: &l1 [*l0]\ngrid:\n"
BOMB += "".join(f"- {{a{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]}}\n" for n in range(2, 12))


@pytest.mark.parametrize(
    "text",
    [BOMB, BOMB.replace("- {a11:", "repeats: {a11:")]
    + [
        "{grid: [{lr: !!bool maybe}]}",
        "{grid: [{lr: !!timestamp soon}]}",
        "# x\n" * 90_000,
        "{grid: [{lr: 2020-13-45}]}",
    ]
    + ["{grid: [{task: synthetic}], repeats: 1000000000}", "{grid: [3], base: 3}"]
    + [f"{{grid: [{{lr: {[*range(200)]}, seed: {[*range(200)]}}}]}}"],
    ids=lambda text: text[:30],
)
def test_a_study_that_nobody_can_run_is_refused_at_once(text, read):
    with pytest.raises(UsageError, match=r"mine\.yaml"):
        read(text)
