"""Copy a run's folder from a login node, or only the results of its function.

The run's files on the login node may come from somebody else. So the copy gets the name by which
the run is known here, never a name that the login node sends. Only plain files and folders are
copied: no symbolic links, no devices, nothing that runs with another user's rights.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from configs.help_page import Parser
from launch.runs import run_record
from launch.ssh.login_node.installation import Installation
from muster import run_files
from muster.errors import MusterError, UsageError
from muster.worker.function_call import CALL

# Copied by `fetch --results`: how the run ended, and what its function returned.
RESULT_FILES = (
    run_files.EXIT,
    run_files.RANK_END,
    run_files.AGENT,
    run_files.FUNCTION,
    run_files.RESULT,
)
LISTED = 5  # names in a note
# Checkpoints are folders whose names sort by step; unfinished ones have another suffix.
NEWEST = (
    'CDPATH= cd "$1/checkpoints" 2>/dev/null || exit 0; '
    'printf "%s\\n" step_* | grep -x "step_[0-9]*" | tail -n 1'
)
# Added to the options for all copies; new files get their modes from this machine's umask.
PLAIN_FILES = (
    "--no-links --no-perms --no-devices --no-specials --chmod=Du+rwx,Fu+rw,Fa-x,a-st".split()
)
SKIPPED = "skipping non-regular file "  # how rsync's line begins; the escaped name follows


def fetch(given: argparse.Namespace, installation: Installation) -> int:
    """Copy a run's folder here: records, logs and the last checkpoint.

    Raises:
        UsageError: the run on the login node has another name, or the copy would overwrite a run.
        MusterError: the run cannot be copied.
    """
    connection = installation.connection
    status = installation.command("launch/jobs.py", "status", given.run, "--json")
    source = _folder_of(given.run, connection.run(status), connection.login)
    target = given.to / given.run
    if target.resolve() in map(Path.resolve, run_record.run_folders()):
        raise UsageError(
            f"{target} is a run on this machine, and a copy would overwrite it"
            "\ntip: choose another folder with --to"
        )
    target.mkdir(parents=True, exist_ok=True)
    if given.results:
        tops = sorted({kind.top for kind in RESULT_FILES})
        included = [f"--include=/{top}{below}" for top in tops for below in ("", "/**")]
        # the call may be large, and is here already
        without_call = f"--exclude=/{run_files.FUNCTION.top}/{CALL}"
        rules = [without_call, *included, "--exclude=*"]
        connection.rsync([*PLAIN_FILES, *rules], f":{source}/", f"{target}/")
        return 0
    newest = connection.run(["sh", "-c", NEWEST, "sh", source]).strip()
    newest = newest if re.fullmatch(r"step_\d+", newest) else ""
    rules = [f"--include=/checkpoints/{newest}", "--exclude=/checkpoints/*"] if newest else []
    rules.append(f"--exclude=/{run_files.SNAPSHOT.top}")
    output = connection.rsync([*PLAIN_FILES, *rules], f":{source}/", f"{target}/")
    skipped = [line for line in output.splitlines() if line.startswith(SKIPPED)]
    if skipped:
        names = ", ".join(line.removeprefix(SKIPPED) for line in skipped[:LISTED])
        more = f" and {len(skipped) - LISTED} more" if len(skipped) > LISTED else ""
        print(f"note: not copied, since they are not regular files: {names}{more}", file=sys.stderr)
    print(f"{target}: records and logs{f', checkpoint {newest}' if newest else ''}")
    return 0


def _folder_of(run: str, answer: str, login: str) -> str:
    """The folder of `run` on the login node, from the answer about its status.

    Raises:
        UsageError: the run on the login node has another name.
        MusterError: the answer is not valid.
    """
    try:
        folder = Path(json.loads(answer)["run_dir"])
    except (ValueError, TypeError, LookupError, RecursionError):
        raise MusterError(
            f"{login}: its answer about {run} is not valid: {answer[:200]!r}"
        ) from None
    if folder.name != run:
        raise UsageError(
            f"{run!r} is not the full name of a run on {login}; did you mean {folder.name!r}?"
            "\ntip: give the full name, which the folder here will also have"
        )
    if not folder.is_absolute():
        raise MusterError(f"{login}: its answer about {run} is not valid: {answer[:200]!r}")
    return str(folder)


def fetch_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="muster jobs fetch", description="Copy a run's folder from its login node."
    )
    parser.add_argument("run", metavar="RUN", help="the run's full name")
    parser.add_argument(
        "--to",
        type=Path,
        metavar="FOLDER",
        default=Path("logs"),
        help="folder to copy into (default: logs)",
    )
    # only how the run ended, and what its function returned
    parser.add_argument("--results", action="store_true", help=argparse.SUPPRESS)
    return parser
