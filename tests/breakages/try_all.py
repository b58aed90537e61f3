"""Bring fixed defects back, one at a time, and see whether tests notice: README.md has the list.

    .venv/bin/python tests/breakages/try_all.py                    each patch against its own tests
    .venv/bin/python tests/breakages/try_all.py 13 core-04         only these two
    .venv/bin/python tests/breakages/try_all.py 13 --command 'make test-quick'

It prints a row for each patch: caught, or NOT caught. The tests must first pass without a patch.
While it runs, it changes files in its checkout. So it needs a checkout that nobody else is using
and that has no changes to tracked files. At the end, also after Ctrl-C, every file is restored.
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S.*?)(?: - .*)?$", re.MULTILINE)
PYTEST = "-m pytest -q -x -n 0 -p no:cacheprovider --timeout 300".split()
BOX = "tests/cluster/boxed.sh"  # needed by the testbed of tests/cluster
NO_SKIP = ("env", "REQUIRE_ALL=1")  # a test that is skipped catches nothing
TESTS_FAILED = 1  # pytest's exit code; higher ones are no verdict
MOST_LINES = 15  # shown of a command that gave no verdict


class Result(NamedTuple):
    code: int
    output: str
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of patches, such as 13 or core-04 (default: all)")
    parser.add_argument("--test", action="append", help="in place of those that a patch names")
    parser.add_argument("--command", help="a whole command in place of tests, such as 'make test'")
    parser.add_argument(
        "--no-baseline", action="store_true", help="do not run anything without a patch first"
    )
    options = parser.parse_args(argv)
    patches = [patch_of(name) for name in options.names] or sorted(HERE.glob("*.patch"))
    if changed := git("status", "--porcelain", "--untracked-files=no"):
        sys.exit(f"error: files of this checkout are changed; commit or restore them:\n{changed}")
    signal.signal(signal.SIGTERM, stop)
    commands = {patch: commands_for(patch, options.test, options.command) for patch in patches}
    if not options.no_baseline:
        for command in dict.fromkeys(one for several in commands.values() for one in several):
            if (result := run(command)).code:
                sys.exit(f"error: it fails without a patch: {shlex.join(command)}\n{result.output}")
    missed = 0
    for patch, several in commands.items():
        with broken(patch):
            missed += not tried(patch, several, is_pytest=options.command is None)
    print(f"{len(patches) - missed} of {len(patches)} caught", flush=True)
    return int(missed > 0)


def patch_of(name: str) -> Path:
    path = HERE / f"{name.zfill(3)}.patch"
    if not path.exists():
        sys.exit(f"error: there is no {path.relative_to(REPOSITORY)}")
    return path


def commands_for(
    patch: Path, tests: Sequence[str] | None, command: str | None
) -> list[tuple[str, ...]]:
    """Return the given command, or one command for each test."""
    if command is not None:
        return [tuple(shlex.split(command))]
    named = tests or re.findall(r"^Test: (\S.*)$", patch.read_text(encoding="utf-8"), re.MULTILINE)
    boxes = [[BOX] if test.startswith("tests/cluster/") else [] for test in named]
    pairs = zip(boxes, named, strict=True)
    return [(*box, *NO_SKIP, sys.executable, *PYTEST, test) for box, test in pairs]


def tried(patch: Path, commands: Sequence[tuple[str, ...]], *, is_pytest: bool) -> bool:
    """Print the row of the applied patch; return whether a command has caught it."""
    failed: list[str] = []
    seconds = 0.0
    is_caught = False
    for command in commands:
        result = run(command)
        seconds += result.seconds
        is_caught |= result.code == TESTS_FAILED if is_pytest else result.code != 0
        failed += FAILED.findall(result.output)
        if result.code and not failed:
            lines = result.output.splitlines()[-MOST_LINES:]
            print(f"{shlex.join(command)}: exit code {result.code}", *lines, sep="\n")
    verdict = "caught" if is_caught else "NOT caught"
    print(f"|{patch.stem.lstrip('0')}|{verdict}|{seconds:.0f} s|{', '.join(failed)}|", flush=True)
    return is_caught


def run(command: Sequence[str]) -> Result:
    """Run a command without the examples that Hypothesis has saved in earlier runs."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="muster-breakages-") as folder:
        env = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": folder}
        done = subprocess.run(
            command, cwd=REPOSITORY, env=env, stdin=subprocess.DEVNULL, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    return Result(done.returncode, done.stdout, time.monotonic() - began_s)


@contextmanager
def broken(patch: Path) -> Iterator[None]:
    """Apply the patch to this checkout for the duration of the context."""
    rows = git("apply", "--numstat", str(patch)).splitlines()
    files = [row.split("\t")[2] for row in rows]
    try:
        git("apply", "--3way", str(patch))
        yield
    finally:
        git("checkout", "--quiet", "HEAD", "--", *files)


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=REPOSITORY, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"error: {shlex.join(['git', *words])}: {done.stderr.strip()}")
    return done.stdout.rstrip()


def stop(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
