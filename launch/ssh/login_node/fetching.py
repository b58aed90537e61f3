"""Copy a run from a login node: its whole folder, or only the results of its function."""

import argparse
import json
from pathlib import Path

from launch.ssh.login_node.installation import Installation
from muster import run_files
from muster.worker.function_call import CALL

# Copied by `fetch --results`: how the run ended, and what its function returned.
OF_RESULTS = (
    run_files.EXIT,
    run_files.RANK_END,
    run_files.AGENT,
    run_files.FUNCTION,
    run_files.RESULT,
)
# Checkpoints are folders that sort by step; unfinished ones have another suffix.
NEWEST = (
    'cd "$1/checkpoints" 2>/dev/null || exit 0; '
    'ls -d step_* 2>/dev/null | grep -v "[.]" | tail -n 1'
)


def fetch(given: argparse.Namespace, installation: Installation) -> int:
    """Copy a run's folder here: records, logs and the last checkpoint."""
    connection = installation.connection
    status = json.loads(
        connection.run(installation.command("launch/jobs.py", "status", given.run, "--json"))
    )
    source, target = status["run_dir"], given.to / Path(status["run_dir"]).name
    target.mkdir(parents=True, exist_ok=True)
    if given.results:
        tops = sorted({one.top for one in OF_RESULTS})
        parts = [f"--include=/{top}{below}" for top in tops for below in ("", "/**")]
        but = f"--exclude=/{run_files.FUNCTION.top}/{CALL}"  # it may be large, and is known here
        connection.rsync([but, *parts, "--exclude=*"], f":{source}/", f"{target}/")
        return 0
    newest = connection.run(["sh", "-c", NEWEST, "sh", source]).strip()
    chosen = [f"--include=/checkpoints/{newest}", "--exclude=/checkpoints/*"] if newest else []
    connection.rsync(
        [*chosen, f"--exclude=/{run_files.SNAPSHOT.path(Path()).name}"], f":{source}/", f"{target}/"
    )
    print(f"{target}: records and logs{f', checkpoint {newest}' if newest else ''}")
    return 0


def fetch_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="muster jobs fetch", description="Copy a run's folder from its login node."
    )
    parser.add_argument("run", help="the run's name, or its folder there")
    parser.add_argument("--to", type=Path, default=Path("logs"), help="folder (default: logs)")
    parser.add_argument("--results", action="store_true", help=argparse.SUPPRESS)  # only these
    return parser
