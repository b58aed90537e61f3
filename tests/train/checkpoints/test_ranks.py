"""Resuming on several ranks: bitwise in every mode, and on another number of ranks to rounding."""

from pathlib import Path

from tests.train.workers import run_on_ranks

WORKER = str(Path(__file__).with_name("resume_worker.py"))


def test_every_mode_goes_on_and_another_number_of_ranks_does_too(tmp_path):
    for ranks in (3, 2):
        run_on_ranks(WORKER, ranks, str(tmp_path), timeout_s=300)
