"""Start a run: `python launch/submit.py --nodes 4 --sync ddp`, here or on a cluster."""

import sys
from pathlib import Path

# A script's own folder comes first on the path, and a file in it could hide a library: the
# repository takes its place.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

try:
    from configs import cli, plugins
except ModuleNotFoundError as missing:
    from configs import activation

    activation.explain(missing)

import json
import shlex
import shutil
import signal
from dataclasses import asdict, replace

from configs.errors import refuse
from configs.run_folder import claim, claim_new, new_run_id
from configs.schema import LaunchConfig, TrainConfig
from launch.failure import explain
from launch.spec import Facts, Launcher, LaunchSpec, NodeCommand, NodeSpec


def main() -> int:
    launch, train = cli.parse(
        [LaunchConfig, TrainConfig],
        sys.argv[1:],
        prog="python launch/submit.py",
        description="Start the workers of a run, on this machine or on a cluster.",
    )
    name = "local" if launch.launcher == "auto" else launch.launcher
    launcher: Launcher = plugins.load("launch.launchers", name)()
    nodes = (NodeSpec("localhost", launch.nproc_per_node),) * launch.nodes
    facts = launcher.probe(nodes, launch.master_port)
    refuse(train.world_problems(sum(facts.nproc)))
    train = _named(_from_here(train), f"{launch.nodes}x{facts.nproc[0]}", make=not launch.dry_run)
    spec = _spec(train, nodes)
    plan = launcher.plan(spec, facts)
    if launch.dry_run:
        print("\n".join(command.line() for command in plan))
        return 0
    _write_down(spec, plan, cli.to_yaml(train, launch))
    if not train.quiet:
        print(f"run {spec.run_id}: {_size(facts)}, {train.task}, {train.sync} -> {spec.run_dir}")
        sys.stdout.flush()
    job = launcher.launch(spec, plan)
    return _conclude(job.wait(), sum(facts.nproc), spec.run_dir, job.shown)


def _from_here(train: TrainConfig) -> TrainConfig:
    """The settings with paths that hold in any folder."""
    return replace(
        train,
        data_dir=train.data_dir and train.data_dir.absolute(),
        cache_dir=train.cache_dir and train.cache_dir.absolute(),
        logs_dir=train.logs_dir and train.logs_dir.absolute(),
        model=_absolute_if_path(train.model),
        tokenizer=_absolute_if_path(train.tokenizer),
    )


def _absolute_if_path(name: str | None) -> str | None:
    """A model is a file or a folder if there is one of that name, else a name on the Hub."""
    return str(Path(name).absolute()) if name and Path(name).exists() else name


def _named(train: TrainConfig, size: str, *, make: bool) -> TrainConfig:
    """The settings with the run's id; with `make`, its folder is this run's from here on."""
    if train.run_id is None:
        return replace(train, run_id=(claim_new if make else new_run_id)(train, size))
    if make:
        claim(train.logs_root / train.run_id, overwrite=train.overwrite)
    return train


def _size(facts: Facts) -> str:
    nodes, workers = len(facts.nproc), facts.nproc[0]
    return f"{nodes} {'node' if nodes == 1 else 'nodes'} x {workers} " + (
        "worker" if workers == 1 else "workers"
    )


def _spec(train: TrainConfig, nodes: tuple[NodeSpec, ...]) -> LaunchSpec:
    assert train.run_id is not None
    shows_bar = sys.stdout.isatty() and not train.quiet
    return LaunchSpec(
        run_id=train.run_id,
        run_dir=train.logs_root / train.run_id,
        nodes=nodes,
        # The folder is claimed here: to the workers it is theirs already.
        worker_argv=tuple(cli.to_argv(replace(train, redirect=True, overwrite=False))),
        env={"MUSTER_TTY": str(shutil.get_terminal_size().columns)} if shows_bar else {},
    )


def _write_down(spec: LaunchSpec, plan: list[NodeCommand], config: str) -> None:
    (spec.run_dir / "config.yaml").write_text(config, encoding="utf-8")
    launched = {
        "command": shlex.join(["python", *sys.argv]),
        "run_id": spec.run_id,
        "nodes": [{**asdict(command), "cwd": str(command.cwd)} for command in plan],
    }
    (spec.run_dir / "launch.json").write_text(
        json.dumps(launched, indent=2) + "\n", encoding="utf-8"
    )


def _conclude(code: int, world_size: int, run_dir: Path, shown: bytes) -> int:
    """The exit code of the run; where it failed, the cause is the last thing one sees."""
    if code > 128:
        print(f"error: stopped by {signal.Signals(code - 128).name}", file=sys.stderr)
        return code
    failure = explain(run_dir, world_size)
    if failure is None:
        if code:
            logs = run_dir / "agents"
            print(f"error: all workers are done, but torchrun is not: see {logs}", file=sys.stderr)
        return code
    if failure.text.encode() not in shown:  # rank 0's own error has just been seen
        said = (f"run folder: {run_dir}", *failure.context, failure.text)
        print("\n".join(said), file=sys.stderr)
    return failure.code


if __name__ == "__main__":
    cli.run(main)
