"""Which threads are waited for, and until when."""

import pytest

from muster.worker import gloo_threads


def write(task, state: str, switches: int, name: str = "pt_gloo_runloop") -> None:
    task.mkdir(exist_ok=True)
    (task / "comm").write_text(f"{name}\n")
    counts = f"voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t0"
    (task / "status").write_text(f"Name:\t{name}\nState:\t{state}\nVmRSS:\t9 kB\n{counts}\n")


@pytest.mark.parametrize(
    ("looks", "waits"),
    [
        ([("S", 5), ("S", 5)], 1),
        ([("R", 5), ("R", 5), ("S", 6), ("S", 6)], 3),  # no processor was free for it
        ([("S", 5), ("S", 6), ("S", 7), ("S", 7)], 3),  # it has run in between
    ],
)
def test_gloo_thread_is_awaited_until_idle(tmp_path, monkeypatch, looks, waits):
    later = iter([*looks[1:], ("R", 9)])
    monkeypatch.setattr(
        gloo_threads.time, "sleep", lambda seconds: write(tmp_path / "12", *next(later))
    )
    write(tmp_path / "12", *looks[0])
    write(tmp_path / "11", "R", 3, name="python")
    (tmp_path / "13").mkdir()  # a thread that is just ending
    gloo_threads.wait(tmp_path)
    assert len(list(later)) == len(looks) - waits


@pytest.mark.parametrize(("folder", "slept"), [("", []), ("proc", [0.1])])
def test_gloo_wait_is_zero_without_threads_and_fixed_without_proc(
    tmp_path, monkeypatch, folder, slept
):
    found: list[float] = []
    monkeypatch.setattr(gloo_threads.time, "sleep", found.append)
    gloo_threads.wait(tmp_path / folder)
    assert found == slept
