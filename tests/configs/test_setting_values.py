"""Settings with their own syntax are parsed once, and written back as they were read."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from configs import cli
from configs.raw import read_file
from configs.settings.launch import (
    LaunchConfig,
    NodeCount,
    PortRange,
    ProgramConfig,
    Sending,
    Variable,
    WorkersPerNode,
)
from configs.settings.remote import SbatchOption, SlurmConfig
from muster.errors import UsageError
from tests.configs.made import make_config

COUNTS = st.integers(-(10**30), 10**30)
PORTS = st.integers(0, 99_999)
# As in program arguments: any character but NUL, and any byte, which Python reads as a surrogate.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.text(
    st.sampled_from("= ,:'\"#{}\t\r\n\x1b\x85\u2028\udc80\udcff\ud7ff\U0001f600")
)
LINE = TEXT.filter(lambda text: text and "\n" not in text)
NAME = TEXT.filter(lambda text: text and "=" not in text)
OPTION = LINE.filter(lambda text: "=" not in text and "_" not in text and text[0] != "-")
VALUES = {
    NodeCount: st.builds(NodeCount, COUNTS, COUNTS),
    WorkersPerNode: st.builds(WorkersPerNode, st.none() | COUNTS),
    PortRange: st.builds(PortRange, PORTS, PORTS),
    Sending: st.builds(Sending, TEXT.filter(lambda text: ":" not in text), st.none() | TEXT),
    Variable: st.builds(Variable, NAME, st.none() | TEXT),
    SbatchOption: st.builds(SbatchOption, OPTION, st.none() | TEXT),
}
ANY_VALUE = st.one_of(*VALUES.values())


@given(ANY_VALUE)
def test_a_value_is_read_as_it_was_written(value):
    assert type(value).parse(str(value)) == value


@given(st.text(), st.sampled_from(sorted(VALUES, key=str)))
@example("_", SbatchOption)
def test_any_text_is_one_value_or_has_another_form(text, kind):
    try:
        value = kind.parse(text)
    except ValueError:
        return
    assert kind.parse(str(value)) == value


RIGHT_COUNT = st.integers(1, 4096)
LAUNCH = st.fixed_dictionaries(
    {},
    optional={
        "nodes": st.tuples(RIGHT_COUNT, RIGHT_COUNT).map(lambda pair: NodeCount(*sorted(pair))),
        "port_range": st.integers(1024, 65_534).map(lambda port: PortRange(port, port + 1)),
        "send": st.builds(
            Sending, st.text("a/ '.", min_size=1), st.none() | st.text("$a: ").map("/{}".format)
        ),
    },
).map(lambda chosen: LaunchConfig(**chosen))
UNEVEN = st.lists(st.builds(WorkersPerNode, st.none() | st.integers(1)), min_size=1, max_size=4)
WORKERS = UNEVEN.map(lambda workers: LaunchConfig(nproc_per_node=tuple(workers)))
PLAIN = st.text(st.characters(exclude_characters="\x7f", exclude_categories=["Cc", "Cs"]))
OPTIONS = st.lists(st.builds(SbatchOption, st.sampled_from(["comment", "licenses", "x-y"]), PLAIN))
SLURM = OPTIONS.map(lambda options: SlurmConfig(slurm=tuple(options)))
INCLUDE = st.lists(LINE).map(lambda patterns: ProgramConfig(include=tuple(patterns)))
IMAGE = st.lists(st.from_regex("/[a '\"]*(:/[a =]*)?", fullmatch=True)).map(
    lambda mounts: ProgramConfig(container="x.sif", container_mounts=tuple(mounts))
)
VARIABLES = st.lists(st.builds(Variable, st.sampled_from("AB_"), st.none() | TEXT))
ENV = VARIABLES.map(lambda variables: ProgramConfig(env=tuple(variables)))


@settings(max_examples=50, deadline=None)
@given(LAUNCH | WORKERS | SLURM | INCLUDE | IMAGE)
@example(ProgramConfig(include=("\x85", "a\u2028b")))
def test_settings_written_to_a_file_are_read_again(tmp_path_factory, config):
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    path.write_text(cli.to_yaml(config), encoding="utf-8")
    read_file.cache_clear()
    assert cli.parse([type(config)], ["--config", str(path)], prog="", description="") == (config,)


@settings(max_examples=50, deadline=None)
@given(LAUNCH | WORKERS | SLURM | INCLUDE | IMAGE | ENV)
def test_flags_say_the_same_one_by_one_and_at_once(config):
    base = type(config)()
    repeated = {"container_mounts", "env", "include", "slurm"} & vars(config).keys()
    words = [cli.word(name, value) for name in repeated for value in getattr(config, name)]
    others = {name: value for name, value in vars(config).items() if name not in repeated}
    words += [cli.word(name, value) for name, value in others.items() if value is not None]
    assert cli.parse([type(config)], words, prog="", description="") == (config,)
    if not isinstance(config, ProgramConfig) or not config.env:
        words = cli.changed(config, base)
        assert cli.parse([type(config)], words, prog="", description="") == (config,)


OLDER = """nodes: '2'
nproc_per_node: 2,gpu
port_range: 20000:20100
slurm: 'mail_type=END

  --hold'
