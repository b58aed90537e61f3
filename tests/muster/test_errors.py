"""A command ends with one exit code and one message, whatever happens to its output."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from muster import errors
from muster.checkout import CHECKOUT
from muster.errors import MusterError, UsageError

# A command whose body is still to be filled in.
COMMAND = """
import sys
from pathlib import Path
from muster import errors

def main():
    {body}
    return 3

errors.run(main)
"""


FULL = OSError(errno.ENOSPC, "No space left on device", "/data/x.csv")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            UsageError("--lr is odd\n--seed is even"),
            2,
            "error: --lr is odd\nerror: --seed is even\n",
        ),
        (MusterError("no"), 1, "error: no\n"),
        (KeyboardInterrupt(), 130, ""),
        (FULL, 1, r"error: .*: /data/x.csv: the disk is full.*\n"),
        (OSError(errno.EMFILE, "x"), 1, r"error: \S+: .*too many open files(.|\n)*-n\n"),
        (BlockingIOError(errno.EAGAIN, "x"), 1, r"error: \S+: .*too many processes .*ulimit -u\n"),
        (RuntimeError("can't start new thread"), 1, r"error: \S+: .*too many .*ulimit -u\n"),
    ],
)
def test_an_error_ends_the_command_with_its_code_and_lines(capsys, error, code, message):
    with pytest.raises(SystemExit) as ended:
        errors.run(Mock(side_effect=error))
    assert ended.value.code == code
    out, err = capsys.readouterr()
    assert out == "" and re.fullmatch(message, err)


def test_a_folder_that_was_removed_is_named(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    run = [sys.executable, str(CHECKOUT / "muster" / "command.py"), "run", "--", "x.py"]
    line = 'cd "$0" && rmdir "$0" && exec "$@"'
    done = subprocess.run(["bash", "-c", line, folder, *run], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: the current folder, {folder}, was removed\n"
        "tip: change to a folder that exists: cd\n"
    )


@pytest.mark.parametrize("error", [ZeroDivisionError, BrokenPipeError])  # the latter from a socket
def test_a_bug_keeps_its_traceback(error):
    with pytest.raises(error):
        errors.run(Mock(side_effect=error))


def command(body, **streams):
    code = COMMAND.format(body=body)
    return subprocess.Popen([sys.executable, "-c", code], cwd=CHECKOUT, text=True, **streams)


@pytest.mark.parametrize(
    "body",
    [
        "input(); [print(number) for number in range(100_000)]",  # more than a pipe holds
        "input(); print('too late')",  # a little output, at the end
        "input(); print('help'); sys.exit(0)",
        "input(); print('too late', file=sys.stderr); print('too late')",
    ],
)
def test_output_that_nobody_reads_any_more_ends_a_command_in_silence(body):
    pipe = subprocess.PIPE
    process = command(body, stdin=pipe, stdout=pipe, stderr=pipe)
    process.stdout.close()
    process.stdin.write("\n")
    process.stdin.close()
    message = process.stderr.read().replace("too late\n", "")
    process.stderr.close()
    assert (process.wait(300), message) == (141, "")


def test_closed_terminal_ends_command_with_code_of_sighup(tmp_path):
    """The code is the same as after SIGHUP, on which a command may clean up."""
    reader, terminal = os.openpty()
    body = "input(); [print(number, flush=True) for number in range(100_000)]"
    process = command(body, stdin=subprocess.PIPE, stdout=terminal, stderr=subprocess.PIPE)
    os.close(terminal)
    os.close(reader)
    _, message = process.communicate("\n", timeout=300)
    assert (process.returncode, message) == (129, "")


def test_files_of_a_command_are_not_writable_for_others(tmp_path):
    body = f"import os; os.mkdir({str(tmp_path / 'made')!r})"
    before = os.umask(0)
    try:
        assert command(body).wait(300) == 3
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o775


def test_output_to_a_full_disk_is_one_line():
    with Path("/dev/full").open("w") as full:
        process = command("print('lost')", stdout=full, stderr=subprocess.PIPE)
        _, message = process.communicate(timeout=300)
    assert process.returncode == 1
    assert len(message.splitlines()) == 1 and "the disk is full" in message
    with Path("/dev/full").open("w") as full:
        assert command("print('lost')", stdout=full, stderr=full).wait(60) == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8:surrogateescape", "ascii:surrogateescape"])
def test_half_a_character_in_a_text_of_others_is_shown(encoding):
    """It is strict as in most terminals, or as in the locale C, with or without UTF-8 mode."""
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    process = command(r"print('node\ud800\udce9')", stdout=subprocess.PIPE, env=env)
    shown, _ = process.communicate(timeout=300)
    assert (process.returncode, shown) == (3, "node\\ud800\\udce9\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_quota_is_a_disk_that_is_full(number):
    assert errors.is_full(OSError(number, ""))
    assert not errors.is_full(OSError(errno.EIO, ""))
    assert errors.is_full(RuntimeError("I/O error: No space left on device (os error 28)"))


NAMES = ["nodes", "nodelist", "batchnorm", "batch-size", "overlap", "lr", "train.py"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("node", "nodes"),
        ("batch", "batch-size"),
        ("Batch-Siz", "batch-size"),
        ("nodse", "nodes"),
        ("tain.py", "train.py"),
        ("LR", "lr"),
        ("no", ""),
        ("verbose", ""),
        ("ntasks", ""),
        ("", ""),
    ],
)
def test_a_whole_word_then_a_beginning_then_what_is_alike(name, meant):
    assert errors.closest(name, NAMES) == meant
