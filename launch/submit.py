"""Start a run: `python launch/submit.py --nodes 4 --sync ddp`, here or on a cluster."""

import os
import sys
from pathlib import Path

# A script's own folder comes first on the path, and a file in it could hide a library: the
# repository takes its place.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

try:
    from configs import cli, plugins
except ModuleNotFoundError as missing:
    root = Path(sys.path[0])
    ready = (root / ".venv" / "bin" / "activate").exists()
    print(
        f"error: {sys.executable} has no {missing.name}; activate Muster's environment: "
        + (f"source {root}/.venv/bin/activate" if ready else f"make -C {root} setup"),
        file=sys.stderr,
    )
    sys.exit(2)

import json
import shlex
import signal
from dataclasses import asdict, replace

from configs.errors import refuse
from configs.run_folder import claim, new_run_id
from configs.schema import LaunchConfig, TrainConfig
from launch.failure import explain
from launch.spec import Launcher, LaunchSpec, NodeCommand, NodeSpec


def main() -> int:
    launch, train = cli.parse(
        [LaunchConfig, TrainConfig],
        sys.argv[1:],
        prog="python launch/submit.py",
        description="Start the workers of a run, on this machine or on a cluster.",
    )
    name = "local" if launch.launcher == "auto" else launch.launcher
    launcher: Launcher = plugins.load("launch.launchers", name)()
    train = _from_here(train, launch)
    spec = _spec(launch, train)
    facts = launcher.probe(spec)
    plan = launcher.plan(spec, facts)
    if launch.dry_run:
        print("\n".join(command.line() for command in plan))
        return 0
    claim(spec.run_dir, overwrite=train.overwrite)
    _write_down(spec, plan, cli.to_yaml(train, launch))
    if not train.quiet:
        workers = "worker" if launch.nproc_per_node == 1 else "workers"
        nodes = "node" if launch.nodes == 1 else "nodes"
        print(
            f"run {spec.run_id}: {launch.nodes} {nodes} x {launch.nproc_per_node} {workers}, "
            f"{train.task}, {train.sync} -> {spec.run_dir}",
            flush=True,
        )
    job = launcher.launch(spec, plan)
    return _conclude(job.wait(), sum(facts.nproc), spec.run_dir, job.shown)


def _from_here(train: TrainConfig, launch: LaunchConfig) -> TrainConfig:
    """The settings as the workers need them: paths that hold in any folder, and a run id."""
    if launch.nproc_per_node != "gpu":
        refuse(train.world_problems(launch.nodes * launch.nproc_per_node))
    size = f"{launch.nodes}x{launch.nproc_per_node}"
    return replace(
        train,
        data_dir=train.data_dir and train.data_dir.absolute(),
        cache_dir=train.cache_dir and train.cache_dir.absolute(),
        logs_dir=train.logs_dir and train.logs_dir.absolute(),
        model=_absolute_if_path(train.model),
        tokenizer=_absolute_if_path(train.tokenizer),
        run_id=train.run_id or new_run_id(train, size),
    )


def _absolute_if_path(name: str | None) -> str | None:
    """A model is a file or a folder if there is one of that name, else a name on the Hub."""
    return str(Path(name).absolute()) if name and Path(name).exists() else name


def _spec(launch: LaunchConfig, train: TrainConfig) -> LaunchSpec:
    assert train.run_id is not None
    shows_bar = sys.stdout.isatty() and not train.quiet
    return LaunchSpec(
        run_id=train.run_id,
        run_dir=train.logs_root / train.run_id,
        nodes=(NodeSpec("localhost", launch.nproc_per_node),) * launch.nodes,
        # The folder is claimed here: to the workers it is theirs already.
        worker_argv=tuple(cli.to_argv(replace(train, redirect=True, overwrite=False))),
        master_port=launch.master_port,
        env={"MUSTER_TTY": str(os.get_terminal_size().columns)} if shows_bar else {},
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
        print(failure.text, file=sys.stderr)
    return failure.code


if __name__ == "__main__":
    cli.run(main)
