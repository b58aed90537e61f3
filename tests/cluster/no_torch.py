"""A program without torch on all nodes: `no_torch.py RUN_DIR HOSTS SSH_CONFIG PER_NODE`.

Prints, as JSON, what passed until all nodes had answered, until the last worker had started, and
until all was over, in seconds. The workers run this same file.
"""

import json
import os
import sys
import time
from pathlib import Path

RUN_DIR = "NO_TORCH_RUN_DIR"


def work() -> None:
    """Say that this worker has started, and stay until all have, or for three minutes."""
    started = Path(os.environ[RUN_DIR]) / "started"
    started.joinpath(os.environ["RANK"]).write_text(str(time.time()))
    deadline = time.monotonic() + 180
    while len(list(started.iterdir())) < int(os.environ["WORLD_SIZE"]):
        if time.monotonic() > deadline:
            sys.exit(f"rank {os.environ['RANK']} waited for the others in vain")
        time.sleep(0.2)


def lead(run_dir: Path, hosts: str, ssh_config: str, per_node: str) -> int:
    from configs.settings.launch import LaunchConfig, Settings, SlurmConfig, SshConfig
    from launch.launchers.ssh import Ssh
    from launch.spec import LaunchSpec, Program

    run_dir.joinpath("started").mkdir(parents=True)
    launch = LaunchConfig(launcher="ssh", hosts=hosts, nproc_per_node=per_node)
    launcher = Ssh(Settings(launch, SshConfig(ssh_config=Path(ssh_config)), SlurmConfig()))
    began, began_unix_s = time.monotonic(), time.time()
    facts = launcher.probe()
    asked_s = time.monotonic() - began
    spec = LaunchSpec(
        run_id=run_dir.name,
        run_dir=run_dir,
        program=Program.module("tests.cluster.no_torch"),
        env={RUN_DIR: str(run_dir)},
        workers="manual",
    )
    job = launcher.launch(spec, facts, launcher.plan(spec, facts))
    code = job.wait()
    starts = [float(path.read_text()) for path in run_dir.joinpath("started").iterdir()]
    found = {
        "workers": len(starts),
        "asked_s": asked_s,
        "started_s": max(starts, default=0.0) - began_unix_s,
        "over_s": time.monotonic() - began,
        "trouble": job.trouble,
    }
    print(json.dumps(found))
    return code


if __name__ == "__main__":
    if RUN_DIR in os.environ:
        work()
    else:
        sys.path.insert(0, str(Path(__file__).parents[2]))
        sys.exit(lead(Path(sys.argv[1]), *sys.argv[2:]))
