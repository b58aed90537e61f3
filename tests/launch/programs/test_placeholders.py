"""Programs that get their rank from flags, as in courses, are started by one command."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from configs.settings.launch import ONE_WORKER
from launch.nodes.this_machine import free_port
from launch.programs.command_line import CommandLine
from launch.programs.user_program import parse_program
from launch.spec import LaunchSpec
from tests.launch.planned import FACTS, SPEC, local
from tests.launch.scripts import COS598D, CS744, RUN_GLUE
from tests.launch.submit import run_well


@pytest.mark.parametrize(
    ("workers", "nodes", "flags"),
    [
        pytest.param("torchrun", 2, COS598D, marks=pytest.mark.slow, id="cos598d"),
        pytest.param("manual", 2, CS744, id="cs744"),
    ],
)
def test_a_course_s_own_script_meets_itself(tmp_path, workers, nodes, flags):
    (tmp_path / "run_glue.py").write_text(RUN_GLUE.replace("PORT", str(free_port())))
    asked = ["--launcher", "local", "--nodes", str(nodes), "--workers", workers]
    words = ["run_glue.py", "--task_name", "{{rank}} $$ ${local_rank} {RTE}", *flags]
    run_well(*asked, "--", *words, cwd=tmp_path)
    outputs = sorted((tmp_path / "logs").glob("*/workers/*.out"))
    printed = [path.read_text() for path in outputs]
    total = sum(range(nodes))
    text = "{rank} $$ ${local_rank} {RTE}"
    assert printed == [f"{text} {rank} {total}\n" for rank in range(nodes)]
    (launch,) = (tmp_path / "logs").glob("*/launch.json")
    assert "{master_addr}" in json.loads(launch.read_text())["command"]


@pytest.mark.parametrize("style", ["torchrun", "manual", "accelerate", "preload"])
def test_every_starter_lets_the_workers_replace_them(style, tmp_path):
    nodes = tuple(replace(node, nproc=ONE_WORKER) for node in FACTS.nodes)
    facts = replace(FACTS, nodes=nodes)
    for words, is_asked in ((("train.py", "{rank}"), True), (("train.py", "{lr}"), False)):
        spec = replace(SPEC, workers=style, program=parse_program(words, tmp_path))
        assert LaunchSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
        for planned in local().plan(spec, facts):
            assert planned.argv[-2:] == words
            assert (planned.argv[-3] == "--fill-in") == is_asked


def test_a_command_in_front_replaces_nothing(tmp_path):
    program = replace(parse_program(["train.py", "{{rank}}"], tmp_path), wrap=("nice",))
    for planned in local().plan(replace(SPEC, workers="manual", program=program), FACTS):
        main = planned.argv[1]
        python = planned.argv[0]
        behind = ("--exec", "nice", python, main, "--fill-in", "train.py", "{{rank}}")
        assert planned.argv[2:] == behind


@pytest.mark.parametrize("style", ["torchrun", "accelerate"])
def test_torchrun_is_not_given_what_it_would_replace(style, tmp_path):
    nodes = tuple(replace(node, nproc=ONE_WORKER) for node in FACTS.nodes)
    spec = replace(
        SPEC, workers=style, program=parse_program(["a.py", "$$ ${local_rank}"], tmp_path)
    )
    for planned in local().plan(spec, replace(FACTS, nodes=nodes)):
        assert planned.argv[-1] == "$$$$ $${local_rank}"


def notes_of(folder: Path, capsys, *argv: str) -> list[str]:
    (folder / "main.py").touch()
    CommandLine.parse(["--run-id", "a", *argv]).program(folder).check("/of/the/nodes/python")
    return re.findall("^note: (.*)", capsys.readouterr().err, re.MULTILINE)


def test_misspelt_placeholder_is_noted_before_the_start(tmp_path, capsys):
    words = ["--", "main.py", "--ip", "{masteraddr}", '{"lr": 1}']
    (note,) = notes_of(tmp_path, capsys, *words)
    assert note == "{masteraddr} is not replaced; did you mean {master_addr}?"


def test_own_port_of_program_is_noted_only_with_torchrun(tmp_path, capsys):
    words = ["--", "main.py", *CS744]
    (note,) = notes_of(tmp_path, capsys, *words)
    assert "--workers manual" in note
    assert notes_of(tmp_path, capsys, "--workers", "manual", *words) == []
    assert notes_of(tmp_path, capsys, *words, "--port={master_port}") == []
