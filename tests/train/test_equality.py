"""Every sync mode equals single-process training: any ranks, any split, accumulation, clipping."""

from functools import cache

import pytest
import torch

from tests.train import matrix_worker as matrix
from tests.train.workers import results_of

# Measured: 4e-7 and 6e-6 in float32. The worst parameter is the attention's key bias: its true
# gradient is zero, so AdamW divides rounding errors by rounding errors.
TOLERANCE = {
    ("bert", "fp64"): (1e-12, 1e-12),
    ("bert", "fp32"): (2e-6, 1e-4),
    ("mlp", "fp32"): (1e-6, 1e-6),
    ("patchy", "fp64"): (1e-12, 1e-12),
    ("tokens", "fp64"): (1e-12, 1e-12),
}


TIMEOUT_S = 1700
RANKS = 3


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that gives one process's results of all trainings in a precision."""

    @cache
    def trained(precision: str):
        folder = tmp_path_factory.mktemp("reference")
        return results_of(matrix.work, 1, folder, precision, timeout_s=TIMEOUT_S)[0]

    return trained


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("precision", ["fp64", pytest.param("fp32", marks=pytest.mark.slow)])
def test_every_mode_equals_single(reference, tmp_path, precision):
    alone = reference(precision)
    found = results_of(matrix.work, RANKS, tmp_path, precision, timeout_s=TIMEOUT_S)[0]
    wrong, cases = [], matrix.cases(precision)
    for case in cases:
        want = alone[case.reference.name]
        loss_limit, param_limit = TOLERANCE[case.task, case.precision]
        for name in (case.name, f"{case.name}{matrix.BY_LIBRARY}"):
            if name not in found and name != case.name:
                continue
            got = found[name]
            loss_gap = (want["losses"] - got["losses"]).abs().max().item()
            param_gap = (want["params"] - got["params"]).abs().max().item()
            if not (loss_gap <= loss_limit and param_gap <= param_limit):
                wrong.append(f"{name}: losses {loss_gap:.1e}, parameters {param_gap:.1e}")
            if name == case.name:
                norm_gap = ((want["norms"] - got["norms"]).abs() / want["norms"]).max().item()
                if not (norm_gap <= param_limit and torch.equal(want["counts"], got["counts"])):
                    wrong.append(f"{name}: norms {norm_gap:.1e}, counts {got['counts'].tolist()}")
    assert not wrong, "\n".join(wrong)
    by_library = {name.split("|")[2] for name in found if name.endswith(matrix.BY_LIBRARY)}
    assert by_library == {*matrix.LIBRARY}
    assert {case.mode for case in cases} == {mode for mode, _ in matrix.CASES}


def test_the_references_differ_by_far_more_than_the_tolerance(reference):
    """Otherwise, a case with the wrong reference, or without any training, would go unnoticed."""
    found = reference("fp64")
    clipped, free = (
        found[f"patchy|fp64|single|25.0|even|1|{clip}"]["params"] for clip in (0.05, 0.0)
    )
    assert (clipped - free).abs().max() > 1e-2
