"""Models with what few models have train in every mode as they do alone, or are refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.sync import models_worker as worker
from tests.train.workers import run_on_ranks

RANKS = 3


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("models")
    run_on_ranks(worker.__file__, RANKS, str(folder))
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize("mode", worker.MODES)
def test_constant_buffers_keep_their_bits_and_others_are_averaged(found, mode):
    """With infinities in a mask, and a rank without samples."""
    alone, first = found[0]["masked"], found[0][f"masked|{mode}"]
    plain = worker.Masked().double()
    for rank in found:
        state = rank[f"masked|{mode}"]["state"]
        for name in ("mask", "frequencies", "turns"):
            assert torch.equal(state[name], getattr(plain, name)), name
        assert state["steps"] == 12
        for name in ("running", "layer.weight", "layer.bias"):
            assert torch.equal(state[name], first["state"][name]), name
    assert (first["losses"] - alone["losses"]).abs().max() < 1e-12
    for name in ("running", "layer.weight"):  # parts' means, weighted, are the whole one's
        torch.testing.assert_close(
            first["state"][name], alone["state"][name], rtol=0, atol=1e-12, msg=name
        )


@pytest.mark.parametrize("mode", worker.MODES)
def test_a_part_called_module_is_only_a_part(found, mode):
    alone, here = found[0]["child"], found[0][f"child|{mode}"]
    assert (here["losses"] - alone["losses"]).abs().max() < 1e-12
    assert set(here["state"]) == {"module.weight", "module.bias", "head.weight", "head.bias"}


@pytest.mark.parametrize("mode", worker.OF_ANY_TYPE)
def test_bfloat16_parameters_stay_so_and_learn_the_same(found, mode):
    alone, here = found[0]["halves"], found[0][f"halves|{mode}"]
    kinds = {name: tensor.dtype for name, tensor in here["state"].items()}
    assert kinds["frozen.weight"] == kinds["low.weight"] == torch.bfloat16
    assert kinds["head.weight"] == torch.float32
    assert (here["losses"] - alone["losses"]).abs().max() < 1e-2
    assert torch.equal(here["state"]["frozen.weight"], alone["state"]["frozen.weight"])


@pytest.mark.parametrize("mode", worker.OF_CHANGING)
def test_parts_that_are_frozen_or_unused_for_some_steps(found, mode):
    """The optimizer does not decay them then: their gradients are None on every rank."""
    alone, here = found[0]["changing"], found[0][f"changing|{mode}"]
    assert (here["losses"] - alone["losses"]).abs().max() < 1e-12
    for name, tensor in alone["state"].items():
        torch.testing.assert_close(here["state"][name], tensor, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("mode", ["all_reduce", "ddp"])
def test_a_step_sends_its_gradients_and_no_flags_of_used_parameters(found, mode):
    assert {rank[f"sums|{mode}"] for rank in found} == {1}  # the model has one bucket


def test_fsdp_names_parameters_of_several_types(found):
    (refusal,) = {rank["halves|fsdp"] for rank in found}
    assert refusal == (
        "sync mode fsdp trains parameters of one type, but low.bias is bfloat16, "
        "head.bias is float32; use zero1"
    )


def test_a_gradient_that_is_no_number_on_one_rank_ends_all_alike(found):
    (refusal,) = {rank["refusal"] for rank in found}
    assert refusal.startswith("step 3: the gradient's norm is nan on rank 1;")
