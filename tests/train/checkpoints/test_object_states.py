"""On several ranks, each object is restored on each rank as it was there, or is refused."""

import json
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

import muster
from tests.train.checkpoints.resumed_program import TRAININGS, Own
from tests.train.workers import run_program

RANKS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def program_output(folder):
    """Run the program on all ranks and return how each rank ended."""
    text = Path(__file__).with_name("resumed_program.py").read_text()
    env = {"SAVED": str(folder / "saved"), "MUSTER_RUN_DIR": str(folder / "run")}
    ended = run_program(folder, text, RANKS, OMP_NUM_THREADS="1", **env)
    assert [code for code, *_ in ended] == [0] * RANKS, [err[-3000:] for *_, err in ended]
    return ended


@pytest.fixture(scope="module")
def ended(program_output):
    """Return the output of each rank of the program."""
    return [json.loads(out) for _, out, _ in program_output]


@pytest.mark.parametrize("name", TRAININGS)
def test_resumed_training_is_bit_for_bit_the_uninterrupted_one(ended, name):
    assert [one["goes on"][name] for one in ended] == [True] * RANKS


def test_state_that_differs_by_rank_comes_back_on_its_rank(ended):
    for states, saved in (state["own"] for state in ended):
        assert states == saved


def test_state_of_rank_0_on_another_number_of_ranks_is_announced(ended, folder, capsys):
    own = Own()
    assert muster.checkpoints(folder / "saved" / "by rank", by_rank={"own": own}).resume() == 1
    assert own.state == {"rank": 0}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: muster.checkpoints: own ") and "3 ranks" in line


DECLARATION = 'muster.checkpoints(..., by_rank={"own": own})'


def test_undeclared_object_that_differs_is_saved_with_a_warning(program_output):
    lines = [
        [line for line in err.splitlines() if "own differs between ranks" in line]
        for *_, err in program_output
    ]
    (line,) = lines[0]
    assert "own differs between ranks: rank; " in line and line.endswith(DECLARATION)
    assert lines[1:] == [[], []]


def test_new_run_resumes_from_an_undeclared_object_only_if_it_is_declared(
    ended, folder, monkeypatch
):
    place = folder / "saved" / "undeclared"
    with pytest.raises(muster.UsageError) as error:
        muster.checkpoints(place, own=Own()).resume()
    assert str(error.value).startswith("muster.checkpoints: own ")
    assert str(error.value).endswith(DECLARATION)
    for env in ({"MUSTER_RUN_DIR": str(folder / "run")}, {"TORCHELASTIC_RESTART_COUNT": "1"}):
        with monkeypatch.context() as patching:
            for name, value in env.items():
                patching.setenv(name, value)
            assert muster.checkpoints(place, own=Own()).resume() == 1
    assert muster.checkpoints(place, by_rank={"own": (own := Own())}).resume() == 1
    assert own.state == {"both": 1, "rank": 0}


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("object", "the state of own[a] contains a value of type object"),
        ("sharded", "the state of model[weight] contains a DTensor, which is split "),
        ("its optimizer", "the state of optimizer[state][0][exp_avg] contains a DTensor"),
    ],
)
def test_state_that_cannot_be_saved_is_refused_on_every_rank(ended, what, problem):
    for kind, message in (one[what] for one in ended):
        assert kind == "UsageError"
        assert message.startswith("muster.checkpoints: ") and problem in message


def test_unsavable_state_of_one_rank_ends_others_with_message(ended):
    kinds = [kind for kind, _ in (one["only on rank 1"] for one in ended)]
    assert kinds == ["PeerFailed", "UsageError", "UsageError"]
    assert "the state of own[a] contains a value of type set" in ended[0]["only on rank 1"][1]


def test_lazy_parameter_is_refused(tmp_path):
    with pytest.raises(muster.UsageError, match=r"model\[weight\] contains a parameter .*shape"):
        muster.checkpoints(tmp_path, model=nn.LazyLinear(2)).save(1)


def test_tensor_of_another_class_is_refused(tmp_path):
    masked = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
    with pytest.raises(muster.UsageError, match=r"own\[a\] contains a MaskedTensor"):
        muster.checkpoints(tmp_path, own=Own({"a": masked})).save(1)


class Versioned(nn.Linear):
    """Migrates states of its first version, as modules may."""

    _version = 2
    migrated = False

    def _load_from_state_dict(self, state, prefix, metadata, *rest):
        self.migrated = metadata.get("version", 1) < 2
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def test_versions_of_modules_are_saved(tmp_path):
    muster.checkpoints(tmp_path, model=Versioned(2, 1)).save(1)
    again = Versioned(2, 1)
    assert muster.checkpoints(tmp_path, model=again).resume() == 1
    assert not again.migrated


def test_order_of_a_state_is_saved(tmp_path):
    own = Own(OrderedDict(b=1, a=2))
    muster.checkpoints(tmp_path, own=own).save(1)
    again = Own()
    muster.checkpoints(tmp_path, own=again).resume()
    assert again.state == own.state
