"""Start a run: `python launch/submit.py --nodes 4 --sync ddp`, here or on a cluster."""

if __name__ == "__main__":  # as a script, which has no module of ours on its path yet
    from pathlib import Path
    from runpy import run_path

    run_path(f"{Path(__file__).resolve().parents[1]}/muster/run_module.py")["start"](__file__)

import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from configs import console
from configs.settings.fields import add_new
from configs.settings.launch import ProgramConfig
from launch.deadlines import RESTART_ASKS_NODES_AGAIN_S
from launch.launchers.base import Launcher, checked_launcher
from launch.leading.leader import lead_or_submit, new_run
from launch.nodes.survey import ConnectionBroken
from launch.programs.command_line import TRAINER_SETTINGS, CommandLine, setting_names
from launch.runs import run_record
from launch.runs.watching.run_document import RunEvents, documented
from launch.spec import PLACEHOLDER, Facts, LaunchSpec
from muster import json_output
from muster.command import VALUES, own_arguments, this_command
from muster.errors import MusterError, UsageError, refuse
from muster.printable import listed, on_one_line


def main() -> int:
    try:
        return _run()
    finally:
        console.end_status()


def _run() -> int:
    line, problems = CommandLine.read(own_arguments(), prog=this_command())
    os.environ.pop(VALUES, None)  # the run has them; no other child process needs them
    launch = line.launch
    if launch.json:
        json_output.begin()
    launcher = checked_launcher(line, problems)
    add_new(problems, _problems(line))
    refuse(problems)
    assert launcher is not None  # otherwise there are problems
    if line.ssh.setup:
        launcher.set_up()
        print("ready on all nodes")
        return 0
    if line.trainer_note:
        print(line.trainer_note, file=sys.stderr, flush=True)
    if launch.dry_run:
        facts = launcher.assume()
        title, spec = new_run(line, launcher, facts, make=False)
        outlook = {"dry run": f"{_size(facts, launcher.name)}, {title}"}
        outlook |= _outlook(line, launcher, spec, facts)
        for name, text in () if line.run.quiet else outlook.items():
            print(on_one_line(f"{name + ':':11} {text}"), file=sys.stderr, flush=True)
        json_output.emit("plan", nodes=[asdict(node) for node in launcher.plan(spec, facts)])
        print(launcher.show(spec, facts))
        return 0
    if not (line.run.quiet or launch.json):
        console.start_status("checking the program and the nodes")
    try:
        facts = _ask(launcher, launch.max_restarts)
    except ConnectionBroken:
        _, spec = new_run(line, launcher, launcher.assume(), make=True)
        with run_record.ending(spec):
            raise
    title, spec = new_run(line, launcher, facts, make=True)
    if not line.run.quiet:
        begun = f"run {spec.run_id}: {_size(facts, launcher.name)}, {title} -> {spec.run_dir}"
        print(on_one_line(begun), flush=True)
    in_background = launch.detach and not launcher.submits  # a job continues on its own
    if in_background:
        console.end_status()  # before the fork
    if in_background and not run_record.go_on_in_background(spec):
        RunEvents(spec.run_dir).report(last=True)
        return 0
    follows = line.slurm.wait and not launch.detach
    is_documented = launch.json and not in_background
    with documented(spec.run_dir) if is_documented else nullcontext() as events:
        return lead_or_submit(launcher, spec, facts, follows=follows, events=events)


def _ask(launcher: Launcher, retries: int) -> Facts:
    """Ask the machines for their facts; problems are refused like wrong input.

    Raises:
        UsageError: the run could not start, or not as it should; every problem at once.
        ConnectionBroken: a connection broke, and did so again at each retry.
    """
    while True:
        try:
            return launcher.probe()
        except ConnectionBroken as error:
            if not retries:
                raise
            retries -= 1
            again = f"note: {'; '.join(error.problems)}; trying the nodes again"
            print(on_one_line(again), file=sys.stderr, flush=True)
            time.sleep(RESTART_ASKS_NODES_AGAIN_S)
        except MusterError as error:
            raise UsageError("\n".join(error.problems)) from None


def _problems(line: CommandLine) -> Iterator[str]:
    nodes = line.launch.nodes
    split = line.train.split if line.train else "even"
    is_range = nodes is not None and nodes.least < nodes.most
    if is_range and split not in ("even", "auto"):
        yield (
            f"--split {split} gives each worker a weight, but --nodes {nodes} is a range"
            "\ntip: use --split auto or --split even"
        )
    if line.ssh.setup:
        if line.launch.dry_run:
            yield "--setup does not work with --dry-run\ntip: leave out --dry-run"
        if line.words:
            yield f"--setup runs nothing\ntip: leave out -- {line.words[0]}"
        of_runs = (TRAINER_SETTINGS | setting_names(ProgramConfig)) - {"python"}
        yield from line.refused(of_runs, "has no effect with --setup\ntip: leave it out")


def _outlook(
    line: CommandLine, launcher: Launcher, spec: LaunchSpec, facts: Facts
) -> dict[str, str]:
    """The properties of the run, as far as they are known without asking a machine."""
    is_known = facts.master_addr != PLACEHOLDER
    network = facts.network or line.launch.network or (facts.master_addr if is_known else None)
    hosts = {"nodes": listed([node.spec.name for node in facts.nodes])}
    return {
        "start": f"--launcher {launcher.name}, --workers {spec.workers}",
        **(hosts if line.launch.hosts is not None else {}),
        "python": spec.program.python or facts.nodes[0].python,
        "network": network or "one that all nodes share",
        "run folder": str(spec.run_dir),
    }


def _size(facts: Facts, launcher: str) -> str:
    nodes = len(facts.nodes)
    counts = [node.nproc for node in facts.nodes]
    each = str(counts[0]) if len(set(counts)) == 1 else "+".join(map(str, counts))
    simulated = launcher == "local" and nodes > 1
    of_node = f"{'simulated ' if simulated else ''}{'node' if nodes == 1 else 'nodes'}"
    workers = "worker" if each == "1" else "workers"
    return f"{nodes} {of_node} x {each} {workers}{' on this machine' if simulated else ''}"
