"""From a laptop: `--login` on a command, through the sshd of one node alone."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from secrets import token_hex

import psutil
import pytest

from tests.cluster.testbeds import REPOSITORY
from tests.launch.submit import wait_until

MUSTER = [sys.executable, str(REPOSITORY / "muster" / "command.py")]
WAIT = """import sys, time
from pathlib import Path
print("begun", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("over", flush=True)
print("a warning", file=sys.stderr, flush=True)
"""


class Laptop:
    """A user's machine: a project, a folder for state, and the way to node0."""

    def __init__(self, cluster, folder: Path, sockets: Path) -> None:
        self.project, self.remote = folder / "project", folder / "remote"
        self.run_id = f"run-{token_hex(4)}"  # nodes of the testbed have one home
        self.project.mkdir()
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(sockets),
        }
        self.login = ["--login", "root@node0", "--login-config", str(cluster.ssh_config)]
        self.login += ["--login-dir", str(self.remote), "--login-python", sys.executable]

    def start(self, word: str, *words: str) -> subprocess.Popen:
        return self.start_known(word, *self.login, *words)

    def start_known(self, *words: str) -> subprocess.Popen:
        """A command that names a run alone."""
        return subprocess.Popen(
            [*MUSTER, *words], cwd=self.project, env=self.env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def known(self, *words: str) -> subprocess.CompletedProcess:
        """The same, to its end."""
        process = self.start_known(*words)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(words, process.returncode, out, err)


@pytest.fixture
def laptop(cluster, tmp_path):
    with tempfile.TemporaryDirectory() as sockets:  # a short path, as sockets need
        yield Laptop(cluster, tmp_path, Path(sockets))
        for socket in Path(sockets).glob("muster/*"):
            subprocess.run(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "x"], check=False)


def session_of(laptop) -> Path:
    (session,) = (laptop.remote / "sessions").iterdir()
    return session


def output_until(process: subprocess.Popen, words: str) -> str:
    seen = ""
    while words not in seen:
        line = process.stdout.readline()
        assert line, seen + process.stderr.read()
        seen += line
    return seen


def waiting_run(laptop, *flags: str) -> tuple[subprocess.Popen, Path]:
    """One whose program has begun, and goes on until the returned file is there."""
    (laptop.project / "t.py").write_text(WAIT)
    end = laptop.project / "end"
    run = laptop.start(
        "run",
        "--run-id",
        laptop.run_id,
        "--launcher",
        "local",
        "--workers",
        "manual",
        *flags,
        "--",
        "t.py",
        str(end),
    )
    output_until(run, "begun")
    return run, end


def shown(laptop) -> int:
    """How much the command on the login node has printed, which is less than a line's buffer."""
    return (session_of(laptop) / "out").stat().st_size


def test_a_run_starts_there_and_comes_home(laptop):
    (laptop.project / "t.py").write_text("import os; print('rank', os.environ['RANK'])\n")
    run = laptop.start(
        "run", "--run-id", laptop.run_id, "--launcher", "local", "--workers", "manual", "--", "t.py"
    )
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    assert "rank 0" in out and "sending Muster" in err
    status = laptop.known("jobs", "status", laptop.run_id)
    assert f"{laptop.run_id}: done" in status.stdout, status.stderr
    fetched = laptop.known("jobs", "fetch", laptop.run_id, "--to", "home")
    assert fetched.returncode == 0, fetched.stderr
    assert (
        json.loads((laptop.project / "home" / laptop.run_id / "exit.json").read_text())["code"] == 0
    )


