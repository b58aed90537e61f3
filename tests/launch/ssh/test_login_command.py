"""How a command with `--login` reads its words, before the login node is contacted."""

import sys

import pytest

from launch.ssh.login_node import __main__ as login


@pytest.fixture
def started(monkeypatch, tmp_path):
    """A function that returns the name of a run, and whether all of Muster is installed for it."""

    def started(*program):
        given = {}
        monkeypatch.setattr(login, "install", lambda *_, whole, **__: given.update(whole=whole))
        monkeypatch.setattr(login, "_start", lambda command, *_: given.update(name=command.name))
        monkeypatch.chdir(tmp_path)
        words = ["run", "--login", "me@cluster", *program]
        monkeypatch.setattr(sys, "argv", ["muster", *words])
        login.main()
        return given["name"].split("-")[2:-1], given["whole"]

    return started


@pytest.mark.needs("ssh")
@pytest.mark.parametrize(
    ("program", "name", "whole"),
    [
        ([], ["train"], True),
        (["--", "t.py"], ["t"], True),
        (["--", "python", "-u", "t.py"], ["t"], True),
        (["--", "/env/bin/python", "t.py"], ["t"], False),  # has its own torch
        (["--", "-m", "a.b"], ["a.b"], True),
    ],
)
def test_a_python_in_front_of_the_script_is_its_python(started, program, name, whole):
    assert started(*program) == (name, whole)


@pytest.mark.parametrize("words", [["--run-id", "a"], ["--run-id=a"], ["--run_id=a"]])
def test_given_run_id_names_run_on_both_sides(words):
    command = login.read("run", [*words, "--no-wait", "--", "t.py"])
    assert (command.name, command.words_there()) == ("a", [*words, "--no-wait", "--", "t.py"])


@pytest.mark.parametrize(
    ("words", "waits", "is_detached"),
    [
        ([], True, False),
        (["--detach"], False, True),
        (["--detach=no"], True, False),
        (["--no_wait"], False, False),
        (["--wait=no"], False, False),
    ],
)
def test_a_run_is_waited_for_unless_the_user_says_otherwise(words, waits, is_detached):
    command = login.read("run", words)
    assert (command.words_there()[-1:] == ["--wait"], command.is_detached) == (waits, is_detached)


def test_pickled_function_is_named_by_its_remote_path():
    command = login.read("run", ["--run-id=a", "--no-wait", "--", "--function", "/here/call"])
    assert str(command.calls) == "/here/call"
    assert command.words_there("/there")[-3:] == ["--", "--function", "/there"]
    command = login.read("sweep", ["--name", "m", "--cells=/here/call/cells.json"])
    assert (command.name, str(command.calls)) == ("m", "/here/call")
    assert command.words_there("/there")[-1] == "--cells=/there/cells.json"


def test_login_settings_are_not_passed_on_but_cluster_is(tmp_path, monkeypatch):
    (tmp_path / "muster.toml").write_text('[clusters.hpc]\nlogin = "me@hpc"\npython = "p"\n')
    monkeypatch.chdir(tmp_path)
    command = login.read("doctor", ["--login-dir", "/x", "--on", "hpc", "--quick"])
    assert command.login == {"login": "me@hpc", "login_dir": "/x"}
    assert command.words_there() == ["--quick", "--on", "hpc"]
    assert login.read("jobs", ["list", "--on", "hpc"]).words_there() == ["list"]
