"""A user's program's variables: the syntax of an `.env` file, and which variables are refused."""

import pytest

from configs.settings.launch import (
    TORCHRUN_VARIABLES,
    ProgramConfig,
    Variable,
    without_settings_of_torchrun,
)
from muster.errors import UsageError

FILE = r"""# what a program needs
PLAIN=two words   # and a comment
export EXPORTED="with # and \"quotes\""
SECRET=p#ss$HOME${PLAIN}'"
SINGLE='$HOME \n "as it is"'
EMPTY=
LINES="one
two"
LAST=$LAST
"""


def test_env_file_follows_usual_syntax_and_expands_no_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("LAST", "not this")
    path = tmp_path / ".env"
    path.write_text(FILE)
    assert ProgramConfig(env_file=path).variables({}) == {
        "PLAIN": "two words",
        "EXPORTED": 'with # and "quotes"',
        "SECRET": "p#ss$HOME${PLAIN}'\"",
        "SINGLE": '$HOME \\n "as it is"',
        "EMPTY": "",
        "LINES": "one\ntwo",
        "LAST": "$LAST",
    }


def test_all_wrong_lines_of_an_env_file_are_named(tmp_path):
    path = tmp_path / ".env"
    path.write_text('A=1\n\n\n# c\nnothing\n1X=3\n\n=4\nOPEN="is never closed\n')
    with pytest.raises(UsageError) as refused:
        ProgramConfig(env_file=path).variables({})
    lines = [f"{path}:{number}: expected NAME=VALUE" for number in (5, 6, 8, 9)]
    assert str(refused.value).splitlines() == lines


def test_a_variable_of_the_command_line_wins(tmp_path):
    path = tmp_path / ".env"
    path.write_text("A=file\nB=file\n")
    config = ProgramConfig(env=(Variable("A", "given"), Variable("C")), env_file=path)
    assert config.variables({"C": "here"}) == {"A": "given", "B": "file", "C": "here"}


@pytest.mark.parametrize("name", ["RANK", "MASTER_ADDR", "PET_RDZV_BACKEND", "TORCHELASTIC_RUN_ID"])
def test_variable_that_the_launcher_sets_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match=f"--env {name}: .*; leave it out"):
        ProgramConfig(env=(Variable(name, "1"),))
    path = tmp_path / "variables"
    path.write_text(f"A=1\n{name}=1\n")
    with pytest.raises(UsageError, match=f"variables: {name}: .*; leave it out"):
        ProgramConfig(env_file=path).variables({})


def test_settings_of_torchrun_are_those_of_the_installed_one():
    flags = pytest.importorskip("torch.distributed.run").get_args_parser()._actions
    own = {f"PET_{flag.dest.upper()}" for flag in flags if type(flag).__name__ in ENV_FLAGS}
    assert own and own <= TORCHRUN_VARIABLES


ENV_FLAGS = ("env", "check_env")  # of torch.distributed.argparse_util


def test_a_user_s_own_variables_are_no_settings_of_torchrun():
    own = {"PET_DATA": "/data/pets", "PET": "cat"}
    theirs = {"PET_NNODES": "2", "TORCHELASTIC_RUN_ID": "x", "RANK": "0", "MASTER_ADDR": "a"}
    assert without_settings_of_torchrun({**own, **theirs}) == own
