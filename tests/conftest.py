"""Every test runs in isolation: no network, no scheduler, no enclosing run, no user's cache."""

import os
import pwd
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from muster.orderly_stop import STOP_SIGNALS
from tests import fork_server, installations, own_processes, required
from tests.fork_server import QUICK

# Variables of torchrun, Slurm and a user's shell: tests must not depend on where they are started.
FOREIGN = (
    "SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "ACCELERATE_", "HF_", "PET_", "MUSTER_",
    "CONDA_", "VIRTUAL_ENV", "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "MASTER_", "OMP_",
)  # fmt: skip

# With this variable, each process that a test starts would compile this checkout again, and so
# would each of the processes that run the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# output is as wide as a test expects, whatever the terminal's width
os.environ.pop("COLUMNS", None)
for name in list(os.environ):
    if name.startswith(FOREIGN):
        del os.environ[name]
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "NO_COLOR": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Tests that start commands find this python's tools, however pytest itself was started.
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}

# A process that a shell starts in the background ignores Ctrl-C and Ctrl-\, and all processes that
# tests start would inherit this.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) == signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# How long an example takes depends on the machine, not on the code.
hypothesis.settings.register_profile("muster", deadline=None, max_examples=50)
hypothesis.settings.load_profile("muster")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Replace `~/.cache` and `~/.local/state` for this session and all processes of its tests."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """Restore signal handlers after each test.

    Otherwise processes of later tests would inherit ignored signals, and could not be stopped.
    """
    numbers = (*STOP_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


# Functions that read a file only once per process, because it may be a pipe.
READ_ONCE = {
    "configs.raw": "read_file",
    "configs.cli": "cluster",
    "launch.programs.command_line": "_read",
}


@pytest.fixture(autouse=True)
def read_again() -> Callable[[], None]:
    """Make each test read the settings files again; calling the fixture does so once more."""

    def forget() -> None:
        for module, function in READ_ONCE.items():
            if module in sys.modules:
                getattr(sys.modules[module], function).cache_clear()

    forget()
    return forget


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as a user unknown to the machine, as in a container with an arbitrary user ID."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installations.wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> installations.Installation:
    """Muster without its checkout; its path has a blank, to test that paths are passed on whole."""
    return installations.install(tmp_path_factory.mktemp("in stalled") / "env", str(wheel))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Use one thread, as workers do: several tests run at a time, and their models are small."""
    if "torch" in sys.modules:  # collected tests have imported what they need
        sys.modules["torch"].set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what starts workers")
    parser.addoption("--update", action="store_true", help="record anew what golden files have")


def pytest_configure(config: pytest.Config) -> None:
    """Register our plugins; xdist's main process also starts what its test processes share."""
    if config.getoption("update") and (
        os.environ.get("CI") or config.getoption("numprocesses", None)
    ):
        raise pytest.UsageError("--update rewrites files: not in CI, and without -n")
    config.pluginmanager.register(own_processes)  # before any process is started
    config.pluginmanager.register(required)
    if config.getoption("numprocesses", None):
        fork_server.share()


@pytest.hookimpl(tryfirst=True)  # before the fixtures, which may start workers as well
def pytest_runtest_setup(item: pytest.Item) -> None:
    """With `--quick`, a test that starts workers is skipped, unless it is marked `quick`."""
    os.environ.pop(QUICK, None)
    if item.config.getoption("quick") and not item.get_closest_marker("quick"):
        os.environ[QUICK] = "1"


# The longest files come first: if one began last, all other processes would wait for it.
LONGEST_FIRST = """
test_modes_agree.py launch/programs/test_own_programs.py train/test_equality.py
launch/agent/inspection/test_no_false_alarm.py launch/programs/test_preloaded_programs.py
launch/test_submit.py train/sync/test_torch_ddp.py train/distributed/test_agreement.py
launch/leading/test_suspended_runs.py launch/studies/test_study.py gpu/test_check.py
launch/runs/test_kill_and_continue.py launch/test_documents.py
launch/agent/inspection/test_hung_runs.py test_public_docstrings.py test_python_page.py
train/report/test_report.py
""".split()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # a process of xdist, which takes one file after another
        folder = Path(__file__).parent
        rank = {folder / name: number for number, name in enumerate(LONGEST_FIRST)}
        items.sort(key=lambda item: rank.get(item.path, len(rank)))
