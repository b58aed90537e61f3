"""Documented names in braces are replaced in each worker, and nothing else is."""

import json
import sys

import pytest
from hypothesis import strategies as st

from muster.worker import placeholders
from muster.worker.placeholders import VARIABLES, filled
from tests.commands import call
from tests.fuzzing import fuzzed
from tests.muster.worker.shims import WORKER_MAIN, ended, run

ENV = {variable: f"<{variable}>" for variable in VARIABLES.values()} | {"RANK": "2"}


def test_each_documented_name_has_its_variable():
    words = [f"--x={{{name}}}" for name in VARIABLES]
    values = [f"--x={ENV[variable]}" for variable in VARIABLES.values()]
    assert filled(["a.py", *words], ENV)[1:] == values
    assert filled(["a.py", "{rank}{rank}, {world_size}"], ENV)[1] == "22, <WORLD_SIZE>"


STAY = ['{"lr": 1}', '{{"a": 1}}', "{0..3}", "{}", "{{}}", "{lr}", "{rank", "rank}", "{RANK}"]
STAY += ["${rank}", "${{rank}}", "{rank:03d}", "{ rank }", "$$", "%d", "{cwd}", "{{", "\\{}"]


@pytest.mark.parametrize("text", STAY)
def test_other_braces_stay(text):
    assert filled(["a.py", text], ENV) == ["a.py", text]
    assert not placeholders.used(["a.py", text])


def test_doubled_braces_give_the_name_itself():
    written = ["{{rank}}", "a{{world_size}}b", '{"rank": {rank}}', "{{{rank}}}"]
    assert filled(["a.py", *written], ENV)[1:] == [
        "{rank}",
        "a{world_size}b",
        '{"rank": 2}',
        "{{rank}}",
    ]
    assert placeholders.used(["a.py", "{{rank}}"]) == {"rank"}


def test_the_programs_own_name_stays():
    assert filled(["{rank}.py", "{rank}"], ENV) == ["{rank}.py", "2"]
    assert filled(["-m", "{rank}", "{rank}"], ENV) == ["-m", "{rank}", "2"]
    assert filled(["--exec", "{rank}", "{rank}"], ENV) == ["--exec", "{rank}", "2"]


PIECES = st.sampled_from(["{", "}", "$", "{{", "}}", *VARIABLES, "{rank}", '"', "a", " ", "\n"])


@fuzzed(st.lists(PIECES).map("".join) | st.text())
def test_text_without_a_placeholder_is_unchanged(text):
    if not placeholders.used(["a.py", text]):
        assert filled(["a.py", text], ENV) == ["a.py", text]
    doubled = placeholders.PLACEHOLDER.sub(
        lambda place: place[0] if place[0].startswith("$") else f"{{{place[0]}}}", text
    )
    assert filled(["a.py", doubled], ENV) == ["a.py", text]


def test_single_worker_fills_placeholders_and_missing_variable_is_named():
    assert filled(["a.py", "{rank} of {world_size}"], {}) == ["a.py", "0 of 1"]
    with pytest.raises(SystemExit, match="MASTER_PORT"):
        filled(["a.py", "{master_port}"], {})


def test_a_name_that_is_nearly_one_is_noted():
    words = ["a.py", "{masteraddr}", "{RANK}", "{master_ip}", "{lr} {rank} {{ranks}} ${ranks} {}"]
    assert list(placeholders.notes(words)) == [
        "{masteraddr} is not replaced; did you mean {master_addr}?",
        "{RANK} is not replaced; did you mean {rank}?",
        "{master_ip} is not replaced; did you mean {master_addr}?",
    ]


SHOW = "import json, sys; print(json.dumps(sys.argv[1:]))"


@pytest.mark.parametrize(
    "words",
    [["show.py"], ["-m", "show"], ["--exec", sys.executable, "show.py"]],
    ids=["script", "module", "command"],
)
def test_a_worker_replaces_them_when_it_is_asked_to(tmp_path, words):
    (tmp_path / "show.py").write_text(SHOW)
    arguments = [*words, "--rank={rank}", "{{rank}} ${rank}"]
    done = run(tmp_path, "--fill-in", *arguments, RANK="3")
    assert json.loads(done.stdout) == ["--rank=3", "{rank} ${rank}"], done.stderr
    done = run(tmp_path, *arguments, RANK="3")
    assert json.loads(done.stdout) == ["--rank={rank}", "{{rank}} ${rank}"], done.stderr


def test_a_missing_variable_ends_the_worker_with_a_record(tmp_path):
    (tmp_path / "show.py").write_text(SHOW)
    done = run(tmp_path, "--fill-in", "show.py", "{nnodes}", RANK="0", MUSTER_RUN_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "GROUP_WORLD_SIZE" in ended(tmp_path)["message"]


def test_a_batch_script_replaces_them_without_a_worker(tmp_path):
    script = str(WORKER_MAIN.with_name("placeholders.py"))
    done = call(sys.executable, script, "echo", "{rank}", '{"a": 1}', env={"RANK": "3"})
    assert done.stdout == '3 {"a": 1}\n'