def test_only_what_changed_is_sent_and_what_is_gone_here_goes_there(laptop):
    (laptop.project / "gone.py").write_text("")
    (laptop.project / "a name\nwith a line").write_text("kept")
    (laptop.project / "t.py").write_text("from pathlib import Path; Path('made').touch()\n")
    flags = ("--launcher", "local", "--workers", "manual", "--no-snapshot", "--", "t.py")
    assert laptop.start("run", *flags).wait(300) == 0
    (copy,) = (laptop.remote / "projects").iterdir()
    (laptop.project / "gone.py").unlink()
    (laptop.project / "t.py").write_text("import sys; sys.exit(7)\n")
    again = laptop.start("run", *flags)
    _, err = again.communicate(timeout=300)
    assert again.returncode == 7, err
    assert "sending Muster" not in err
    names = {path.name for path in copy.iterdir()}
    assert "gone.py" not in names and {"a name\nwith a line", "made", "t.py"} <= names


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_lost_connection_changes_nothing(laptop):
    run, end = waiting_run(laptop)
    words = ("follow", str(session_of(laptop)))
    follower = next(one for one in psutil.process_iter() if words == tuple(cmdline(one)[2:4]))
    sshd = next(one for one in follower.parents() if one.name().startswith("sshd"))
    sshd.kill()
    end.touch()
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    assert out.endswith("over\n") and out.count("over") == 1
    assert "a warning" in err and "it goes on there" in err


def test_a_laptop_that_is_killed_goes_on_where_it_was(laptop):
    run, end = waiting_run(laptop)
    noted = Path(laptop.env["XDG_STATE_HOME"], "muster", "logins", laptop.run_id)
    wait_until(lambda: json.loads(noted.read_text())["seen"][0] >= shown(laptop))
    run.kill()
    run.wait()
    follow = laptop.start_known("jobs", "logs", laptop.run_id, "-f")
    end.touch()
    out, err = follow.communicate(timeout=300)
    assert follow.returncode == 0, err
    assert out == "over\n"


def test_ctrl_c_does_what_it_does_there(laptop):
    run, _ = waiting_run(laptop, "--stop-grace-s", "0")
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=300)
    assert run.returncode == 130, err
    assert "Ctrl-C was passed on" in err and "stopped by SIGINT" in err
    assert f"{laptop.run_id}: stopped" in laptop.known("jobs", "status", laptop.run_id).stdout


def test_a_job_of_slurm_and_values_of_env(laptop):
    (laptop.project / "t.py").write_text("import os; print(os.environ['SECRET'], end='!\\n')\n")
    laptop.env["SECRET"] = "of $HOME"
    flags = ("--launcher", "slurm", "--nodes", "2", "--workers", "manual", "--env", "SECRET")
    run = laptop.start("run", *flags, "--", "t.py")
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    assert "of $HOME!" in out
    texts = [path.read_text() for path in session_of(laptop).iterdir() if path.name != "out"]
    assert not any("of $HOME" in text for text in texts)


def test_a_passphrase_is_asked_for_once(laptop, cluster, tmp_path):
    found = re.search(r"IdentityFile (\S+)", cluster.ssh_config.read_text())[1]
    key, asked, ask = tmp_path / "key", tmp_path / "asked", tmp_path / "ask"
    shutil.copy(found, key)
    new = ["ssh-keygen", "-q", "-p", "-f", str(key), "-P", "", "-N", "open it"]
    subprocess.run(new, check=True)
    ask.write_text(f"#!/bin/sh\necho >> {asked}\necho open it\n")
    ask.chmod(0o700)
    config = laptop.project / "config"
    text = cluster.ssh_config.read_text().replace(found, str(key)).replace("BatchMode yes", "")
    config.write_text(text)
    laptop.login[3] = str(config)
    laptop.env |= {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force", "SSH_AUTH_SOCK": ""}
    (laptop.project / "t.py").write_text("print('in')\n")
    flags = ("--launcher", "local", "--workers", "manual", "--", "t.py")
    for _ in range(2):
        run = laptop.start("run", *flags)
        _, err = run.communicate(timeout=300)
        assert run.returncode == 0, err
    assert asked.read_text() == "\n"


def test_a_host_that_is_not_known_is_refused(laptop):
    wrong = laptop.project / "config"
    wrong.write_text("Host node0\n HostName 10.10.1.1\n UserKnownHostsFile /dev/null\n")
    laptop.login[3] = str(wrong)
    run = laptop.start("run", "--", "t.py")
    _, err = run.communicate(timeout=300)
    assert run.returncode == 1
    assert "its host key is not known" in err
