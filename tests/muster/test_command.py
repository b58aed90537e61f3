"""What --env gives a variable is on no command line and in no file, and arrives as it was given."""

import sys

import pytest

from muster.checkout import CHECKOUT
from muster.command import hide, main, reveal, variable
from tests.commands import call

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
    assert hide(words) == (shown, values)
    assert reveal(shown, variable(values)) == words


def test_the_last_of_one_name_counts():
    shown, values = hide(["--env", "A=1", "--env", "A=2"])
    assert shown == ["--env", "A", "--env", "A"] and values == {"A": "2"}
    assert hide(["--env", "A=1", "--env", "A"]) == (["--env", "A", "--env", "A"], {})


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--help"], 0, "usage: muster jobs fetch"),
        (["my-run"], 2, "error: my-run was not started from here on a login node; name the node"),
        (["cut"], 2, "logins/cut is to say where cut is, but cannot be read; name its login node"),
    ],
)
def test_fetching_needs_a_login_node_and_its_help_none(tmp_path, words, code, text):
    (tmp_path / "muster" / "logins").mkdir(parents=True)
    (tmp_path / "muster" / "logins" / "cut").write_text("{")
    command = [sys.executable, "-c", "from muster.command import main; main()", "jobs", "fetch"]
    done = call(*command, *words, cwd=CHECKOUT, env={"XDG_STATE_HOME": str(tmp_path)})
    assert (done.returncode, text in done.stdout + done.stderr) == (code, True), done


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("runn", "error: unknown command 'runn'; did you mean muster run?\n"),
        ("jbos", "error: unknown command 'jbos'; did you mean muster jobs?\n"),
        ("version", "error: unknown command 'version'; did you mean muster --version?\n"),
        ("xyz", "error: unknown command 'xyz'; muster --help lists them"),
        ("a.py", "error: unknown command 'a.py'; to run it: muster run -- a.py\n"),
    ],
)
def test_an_unknown_command_names_the_one_that_was_meant(word, text, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["muster", word])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "") and printed.err.startswith(text)
