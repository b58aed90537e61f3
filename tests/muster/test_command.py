"""What --env gives a variable is on no command line and in no file, and arrives as it was given."""

import pytest

from muster.command import hide, reveal, variable

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
