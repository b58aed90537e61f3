"""The results of a job array's runs are the same in a sweep as in every other view of them."""

import pytest

from launch.programs.command_line import CommandLine
from launch.runs import run_record, run_state
from launch.studies import array_job
from launch.studies.cells import Cell, Sweep
from muster.errors import UsageError
from tests.launch.run_folders import JOB, of_ranks, run_folder
from tests.written import write


@pytest.fixture
def sweep(slurm, tmp_path, monkeypatch):
    """A sweep of one run, which job 12 runs."""
    monkeypatch.setattr(array_job, "ARRAY_JOB_TICK_S", 0.0)
    monkeypatch.setattr("launch.slurm.run_watcher.JOB_ASKED_EVERY_S", 0.0)
    cell = Cell("a", {}, ("--task=synthetic",))
    cell.parsed = CommandLine.parse(cell.words)
    output = f"{tmp_path}/submissions/001/submitit/"
    slurm.prints_to(f"{output}%A_%a_0_log.out")
    slurm.job_is("RUNNING")
    job = {"nproc": [1, 1], "output": output}
    write(run_folder(tmp_path / "runs", "a", JOB), {"slurm.json": job})
    return Sweep("s", (cell,), folder=tmp_path)


def ends(monkeypatch, sweep, act):
    """Call `act` with each look's number before it; return the run's last state and message."""
    looks = []
    states_of = run_state.states_of

    def look(*given):
        looks.append(len(looks))
        act(looks[-1])
        return states_of(*given)

    monkeypatch.setattr(run_state, "states_of", look)
    assert array_job.run(sweep, 1, wait=True)
    (cell,) = sweep.cells
    return cell.state, cell.message


def test_a_run_that_is_done_by_its_ranks_has_not_failed(slurm, sweep, tmp_path, monkeypatch):
    write(tmp_path / "runs" / "a", of_ranks("done", "", 0))

    def act(look):
        if look == 1:
            slurm.job_is("COMPLETED")

    assert ends(monkeypatch, sweep, act) == ("done", "")


def test_a_record_that_is_seen_after_slurm_s_word_counts(slurm, sweep, monkeypatch):
    """A shared disk may show the record later."""

    def act(look):
        if look == 1:
            slurm.job_is("FAILED")
        elif look == 2:
            text = "error: rank 0 on node0: no data"
            run_record.end(sweep.run_dir(sweep.cells[0]), 7, text, 0, "program")

    assert ends(monkeypatch, sweep, act) == ("failed", "rank 0 on node0: no data")


def test_a_run_that_slurm_has_ended_has_slurms_reason(slurm, sweep, monkeypatch):
    def act(look):
        if look == 1:
            slurm.job_is("OUT_OF_MEMORY")

    assert ends(monkeypatch, sweep, act) == ("failed", "Slurm reports OUT_OF_MEMORY for job 12")


def test_sweep_beyond_the_limit_of_job_arrays_is_refused(slurm, tmp_path):
    cells = [Cell(name, {}, ("--task=synthetic", "--launcher=slurm")) for name in "abcd"]
    for cell in cells:
        cell.parsed = CommandLine.parse(cell.words)
    with pytest.raises(UsageError) as caught:
        array_job.run(Sweep("s", tuple(cells), folder=tmp_path), 1, wait=False)
    assert str(caught.value) == (
        "4 runs, but this cluster allows only 3 in a job array (MaxArraySize); "
        "divide the values among several sweeps"
    )
    assert list(tmp_path.glob("runs/*")) == []
    assert all("--test-only" in call for call in slurm.calls("sbatch"))
