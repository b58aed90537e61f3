"""Models as people have them train in every exact mode as in a single process, to 1e-12."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train import model_kinds_worker as worker
from tests.train.model_kinds import KINDS
from tests.train.workers import run_on_ranks

TOLERANCE = 1e-12  # of losses and parameters, in float64


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What came of every case at a number of ranks; one process group trains them all."""
    output = tmp_path_factory.mktemp("kinds")

    def at(ranks: int) -> dict[str, dict[str, Any]]:
        file = Path(output, f"ranks_{ranks}.pt")
        if not file.exists():
            run_on_ranks(worker.__file__, ranks, str(output), timeout_s=550)
        found: dict[str, dict[str, Any]] = torch.load(file, weights_only=True)
        return found

    return at


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "complex"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_mode_trains_it_as_single_does(ranks, kind, trained):
    alone, found, wrong = trained(1), trained(ranks), []
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


@pytest.mark.parametrize("ranks", [2, 3])
def test_torchs_ddp_refuses_reentrant_checkpointing_of_a_shared_layer(ranks, trained):
    refused = [case.name for case in worker.cases(ranks) if worker.raises(case)]
    assert [name.split("|")[2] for name in refused] == ["ddp", "accelerate"]
    for name in refused:
        assert "mark a variable ready only once" in trained(ranks)[name]["error"]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_complex_parameters_are_refused_by_name(ranks, trained):
    found = [one for name, one in trained(ranks).items() if name.startswith("complex|")]
    assert len(found) == (1 if ranks == 1 else len(worker.MODES))
    for one in found:
        assert "the model's parameter weight is complex (complex64)" in one["error"]


def test_each_kind_has_learned_something(trained):
    """A case that is not trained at all would equal its reference as well."""
    for name, one in trained(1).items():
        if not name.startswith("complex|"):
            assert one["losses"].isfinite().all() and one["losses"][0] != one["losses"][-1], name
