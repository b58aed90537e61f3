"""What a command with `--login` makes of a program, before the login node is asked."""

import sys

import pytest

from launch.ssh.login_node import __main__ as login


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The name of a run of these words, and whether all of Muster is installed there for it."""

    def started(*program):
        given = {}
        monkeypatch.setattr(login, "install", lambda *_, whole, **__: given.update(whole=whole))
        monkeypatch.setattr(login, "_start", lambda name, *_: given.update(name=name))
        monkeypatch.chdir(tmp_path)
        words = ["run", "--login", "me@cluster", *program]
        monkeypatch.setattr(sys, "argv", ["muster", *words])
        login.main()
        return given["name"].split("-")[2:-1], given["whole"]

    return started


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
