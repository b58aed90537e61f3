"""A value given with --env is on no command line and in no file, and arrives unchanged."""

import sys

import pytest

from launch.ssh.login_node import __main__ as login_node
from muster import command
from muster.checkout import CHECKOUT
from muster.command import LOGIN, logins, main, restore_env_values, split_env_values, variable
from muster.errors import UsageError
from muster.writing import write_json
from tests.commands import call
from tests.launch.run_folders import remembered

HOSTILE = "a b'c\"$(id)\n--env=X=1\n=;&\\"


@pytest.mark.parametrize(
    ("words", "shown", "values"),
    [
        (["--env", "A=1", "--nodes", "2"], ["--env", "A", "--nodes", "2"], {"A": "1"}),
        (["--env=A=1", "--env", "B="], ["--env=A", "--env", "B"], {"A": "1", "B": ""}),
        (["--env=A=x=y"], ["--env=A"], {"A": "x=y"}),
        (["--env", f"A={HOSTILE}"], ["--env", "A"], {"A": HOSTILE}),
        (["--env", "A", "--env-file", "f=1"], ["--env", "A", "--env-file", "f=1"], {}),
        (["--nodes=2", "--", "x", "--env", "A=1"], ["--nodes=2", "--", "x", "--env", "A=1"], {}),
        ([], [], {}),
        (["--env"], ["--env"], {}),
    ],
)
def test_values_are_hidden_and_come_back(words, shown, values):
    assert split_env_values(words) == (shown, values)
    assert restore_env_values(shown, variable(values)) == words


def test_the_last_of_one_name_counts():
    shown, values = split_env_values(["--env", "A=1", "--env", "A=2"])
    assert shown == ["--env", "A", "--env", "A"] and values == {"A": "2"}
    assert split_env_values(["--env", "A=1", "--env", "A"]) == (
        ["--env", "A", "--env", "A"],
        {},
    )


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--help"], 0, "usage: muster jobs fetch"),
        (
            ["my-run"],
            2,
            "error: my-run ",
        ),
        (
            ["cut"],
            2,
            "logins/cut",
        ),
    ],
)
def test_fetching_needs_a_login_node_and_its_help_none(tmp_path, words, code, text):
    (tmp_path / "muster" / "logins").mkdir(parents=True)
    (tmp_path / "muster" / "logins" / "cut").write_text("{")
    command = [sys.executable, "-c", "from muster.command import main; main()", "jobs", "fetch"]
    done = call(*command, *words, cwd=CHECKOUT, env={"XDG_STATE_HOME": str(tmp_path)})
    assert (done.returncode, text in done.stdout + done.stderr) == (code, True), done


RECORD = {**dict.fromkeys(LOGIN), "login": "me@hpc", "login_config": "/ssh config"}
RECORD |= {"session": "/home/me/.muster/sessions/exp1-0", "seen": [0, 0], "detached": True}
LOGIN_NODE = "launch.ssh.login_node"


@pytest.fixture
def laptop(tmp_path, monkeypatch):
    """Prepare a laptop that has started a run `exp1` on a login node."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write_json(logins() / "exp1", RECORD)
    return tmp_path


@pytest.fixture
def script_of(monkeypatch):
    """Return a function that gives the script or login-node module that a command becomes."""

    def become(script, *words, typed=""):
        raise SystemExit(words[0] if words[:1] == (LOGIN_NODE,) else script)

    def script_of(*words):
        monkeypatch.setattr(command, "become", become)
        monkeypatch.setattr(sys, "argv", ["muster", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return script_of


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["run", "--run-id", "exp1", "--overwrite", "--", "t.py"], "launch/submit.py"),
        (["run", "--partition", "exp1"], "launch/submit.py"),
        (["sweep", "--name", "exp1"], "launch/sweep.py"),
        (["study", "exp1"], "launch/study.py"),
        (["doctor", "exp1"], "launch/doctor.py"),
        (["run", "--login", "me@hpc", "--run-id", "exp1"], LOGIN_NODE),
        (["sweep", "--on=hpc"], LOGIN_NODE),
        (["jobs", "cancel", "exp1"], LOGIN_NODE),
        (["report", "exp1"], LOGIN_NODE),
        (["jobs", "cancel", "logs/exp1"], "launch/jobs.py"),
        (["jobs", "status", "x" * 5_000], "launch/jobs.py"),
        (["jobs", "status", "x" * 300, ".", "..", ""], "launch/jobs.py"),
        (["sweep", "--over", f"seed={'1,' * 3_000}1"], "launch/sweep.py"),
    ],
)
def test_new_run_is_sent_to_login_node_only_by_flag(laptop, script_of, words, script):
    assert script_of(*words) == script


@pytest.mark.parametrize("verb", ["cancel", "fetch"])
def test_name_of_a_run_here_and_on_login_node_is_refused(laptop, verb, monkeypatch):
    of_login_node = laptop / "home" / ".muster" / "projects" / "p" / "logs" / "exp1"
    remembered(of_login_node)  # a folder that this machine also sees
    write_json(logins() / "exp1", {**RECORD, "session": f"{laptop}/home/.muster/sessions/exp1-0"})
    assert login_node._recorded_run([verb, "exp1"])["login"] == "me@hpc"
    run_dir = remembered(laptop / "logs" / "exp1")
    monkeypatch.setattr(sys, "argv", ["muster", "jobs", verb, "exp1"])
    with pytest.raises(UsageError) as refused:
        login_node.main()
    assert f" {run_dir}; " in str(refused.value)
    assert str(refused.value).endswith("--login=me@hpc '--login-config=/ssh config'")
