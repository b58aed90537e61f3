"""`jobs.py list` has a line for each run: what it does, or how it ended."""

from tests.launch.test_jobs import jobs, leader, run_folder


def test_a_line_for_each_run_newest_first(tmp_path):
    run_folder(tmp_path, "20260101-one", leader(job_id="77"), {"code": 1, "message": "boom"})
    run_folder(tmp_path, "20260102-two", leader(job_id="78"))
    code, out, err = jobs(tmp_path, "list")
    assert code == 0 and err == ""
    head, first, second = out.splitlines()
    assert head.split() == ["run", "through", "job", "state", "what", "it", "does"]
    assert first.split()[:4] == ["20260102-two", "local", "78", "running"]
    assert "none of them has started workers yet" in first
    assert second.split()[:4] == ["20260101-one", "local", "77", "failed"]
    assert second.rstrip().endswith("exit code 1: boom")
    assert len(jobs(tmp_path, "list", "-n", "1")[1].splitlines()) == 2
    code, out, err = jobs(tmp_path, "top", "--once")
    assert code == 2 and "use: watch -n 2 muster jobs list" in err
