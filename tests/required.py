"""Requirements of some tests besides Python: without them, tests are skipped and listed at the end.

A test declares its requirements with `@pytest.mark.needs("root", "rsync")`, a fixture with
`need("rsync")`. The last lines of the output also list all other reasons for skipped tests.
"""

import os
import shutil
import subprocess
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from launch.virtual_cluster import commands

# The Debian package of each requirement; `make packages` installs them all.
PACKAGES = {
    **{program: package for package, several in commands.PACKAGES.items() for program in several},
    "rsync": "rsync",
    "git": "git",
    "mpirun": "openmpi-bin",
    "ch-run": "charliecloud-runtime",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
    "Pango": "libpangoft2-1.0-0",
    "g++": "g++",
    "Python.h": "python3-dev",
}
# Requirements that nobody can install: on a machine without them, the test is skipped and listed.
OF_MACHINE = frozenset(("GPU", "memory cgroup"))
# The folder in which a cgroup with a memory limit can be made, by cgroup version.
MEMORY_CGROUPS = {1: Path("/sys/fs/cgroup/memory"), 2: Path("/sys/fs/cgroup")}
TESTBED = ("root", "namespaces", *sum(commands.PACKAGES.values(), ()))
NEEDS = "it needs "
# Names a file in which the first half of `make test` records why it skipped tests, for the last
# lines of the second half.
NOT_TRIED = "TESTS_NOT_TRIED"
# Put in front of a command: root can read all files unless it drops these capabilities.
AS_ANY_USER = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
AS_ANY_USER = AS_ANY_USER if os.geteuid() == 0 else []


def need(*things: str) -> None:
    """Skip this test if one of `things` is missing.

    Raises:
        pytest.skip.Exception: something is missing, or
        pytest.fail.Exception: something that can be installed is missing, and REQUIRE_ALL is set,
            as in `.ci/run`.
    """
    __tracebackhide__ = True
    if lacking := [thing for thing in things if not is_there(thing)]:
        is_fatal = os.environ.get("REQUIRE_ALL") and not OF_MACHINE.issuperset(lacking)
        (pytest.fail if is_fatal else pytest.skip)(NEEDS + ", ".join(lacking))


@cache
def is_there(thing: str) -> bool:
    """Whether this machine has `thing`: a program, or one of the special cases below."""
    match thing:
        case "root":
            return os.geteuid() == 0
        case "namespaces":  # root may lack them in a container; other users need root first
            new = ["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "true"]
            return os.geteuid() != 0 or _succeeds(*new)
        case "GPU":
            import torch  # imported here: most tests need no GPU

            return torch.cuda.is_available()
        case "memory cgroup":
            return memory_cgroup_version() is not None
        case "Pango":
            try:
                import weasyprint  # noqa: F401  # it takes long, and prints if it fails
            except OSError:
                return False
            return True
        case "Python.h":  # for what torch.compile generates
            return Path(sysconfig.get_path("include"), "Python.h").exists()
    return shutil.which(thing) is not None


def memory_cgroup_version() -> int | None:
    """Return the version of cgroups if this process can make one with a memory limit."""
    if os.access(MEMORY_CGROUPS[1] / "cgroup.procs", os.W_OK):
        return 1
    controllers = MEMORY_CGROUPS[2] / "cgroup.subtree_control"  # of new cgroups
    if os.access(controllers, os.W_OK) and "memory" in controllers.read_text().split():
        return 2
    return None


def program_folders() -> list[Path]:
    """Return each folder of PATH once, with symbolic links resolved."""
    return [Path(one) for one in dict.fromkeys(map(os.path.realpath, os.get_exec_path()))]


def installed_programs() -> list[Path]:
    """Return the installed programs of PACKAGES, but no compiler: Python packages may need one."""
    names = PACKAGES.keys() - {"g++"}
    paths = [folder / name for folder in program_folders() for name in sorted(names)]
    return [path for path in paths if path.exists()]


def _succeeds(*argv: str) -> bool:
    try:
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.hookimpl(tryfirst=True)  # before fixtures, which may use what is missing
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        need(*marker.args)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Print why tests were skipped, below everything that pytest itself prints."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    texts = [str(report.longrepr[2]) for report in reporter.stats.get("skipped", ())]
    reasons = [text.removeprefix("Skipped: ").partition("\n")[0] for text in texts]
    if shared := os.environ.get(NOT_TRIED):
        with Path(shared).open("a+", encoding="utf-8") as file:
            file.writelines(f"{reason}\n" for reason in reasons)
            file.seek(0)
            reasons = file.read().splitlines()
    for line in last_lines(Counter(reasons)):
        reporter.write_line(line, yellow=True)


def last_lines(counts: Counter[str]) -> list[str]:
    """Return how many tests were skipped for each reason, and how to provide what they need."""
    lines = []
    lacking: set[str] = set()
    for reason, count in counts.items():
        if reason.startswith(NEEDS):
            things = reason.removeprefix(NEEDS)
            lacking.update(things.split(", "))
            tests = "test that needs" if count == 1 else "tests that need"
            lines.append(f"not tried: {count} {tests} {things}")
        else:
            lines.append(f"not tried: {count} {'test' if count == 1 else 'tests'}: {reason}")
    remedies = []
    if lacking & PACKAGES.keys():
        remedies.append("install what they need: sudo make packages (Debian, Ubuntu)")
    if "mypy" in lacking:
        remedies.append("install the developers' tools: make setup")
    if "root" in lacking:
        remedies.append("run all tests as root: sudo make test")
    if "namespaces" in lacking:
        remedies.append("let root make namespaces: a container needs --privileged")
    return lines + remedies


if __name__ == "__main__":  # for `make test-bare`, on a machine that still has git
    print(*(path for path in installed_programs() if path.name != "git"), sep="\n")