include: ''
"""


def test_settings_of_a_run_of_an_older_version_are_read(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(OLDER)
    classes = [LaunchConfig, SlurmConfig, ProgramConfig]
    launch, slurm, own = cli.parse(classes, ["--config", str(path)], prog="", description="")
    assert (launch.least_nodes, launch.most_nodes) == (2, 2)
    assert launch.nproc_per_node == (WorkersPerNode(2), WorkersPerNode(None))
    assert launch.port_range == (20_000, 20_100)
    assert slurm.slurm == (SbatchOption("mail-type", "END"), SbatchOption("hold"))
    assert own == ProgramConfig()


COUNT = "expected a number, gpu, or a list such as 2,1"
RANGE = "expected FIRST:LAST, at least two ports between 1024 and 65535, such as 20000:20100"


@pytest.mark.parametrize(("name", "text", "why"), [
    ("nodes", "four", ": expected N or MIN:MAX, got 'four'"),
    ("send", ":/place", " ':/place': expected DIR, or DIR:PLACE"),
    ("send", "data:place", " data:place: PLACE must begin with /, ~ or a variable such as $TMPDIR"),
    ("nodes", "1_0", ": expected N or MIN:MAX, got '1_0'"),
    ("nproc_per_node", "x", f" 'x': {COUNT}"),
    ("nproc_per_node", "2,,1", f" '2,,1': {COUNT}"),
    ("nproc_per_node", "9" * 5000, f" '{'9' * 5000}': {COUNT}"),
    ("port_range", "20000", f" '20000': {RANGE}"),
    ("port_range", "20100:20000", f" '20100:20000': {RANGE}"),
], ids=lambda text: text[:20])  # fmt: skip
def test_another_form_is_refused_with_the_right_one(name, text, why):
    with pytest.raises(UsageError) as refused:
        make_config(LaunchConfig, **{name: text})
    assert str(refused.value) == f"--{cli.dashed(name)}{why}"


def test_a_number_of_400_digits_is_refused_as_any_other():
    with pytest.raises(UsageError, match=r"--nodes .*4096"):
        make_config(LaunchConfig, nodes="9" * 400)
    assert make_config(LaunchConfig, max_restarts="9" * 400).max_restarts == int("9" * 400)


def test_another_form_in_a_file_is_named_with_its_line(tmp_path):
    path = Path(tmp_path / "mine.yaml")
    path.write_text("launcher: local\nnproc_per_node: two\n")
    with pytest.raises(UsageError) as refused:
        make_config(LaunchConfig, config=path)
    assert str(refused.value) == f"{path}:2: nproc_per_node 'two': {COUNT}"


def test_a_value_of_a_variable_is_not_shown_with_the_settings():
    assert "secret" not in repr(ProgramConfig(env=(Variable("TOKEN", "secret"),)))
