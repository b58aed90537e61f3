"""Stacks that faulthandler writes are read back, whichever Python wrote them."""

from launch.agent.inspection.local_workers import threads_of

DUMP = """\
Thread 0x00007f41171c56c0 [loader] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f4117e07b80 (most recent call first):
  File "/home/me/train.py", line 6 in step
  File "/home/me/train.py", line ??? in <module>

Extension modules: numpy (total: 1)
"""


def test_the_thread_that_took_the_signal_comes_first_and_innermost_last():
    main, other = threads_of(DUMP)
    assert main["main"] and [one["function"] for one in main["frames"]] == ["<module>", "step"]
    assert main["frames"][1]["line"] == 6 and main["frames"][0]["line"] == 0
    assert not other["main"] and other["name"] == "loader"


def test_the_oldest_thread_stands_for_the_main_one_where_none_is_marked():
    text = DUMP.replace("Current thread", "Thread")
    assert threads_of(text)[0]["frames"][0]["file"] == "/home/me/train.py"
    assert threads_of("nothing") == []
