"""Models as people have them train in every exact mode as in a single process, to 1e-12."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.sync import model_kinds_worker as worker
from tests.train.sync.model_kinds import KINDS
from tests.train.workers import run_on_ranks

TOLERANCE = 1e-12  # of losses and parameters, in float64
REFUSED = "complex"
Outcomes = dict[str, dict[str, Any]]  # of every case, by its name


def outcomes(ranks: int, output: Path) -> Outcomes:
    """What came of every case: one process group of `ranks` trains them all."""
    run_on_ranks(worker.__file__, ranks, str(output), timeout_s=840)
    found: Outcomes = torch.load(output / f"ranks_{ranks}.pt", weights_only=True)
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return outcomes(1, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture(scope="module")
def found(ranks: int, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return outcomes(ranks, tmp_path_factory.mktemp("found"))


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


def test_each_kind_has_learned_something(alone):
    """A case that is not trained at all would equal its reference as well."""
    for name, one in alone.items():
        if not name.startswith(f"{REFUSED}|"):
            assert one["losses"].isfinite().all() and one["losses"][0] != one["losses"][-1], name
