"""Find problems with the nodes before a run does: `python launch/doctor.py --hosts FILE`."""

if __name__ == "__main__":  # as a script, which has no module of ours on its path yet
    from pathlib import Path
    from runpy import run_path

    run_path(f"{Path(__file__).resolve().parents[1]}/muster/run_module.py")["start"](__file__)

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from configs import cli, console
from configs.settings.fields import add_new, setting
from configs.settings.launch import LaunchConfig, RunConfig
from configs.settings.remote import Settings, SlurmConfig, SshConfig
from configs.settings.train import MEASUREMENT_SETTINGS, TrainConfig
from launch.checks import bandwidth
from launch.checks.findings import Row, lines
from launch.launchers.base import Launcher, checked_launcher
from launch.leading.leader import lead_or_submit
from launch.programs import trainer_python
from launch.programs.command_line import (
    CLASSES,
    CommandLine,
    setting_names,
    split_program,
    training,
)
from launch.programs.python_command import without_python
from launch.programs.user_program import UserProgram
from launch.runs import run_record
from launch.spec import Facts, LaunchSpec, Program
from muster import json_output
from muster.command import own_arguments, restore_env_values, this_command
from muster.errors import UsageError, refuse
from muster.printable import printable
from muster.run_files import NETWORK


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """How much of the nodes is checked."""

    quick: bool = setting(False, "check nodes and their connections, but measure nothing")


MODULE = "train.check_network"
COLOURS = {"ok": "green", "warn": "yellow", "FAIL": "bold red"}
# The settings for checking nodes, and those for the measurement.
CHECK_SETTINGS = (
    setting_names(SshConfig, SlurmConfig)
    | MEASUREMENT_SETTINGS
    | set("launcher nodes nproc_per_node workers hosts network port_range".split())
    | {"data_dir", "json", "on", "python"}
)
# --help leaves out the settings that are seldom needed for a check.
SHOWN_SETTINGS = (CHECK_SETTINGS | setting_names(DoctorConfig)) - {
    *"overwrite run_id timeout_s join_timeout_s quiet setup wait slurm time".split()
}
ABOUT = (
    "Check the nodes of a run before it starts: whether they answer and can reach each other on a "
    "network that all share; their Python, torch, code and GPUs; free disk space; clocks. Then "
    "measure that network. Give the same flags and program as for the run: those that only the run "
    "uses are accepted and listed. The exit code is 0 if no check fails."
)
PIPE_WIDTH = 120  # wide enough for most lines
SLURM_TIME = "10"  # for the measuring job; more than it needs on a slow network


def main() -> int:
    flags, typed = split_program(restore_env_values(own_arguments(), os.environ))
    classes = (*CLASSES, DoctorConfig)
    example = "muster doctor --hosts hosts.txt -- train.py"
    parsed = cli.parsed(
        classes,
        flags,
        prog=this_command(),
        description=ABOUT,
        first=SHOWN_SETTINGS,
        example=example,
    )
    settings, problems = parsed.instances(
        [training(parsed) if cls is TrainConfig else cls for cls in classes]
    )
    launch, ssh, slurm, run, own, train, bench, doctor = settings
    if launch.json:
        json_output.begin()
    checked = replace(launch, master_port=None)  # that port may be in use by a run
    words, python, of_python = without_python(typed, own.python) if typed else ([], own.python, [])
    own = replace(own, python=python)
    add_new(problems, of_python)
    # even with a program, Muster's own workers measure the network
    taken = {"quick"} | (MEASUREMENT_SETTINGS - setting_names(RunConfig) if words else set())
    others = {name: item for name, item in parsed.origin.items() if name not in taken or item.where}
    line = CommandLine(
        checked,
        ssh,
        slurm,
        words,
        replace(parsed, origin=others),
        run,
        own=own,
        train=train,
        bench=bench,
    )
    if launch.dry_run or launch.detach:
        problems.append(
            "muster doctor always asks the nodes and waits\ntip: leave out --dry-run and --detach"
        )
    add_new(problems, line.misplaced())
    as_asked = checked_launcher(line, problems, with_program=False)
    refuse(problems)
    assert as_asked is not None  # otherwise there are problems
    name, build = as_asked.name, type(as_asked)
    unused = setting_names(*CLASSES) - CHECK_SETTINGS
    if unchecked := [flag.spelt for flag in line.parsed.flags if flag.name in unused]:
        print(f"not checked, since only the run uses them: {', '.join(unchecked)}")
    measuring = replace(checked, launcher=name)
    slurm = replace(slurm, time=slurm.time or SLURM_TIME, wait=True)
    launcher: Launcher = build(Settings(measuring, ssh, slurm))
    launcher.checks_nodes = False  # not again before it measures: `check_nodes` does it here
    facts = launcher.assume()
    program = UserProgram(words, own, launch, line.run, Path.cwd()) if words else None
    if program and as_asked.sees_python:  # then the workers have the Python that is chosen here
        as_asked = build(replace(line, own=replace(own, python=program.python)))
    rows = as_asked.check_nodes(facts, _disks(train))
    if program:
        rows.append(_check_program(program, as_asked, facts))
    _show(rows)
    code = 0
    measured: dict[str, Any] | None = None
    if count := len(lines(rows, "FAIL")):
        print(f"{count} {'check' if count == 1 else 'checks'} failed; nothing was measured")
        code = 1
    elif not doctor.quick:
        code, measured = _measure(launcher, name, launch, train, line.python)
    if not code:
        print(_conclusion(rows, measured))
    checks = [asdict(row) for row in rows]
    json_output.emit("checks", exit_code=code, checks=checks, network=measured)
    return code


