"""Start a run: `python launch/submit.py --nodes 4 --sync ddp`, here or on a cluster."""

import sys
from collections.abc import Iterator
from pathlib import Path

# A script's own folder comes first on the path, and a file in it could hide a library: the
# repository takes its place.
sys.path[: not sys.flags.safe_path] = [str(Path(__file__).resolve().parent.parent)]

from configs import activation

activation.end_at_ctrl_c()

try:
    from configs import cli, plugins
except ModuleNotFoundError as missing:
    activation.explain(missing)

from configs.settings.bench import BenchConfig
from configs.settings.launch import LaunchConfig, Settings, SlurmConfig, SshConfig
from configs.settings.program import ProgramConfig
from configs.settings.train import TrainConfig
from launch.launchers.base import Launcher, chosen
from launch.leading import lead
from launch.programs import user_program
from launch.programs.own_program import OwnProgram
from launch.programs.user_program import UserProgram
from launch.runs import run_record
from launch.spec import Facts
from muster.errors import MusterError, UsageError, refuse


def main() -> int:
    argv, words = user_program.split(sys.argv[1:])
    launch, own, ssh, slurm, train, bench = cli.parse(
        [LaunchConfig, ProgramConfig, SshConfig, SlurmConfig, TrainConfig, BenchConfig],
        argv,
        prog="python launch/submit.py",
        description="Start the workers of a run, on this machine or on a cluster. Any program runs "
        "as one: python launch/submit.py [--flag VALUE ...] -- train.py --lr 1e-3",
    )
    name = chosen(launch)
    launcher: Launcher = plugins.load("launch.launchers", name)(Settings(launch, ssh, slurm))
    refuse([*_problems(launch, train), *launcher.problems()])
    if ssh.setup:
        return _set_up(launcher)
    program: OwnProgram | UserProgram = OwnProgram(launch, train, bench)
    if words:
        program = UserProgram(words, own, launch, train, Path.cwd())
    if launch.dry_run:
        facts = launcher.assume()
        print(launcher.show(program.spec(facts, make=False), facts))
        return 0
    facts = _ask(launcher)
    spec = program.spec(facts, make=True, snapshot=launcher.takes_snapshot)
    plan = launcher.plan(spec, facts)
    run_record.write_down(spec, plan, name, program.settings(launch, ssh, slurm))
    if not train.quiet:
        print(f"run {spec.run_id}: {_size(facts)}, {program.title} -> {spec.run_dir}")
        sys.stdout.flush()
    if launch.detach and not run_record.go_on_in_background(spec):
        return 0
    return lead(launcher, spec, facts)


def _ask(launcher: Launcher) -> Facts:
    """What the machines say; whatever stands against a run is refused as wrong input is.

    Raises:
        UsageError: the run could not start, or not as it should; every problem at once.
    """
    try:
        return launcher.probe()
    except MusterError as error:
        raise UsageError(str(error)) from None


def _problems(launch: LaunchConfig, train: TrainConfig) -> Iterator[str]:
    nodes = launch.nodes or 1
    if launch.least_nodes < nodes and train.split_weights() is not None:
        yield f"--split {train.split} is for so many workers; with --nodes {nodes} use auto or even"


def _set_up(launcher: Launcher) -> int:
    """Make the environment where that is for this side to do."""
    launcher.set_up(lambda line: print(line, flush=True))
    print("ready on all nodes")
    return 0


def _size(facts: Facts) -> str:
    nodes, counts = len(facts.nodes), [node.nproc for node in facts.nodes]
    each = str(counts[0]) if len(set(counts)) == 1 else "+".join(map(str, counts))
    return f"{nodes} {'node' if nodes == 1 else 'nodes'} x {each} " + (
        "worker" if each == "1" else "workers"
    )


if __name__ == "__main__":
    cli.run(main)
