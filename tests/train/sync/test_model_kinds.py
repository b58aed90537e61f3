"""Common kinds of models train in every exact mode as in a single process, within 1e-12."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from tests.train.sync import model_kinds_worker as worker
from tests.train.sync.model_kinds import KINDS
from tests.train.workers import results_of

pytestmark = pytest.mark.slow

TOLERANCE = 1e-12  # for losses and parameters, in float64
Outcomes = list[dict[str, Any]]  # of every case, by its name, on each rank


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Outcomes]:
    """Return a function that gives the outcomes on a number of ranks."""

    @cache
    def outcomes(ranks: int) -> Outcomes:
        return results_of(worker.work, ranks, tmp_path_factory.mktemp("found"), timeout_s=840)

    return outcomes


RANKS = 3


@pytest.mark.parametrize("kind", KINDS)
def test_model_kind_trains_in_every_mode_as_in_single(kind, each):
    wrong = []
    alone = each(1)[0]
    for case in worker.cases(RANKS):
        if case.task != kind or worker.raises(case):
            continue
        want = alone[case.reference.name]
        got = each(RANKS)[0][case.name]
        if "error" in got:
            wrong.append(f"{case.name}: {got['error']}")
            continue
        gaps = [(want[what] - got[what]).abs().max().item() for what in ("losses", "params")]
        if not max(gaps) <= TOLERANCE:
            wrong.append(f"{case.name}: losses {gaps[0]:.1e}, parameters {gaps[1]:.1e}")
    assert not wrong, "\n".join(wrong)


def test_reentrant_checkpointing_of_a_shared_layer_is_refused(each):
    refused = [case for case in worker.cases(RANKS) if worker.raises(case)]
    modes = [case.mode for case in refused]
    assert modes == ["gather_scatter", "all_reduce", "ddp", "accelerate", "zero1"]
    for case in refused:
        text = "checkpoint with use_reentrant=False" if case.mode == "zero1" else "ready only once"
        assert text in each(RANKS)[0][case.name]["error"], case.name


@pytest.mark.parametrize("mode", worker.OF_ANY_TYPE)
def test_bfloat16_parameters_stay_so_and_learn_the_same(each, mode):
    single = each(1)[0]["halves"]
    here = each(3)[0][f"halves|{mode}"]
    kinds = {name: tensor.dtype for name, tensor in here["state"].items()}
    assert kinds["frozen.weight"] == kinds["low.weight"] == torch.bfloat16
    assert kinds["head.weight"] == torch.float32
    assert (here["losses"] - single["losses"]).abs().max() < 1e-2
    assert torch.equal(here["state"]["frozen.weight"], single["state"]["frozen.weight"])


@pytest.mark.parametrize("mode", ["all_reduce", "ddp"])
def test_a_step_sends_its_gradients_and_no_flags_of_used_parameters(each, mode):
    assert {rank[f"sums|{mode}"] for rank in each(3)} == {1}  # the model has one bucket


def test_fsdp_names_parameters_of_several_types(each):
    (refusal,) = {rank["halves|fsdp"] for rank in each(3)}
    assert refusal.startswith("sync mode fsdp ")
    assert "low.bias is bfloat16, head.bias is float32" in refusal


def test_nan_gradient_on_one_rank_ends_every_rank(each):
    (refusal,) = {rank["broken"] for rank in each(3)}
    assert refusal.startswith("step 3: the gradient's norm is nan on rank 1;")


def test_loss_of_each_model_kind_falls(each):
    """A case that is not trained at all would equal its reference as well."""
    for name, outcome in each(1)[0].items():
        assert (
            outcome["losses"].isfinite().all() and outcome["losses"][0] != outcome["losses"][-1]
        ), name
