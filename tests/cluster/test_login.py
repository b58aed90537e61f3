"""From a laptop: commands with `--login`, only through the sshd of one node."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from launch.virtual_cluster.virtual_nodes import STATE
from muster.checkout import CHECKOUT
from tests.cluster.laptops import HOME, LOCAL, Laptop
from tests.launch.submit import wait_until
from tests.written import write

# A user's script; it prints results, a failure, and what `muster.map` and a job found again return.
CALLS = """import json, os, time, muster

def work(number, more=0):
    if number < 0:
        raise ValueError("no")
    return number + more, os.environ["RANK"], os.environ["MY_KEY"]

def square(number):
    return number * number

def wait():
    time.sleep(10_000)

if __name__ == "__main__":
    job = muster.launch(work, 3, kwargs={"more": 4}, env={"MY_KEY": "s3cret"}, on="hpc")
    print(json.dumps(job.results()))
    try:
        muster.launch(work, -1, on="hpc", nodes=1).results()
    except muster.RunFailed as error:
        print(json.dumps([f"rank {error.rank}", repr(error.__cause__), "work" in error.traceback]))
    endless = muster.launch(wait, on="hpc", nodes=1, launcher="local")
    try:
        endless.wait(0)
    except TimeoutError as error:
        late = type(error).__name__
    endless.cancel()
    jobs = muster.map(square, [1, 2, 3], on="hpc", nodes=1, launcher="local")
    squares = [one.rank(0) for one in jobs]
    print(json.dumps([squares, muster.job(jobs[1].run_id).status().word, late]))