def _check_program(program: UserProgram, launcher: Launcher, facts: Facts) -> Row:
    """Whether the program can start with its Python, as far as this machine can tell."""
    python = facts.nodes[0].python
    try:
        program.check(python, runs_here=launcher.name == "local")
    except UsageError as error:
        return Row("program", "FAIL", tuple(str(error).splitlines()))
    found = f", with {program.python or python}" if launcher.sees_python else ""
    return Row("program", "ok", (program.title + found,))


def _conclusion(rows: Sequence[Row], measured: dict[str, Any] | None) -> str:
    """The last line, if no check fails."""
    warnings = len(lines(rows, "warn"))
    count = f"{len(rows)} node checks"
    network = ", and the network" if measured else ""
    if not warnings:
        return f"all ok: {count}{network}"
    return f"no failure, but {warnings} of {count} gave warnings"


def _disks(train: TrainConfig) -> dict[str, Path]:
    """The folders that a run writes to and reads from, by their content."""
    disks = {"run folder": train.logs_root.absolute()}
    return {**disks, "data": train.data_dir.absolute()} if train.data_dir else disks


def _measure(
    launcher: Launcher, name: str, launch: LaunchConfig, train: TrainConfig, python: str | None
) -> tuple[int, dict[str, Any] | None]:
    """Measure in a process group of real workers, started by the launcher that runs use."""
    facts = launcher.probe()
    if facts.world_size == 1:
        print("one worker: no network to measure; for more, use --nodes or --nproc-per-node")
        return 0, None
    measuring = python or facts.nodes[0].python
    # over ssh, nodes may have their own files; then they themselves report what is missing
    is_seen = launch.hosts is None or (python is None and facts.shared)
    if is_seen and (lacks := [*trainer_python.problems(measuring, ())]):
        hint = "choose another Python with --python, or measure nothing with --quick"
        print(f"not measured: {lacks[0]}; {hint}", file=sys.stderr)
        return 1, None
    spec = _spec(launch, train, facts, python)
    run_record.record_launch(spec, launcher.plan(spec, facts), name, cli.to_yaml(train))
    if code := lead_or_submit(launcher, spec, facts, follows=True):
        return code, None
    result = NETWORK.path(spec.run_dir)
    measured = json.loads(result.read_text(encoding="utf-8"))
    node_names = bandwidth.names(measured, run_record.nodes_of_ranks(spec.run_dir))
    for title, table in bandwidth.tables(measured, node_names):
        console.show(title, table, pipe_width=PIPE_WIDTH)
    verdict, problems = bandwidth.verdict(measured, node_names)
    print(printable("\n".join([verdict, *problems, f"all measurements: {result}"])))
    return int(bool(problems)), {**measured, "verdict": verdict, "problems": problems}


def _spec(launch: LaunchConfig, train: TrainConfig, facts: Facts, python: str | None) -> LaunchSpec:
    train = run_record.with_folder(train, "doctor", facts.size, make=True)
    logs = train.logs_root.absolute() if facts.shared else None
    on_nodes = replace(train, logs_dir=logs, redirect=True, overwrite=False)
    program = replace(Program.module(MODULE, *cli.to_argv(on_nodes)), python=python)
    spec = LaunchSpec.from_settings(program, train, launch)
    # restarts and data to send are for the run itself
    return replace(spec, env={}, quiet=True, max_restarts=0, send=None)


def _show(rows: Sequence[Row]) -> None:
    """Print a row for each check."""
    table = Table("check", "", "found", "what to do", box=box.SIMPLE, pad_edge=False)
    for row in rows:
        table.add_row(
            printable(row.check),
            Text(row.verdict, style=COLOURS[row.verdict]),
            printable("\n".join(row.found)),
            printable(row.fix),
        )
    console.show(table, pipe_width=PIPE_WIDTH)
