"""Start a run: `python launch/submit.py --nodes 4 --sync ddp`, here or on a cluster."""

import sys
from collections.abc import Iterator
from pathlib import Path

# A script's own folder comes first on the path, and a file in it could hide a library: the
# repository takes its place.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

try:
    from configs import cli, plugins
except ModuleNotFoundError as missing:
    from configs import activation

    activation.explain(missing)

import shutil
from dataclasses import replace

from configs.run_folder import claim, claim_new, new_run_id
from configs.settings.bench import BenchConfig
from configs.settings.launch import LaunchConfig, Settings, SlurmConfig, SshConfig
from configs.settings.train import TrainConfig
from launch import programs
from launch.launchers.base import Launcher, chosen
from launch.leading import lead
from launch.runs import run_record
from launch.spec import Facts, LaunchSpec
from muster.errors import MusterError, UsageError, refuse


def main() -> int:
    launch, ssh, slurm, train, bench = cli.parse(
        [LaunchConfig, SshConfig, SlurmConfig, TrainConfig, BenchConfig],
        sys.argv[1:],
        prog="python launch/submit.py",
        description="Start the workers of a run, on this machine or on a cluster.",
    )
    name = chosen(launch)
    launcher: Launcher = plugins.load("launch.launchers", name)(Settings(launch, ssh, slurm))
    refuse([*_problems(launch, train), *launcher.problems()])
    if ssh.setup:
        return _set_up(launcher)
    if launch.dry_run:
        return _show(launcher, train, launch, bench)
    facts = _ask(launcher)
    if facts.world_size is not None:
        refuse(train.world_problems(facts.world_size))
    train = _named(_from_here(train), facts.size, launch.measures, make=True)
    spec = _spec(train, launch, bench, facts)
    plan = launcher.plan(spec, facts)
    run_record.write_down(spec, plan, name, cli.to_yaml(train, launch, ssh, slurm, bench))
    if not train.quiet:
        what = launch.measures or f"{train.task}, {train.sync}"
        print(f"run {spec.run_id}: {_size(facts)}, {what} -> {spec.run_dir}")
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


def _show(launcher: Launcher, train: TrainConfig, launch: LaunchConfig, bench: BenchConfig) -> int:
    """The dry run: nothing is asked, made or started."""
    facts = launcher.assume()
    if facts.world_size is not None:
        refuse(train.world_problems(facts.world_size))
    train = _named(_from_here(train), facts.size, launch.measures, make=False)
    spec = _spec(train, launch, bench, facts)
    print(launcher.show(spec, facts))
    return 0


def _from_here(train: TrainConfig) -> TrainConfig:
    """The settings with paths that hold in any folder."""
    return replace(
        train,
        data_dir=train.data_dir and train.data_dir.absolute(),
        cache_dir=train.cache_dir and train.cache_dir.absolute(),
        logs_dir=train.logs_dir and train.logs_dir.absolute(),
        checkpoint_dir=train.checkpoint_dir and train.checkpoint_dir.absolute(),
        resume=_absolute_if_path(train.resume),
        model=_absolute_if_path(train.model),
        tokenizer=_absolute_if_path(train.tokenizer),
    )


def _absolute_if_path(name: str | None) -> str | None:
    """What is a file or a folder if there is one of that name, else a name of another kind."""
    return str(Path(name).absolute()) if name and Path(name).exists() else name


def _named(train: TrainConfig, size: str, what: str, *, make: bool) -> TrainConfig:
    """The settings with the run's id; with `make`, its folder is this run's from here on."""
    if train.run_id is None:
        return replace(train, run_id=(claim_new if make else new_run_id)(train, size, what))
    if make:
        claim(train.logs_root / train.run_id, train)
    return train


def _there(train: TrainConfig, facts: Facts) -> TrainConfig:
    """The settings as nodes need them that do not see this machine's files.

    What lies in the checkout lies in theirs, too; workers start there, so that it is named from
    there. Other paths are taken to be the nodes' own.
    """
    if facts.shared:
        return train
    return replace(
        train,
        data_dir=train.data_dir and Path(_in_checkout(str(train.data_dir))),
        cache_dir=None,
        logs_dir=None,
        checkpoint_dir=train.checkpoint_dir and Path(_in_checkout(str(train.checkpoint_dir))),
        resume=train.resume and _in_checkout(train.resume),
        model=train.model and _in_checkout(train.model),
        tokenizer=train.tokenizer and _in_checkout(train.tokenizer),
    )


def _in_checkout(path: str) -> str:
    root = str(plugins.REPOSITORY) + "/"
    return path.removeprefix(root)


def _size(facts: Facts) -> str:
    nodes, counts = len(facts.nodes), [node.nproc for node in facts.nodes]
    each = str(counts[0]) if len(set(counts)) == 1 else "+".join(map(str, counts))
    return f"{nodes} {'node' if nodes == 1 else 'nodes'} x {each} " + (
        "worker" if each == "1" else "workers"
    )


def _spec(train: TrainConfig, launch: LaunchConfig, bench: BenchConfig, facts: Facts) -> LaunchSpec:
    assert train.run_id is not None
    shows_bar = sys.stdout.isatty() and not train.quiet and not launch.detach
    # The folder is claimed here: to the workers it is theirs already.
    there = replace(_there(train, facts), redirect=True, overwrite=False)
    return LaunchSpec(
        run_id=train.run_id,
        run_dir=train.logs_root / train.run_id,
        program=programs.own(launch, there, bench),
        env={"MUSTER_TTY": str(shutil.get_terminal_size().columns)} if shows_bar else {},
        workers=launch.workers,
        join_s=train.join_timeout_s,
        stop_grace_s=launch.stop_grace_s,
        max_restarts=launch.max_restarts,
        least_nodes=launch.least_nodes,
        overwrite=train.overwrite,
        resumed=train.resume is not None,
        ports=launch.ports,
        quiet=train.quiet,
    )


if __name__ == "__main__":
    cli.run(main)