"""


def test_detached_run_on_nodes_behind_login_node_is_fetched(laptop, cluster):
    hosts = ["--launcher", "ssh", "--hosts", "node1,node2", "--ssh-config", str(cluster.ssh_config)]
    words = ["--run-id", laptop.run_id, *hosts, "--workers", "manual", "--detach", "--json"]
    run = laptop.run("import sys; print('begun'); sys.exit(7)\n", *words)
    assert "sending Muster" in run.stderr
    assert json.loads(run.stdout.splitlines()[0])["kind"] == "submitted"
    waited = laptop.known("jobs", "wait", laptop.run_id, "--json")
    ended = json.loads(waited.stdout.splitlines()[-1])
    assert waited.returncode == ended["exit_code"] == 7, waited.stderr
    assert (ended["kind"], ended["cause"]) == ("ended", "program")
    assert "node1.0| begun" in laptop.known("jobs", "logs", laptop.run_id, "-f").stdout
    status = laptop.known("jobs", "status", laptop.run_id)
    assert f"{laptop.run_id}: failed" in status.stdout, status.stderr
    fetched = laptop.known("jobs", "fetch", laptop.run_id, "--to", "home")
    assert fetched.returncode == 0, fetched.stderr
    end = json.loads((laptop.project / "home" / laptop.run_id / "exit.json").read_text())
    assert end["code"] == 7
    # not in the home folder of the user who runs the testbed
    assert (STATE / "home" / "muster").is_dir()


@pytest.mark.slow
def test_second_login_run_removes_deleted_files_without_resending_muster(laptop):
    (laptop.project / "gone.py").write_text("")
    (laptop.project / "a name\nwith a line").write_text("kept")
    laptop.run("from pathlib import Path; Path('made').touch()\n", *LOCAL)
    (copy,) = (laptop.remote / "projects").iterdir()
    (laptop.project / "gone.py").unlink()
    again = laptop.run("import sys; sys.exit(7)\n", *LOCAL, code=7)
    assert "sending Muster" not in again.stderr
    names = {path.name for path in copy.iterdir()}
    assert "gone.py" not in names and {"a name\nwith a line", "made", "t.py"} <= names


@pytest.mark.slow
def test_a_job_of_slurm_and_values_of_env(laptop):
    laptop.env["SECRET"] = "of $HOME"
    flags = ("--launcher", "slurm", "--nodes", "2", "--workers", "manual", "--env", "SECRET")
    run = laptop.run("import os; print(os.environ['SECRET'], end='!\\n')\n", *flags)
    assert "of $HOME!" in run.stdout
    texts = [path.read_text() for path in laptop.session().iterdir() if path.name != "out"]
    assert not any("of $HOME" in text for text in texts)


@pytest.mark.slow
def test_a_full_disk_there_is_named(laptop, cluster):
    laptop.remote.mkdir()
    small = ("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(laptop.remote))
    assert cluster.exec("node0", *small).returncode == 0
    try:
        run = laptop.run("", *LOCAL, code=1)
    finally:
        cluster.exec("node0", "umount", "--lazy", str(laptop.remote))
    *_, problem, tip = run.stderr.splitlines()
    assert problem.startswith("error: root@node0: ") and str(laptop.remote) in problem
    assert "No space left" in problem and tip.startswith("tip: ") and "--login-dir" in tip


@pytest.mark.slow
def test_two_commands_at_once_may_both_send_muster(laptop):
    with ThreadPoolExecutor(2) as pool:
        ask = ["jobs", *laptop.login, "list"]
        done = list(pool.map(lambda _: laptop.known(*ask), range(2)))
    assert [one.returncode for one in done] == [0, 0], done
    (version,) = (laptop.remote / "versions").iterdir()
    assert not version.name.startswith(".")
    # an old version is removed on request
    old = write(laptop.remote / "versions" / "old", {".sent": ""})
    os.utime(old / ".sent", (0, 0))
    shown = laptop.known("jobs", *laptop.login, "clean")
    assert f"{old}\n          another version of Muster" in shown.stdout, shown

    def is_removed() -> bool:
        assert laptop.known("jobs", *laptop.login, "clean", "--remove").returncode == 0
        return list((laptop.remote / "versions").iterdir()) == [version]

    wait_until(is_removed)  # the last command may need a moment to end


@pytest.mark.slow
def test_a_passphrase_is_asked_for_once(laptop):
    ask = laptop.home / "ask"
    new = ["ssh-keygen", "-q", "-p", "-f", str(laptop.home / "id_ed25519"), "-P", "", "-N", "open"]
    subprocess.run(new, check=True)
    ask.write_text(f"#!/bin/sh\necho >> {HOME}/asked\necho open\n")
    ask.chmod(0o700)
    laptop.ssh_config.write_text(laptop.ssh_config.read_text().replace("BatchMode yes", ""))
    laptop.env |= {"SSH_ASKPASS": str(HOME / "ask"), "SSH_ASKPASS_REQUIRE": "force"}
    laptop.env["SSH_AUTH_SOCK"] = ""
    for _ in range(2):
        laptop.run("print('in')\n", *LOCAL)
    assert (laptop.home / "asked").read_text() == "\n"


SETTINGS = f"""[clusters.hpc]
login = "root@node0"
login_config = "../ssh_config"
login_dir = "{{remote}}"
login_python = "{sys.executable}"
launcher = "slurm"
nodes = 2
workers = "manual"
prologue = "setup.sh"
"""


@pytest.fixture
def hpc(laptop: Laptop) -> Laptop:
    """A laptop whose project names a cluster."""
    text = SETTINGS.format(remote=laptop.remote)
    write(laptop.project, {"muster.toml": text, "setup.sh": "export OF_THE_PROLOGUE=yes\n"})
    return laptop


@pytest.mark.slow
def test_settings_of_a_cluster_are_those_of_muster_toml(hpc):
    checked = hpc.known("doctor", "--on", "hpc")  # its prologue is a file of the project
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (hpc.project / "t.py").write_text("import os; print(os.environ['OF_THE_PROLOGUE'])\n")
    run = hpc.known("run", "--on", "hpc", "--", "t.py")
    assert run.returncode == 0 and run.stdout.count("yes") == 2, run.stderr
    shown = hpc.known("config", "--on", "hpc")
    assert f"login: root@node0  ({HOME}/project/muster.toml:2)" in shown.stdout, shown.stderr
    direct = [sys.executable, str(CHECKOUT / "launch/submit.py"), "--on", "hpc", "--", "t.py"]
    assert "--on hpc is reached through root@node0" in hpc.call(*direct).stderr


@pytest.mark.slow
def test_functions_run_on_a_cluster_of_muster_toml(hpc):
    (hpc.project / "script.py").write_text(CALLS)
    done = hpc.call(sys.executable, "script.py")
    assert done.returncode == 0, done.stderr
    results, failed, later = (json.loads(line) for line in done.stdout.splitlines()[-3:])
    assert results == [[7, "0", "s3cret"], [7, "1", "s3cret"]]
    assert failed == ["rank 0", "ValueError('no')", True]
    assert later == [[1, 4, 9], "done", "TimeoutError"]
