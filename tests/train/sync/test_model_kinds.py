"""Models as people have them train in every exact mode as in a single process, to 1e-12."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.sync import model_kinds_worker as worker
from tests.train.sync.model_kinds import KINDS
from tests.train.workers import results_of

TOLERANCE = 1e-12  # of losses and what is in the model, in float64
REFUSED = "complex"
Outcomes = list[dict[str, Any]]  # of every case, by its name, on each rank


def outcomes(ranks: int, folder: Path) -> Outcomes:
    return results_of(worker.work, ranks, folder, timeout_s=840)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return outcomes(1, tmp_path_factory.mktemp("alone"))[0]


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Outcomes]:
    """At two ranks, and at three."""
    return {ranks: outcomes(ranks, tmp_path_factory.mktemp("found")) for ranks in (2, 3)}


@pytest.fixture(params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture
def found(ranks: int, each: dict[int, Outcomes]) -> dict[str, Any]:
    return each[ranks][0]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != REFUSED])
def test_every_mode_trains_it_as_single_does(kind, ranks, found, alone):
    wrong = []
    for case in worker.cases(ranks):
        if case.task != kind or worker.raises(case):
            continue
        want, got = alone[case.reference.name], found[case.name]
        if "error" in got:
            wrong.append(f"{case.name}: {got['error']}")
            continue
        gaps = [(want[what] - got[what]).abs().max().item() for what in ("losses", "params")]
        if not max(gaps) <= TOLERANCE:
            wrong.append(f"{case.name}: losses {gaps[0]:.1e}, parameters {gaps[1]:.1e}")
    assert not wrong, "\n".join(wrong)


def test_what_sends_in_the_backward_pass_refuses_reentrant_checkpointing_of_a_shared_layer(
    ranks, found
):
    refused = [case for case in worker.cases(ranks) if worker.raises(case)]
    modes = [case.mode for case in refused]
    assert modes == ["gather_scatter", "all_reduce", "ddp", "accelerate", "zero1"]
    for case in refused:
        own = "checkpoint with use_reentrant=False" if case.mode == "zero1" else "ready only once"
        assert own in found[case.name]["error"], case.name


def test_complex_parameters_are_refused_by_name(found, alone):
    refused = [
        one["error"] for name, one in (alone | found).items() if name.startswith(f"{REFUSED}|")
    ]
    assert len(refused) == 1 + len(worker.MODES)
    for error in refused:
        assert "the model's parameter weight is complex (complex64)" in error


@pytest.mark.parametrize("mode", worker.OF_ANY_TYPE)
def test_bfloat16_parameters_stay_so_and_learn_the_same(each, alone, mode):
    single, here = alone["halves"], each[3][0][f"halves|{mode}"]
    kinds = {name: tensor.dtype for name, tensor in here["state"].items()}
    assert kinds["frozen.weight"] == kinds["low.weight"] == torch.bfloat16
    assert kinds["head.weight"] == torch.float32
    assert (here["losses"] - single["losses"]).abs().max() < 1e-2
    assert torch.equal(here["state"]["frozen.weight"], single["state"]["frozen.weight"])


@pytest.mark.parametrize("mode", ["all_reduce", "ddp"])
def test_a_step_sends_its_gradients_and_no_flags_of_used_parameters(each, mode):
    assert {rank[f"sums|{mode}"] for rank in each[3]} == {1}  # the model has one bucket


def test_fsdp_names_parameters_of_several_types(each):
    (refusal,) = {rank["halves|fsdp"] for rank in each[3]}
    assert refusal == (
        "sync mode fsdp trains parameters of one type, but low.bias is bfloat16, "
        "head.bias is float32; use zero1"
    )


def test_a_gradient_that_is_no_number_on_one_rank_ends_all_alike(each):
    (refusal,) = {rank["broken"] for rank in each[3]}
    assert refusal.startswith("step 3: the gradient's norm is nan on rank 1;")


def test_each_kind_has_learned_something(alone):
    """A case that is not trained at all would equal its reference as well."""
    for name, one in alone.items():
        if not name.startswith((f"{REFUSED}|", "halves")):
            assert one["losses"].isfinite().all() and one["losses"][0] != one["losses"][-1], name
