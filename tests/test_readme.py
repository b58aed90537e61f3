"""README and docs/ are correct: their links have targets, and their commands are accepted."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from configs import cli
from configs.settings.launch import LaunchConfig, ProgramConfig
from configs.settings.remote import SlurmConfig, SshConfig
from configs.settings.train import BenchConfig, ByHand, TrainConfig
from launch import submit
from launch.programs.command_line import CommandLine, split_program
from launch.ssh.login_node.__main__ import login_parser
from launch.ssh.login_node.fetching import fetch_parser
from muster.checkout import CHECKOUT
from muster.command import COMMANDS as MUSTER
from tests.commands import call
from tests.fork_server import interpreter
from tests.pages import FENCE, commands_of, text_of
from train import run_glue
from train.command_lines import hetseq

PAGES = [
    CHECKOUT / "README.md",
    CHECKOUT / "CONTRIBUTING.md",
    CHECKOUT / "CHANGELOG.md",
    *sorted((CHECKOUT / "docs").rglob("*.md")),
]
# A page whose files and commands exist only after its steps, which test_extending.py carries out.
EXECUTED = "extending.md"
LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)")
IN_JOB = [LaunchConfig, ProgramConfig, TrainConfig, BenchConfig]
FROM_OUTSIDE = [*IN_JOB, SshConfig, SlurmConfig]
# `train/worker.py` in running text, also `train/sync/modes/` and `configs/rte.yaml`
PATH = re.compile(r"`((?:launch|slurm|train|configs|muster|tests|docs)/[\w./-]*)`")
CLONE = re.compile(r"git clone \S+ \S+")


COMMANDS = [
    pytest.param(words, id=f"{page.name}: {shlex.join(words)[:90]}")
    for page in PAGES
    if page.name != EXECUTED
    for words in commands_of(page)
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue  # a web page: a test must not wait for the network
        file, _, anchor = target.partition("#")
        path = (page.parent / file) if file else page
        assert path.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(text_of(path)), f"{page.name}: {target}"


def test_the_index_of_docs_has_every_page():
    docs = CHECKOUT / "docs"
    listed = set(LINK.findall(text_of(docs / "README.md")))
    pages = {path.name for path in docs.iterdir() if path.suffix in (".md", ".ipynb")}
    assert pages - {"README.md"} <= listed


WAYS_IN = "slurm ssh testbed own-programs python library quickstart".split()


@pytest.mark.parametrize("name", WAYS_IN)
def test_a_way_in_begins_with_where_to_start(name):
    text = text_of(CHECKOUT / "docs" / f"{name}.md")
    begins = text.partition("\n## ")[2]
    assert begins.startswith("Start here\n")
    # quickstart.md says how to clone and install
    assert re.search(r"make (-C \S+ )?install|\(quickstart\.md", begins.partition("\n## ")[0])


def test_pages_clone_the_same_address_to_the_same_folder():
    cloned = {page: set(CLONE.findall(text_of(page))) for page in PAGES}
    assert cloned[CHECKOUT / "README.md"] and cloned[CHECKOUT / "docs" / "quickstart.md"]
    assert len(set.union(*cloned.values())) == 1


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes for the headings of a text."""
    plain = FENCE.sub("", text)
    headings = re.findall(r"^#+ (.+?) *$", plain, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_table_has_an_empty_head_cell(page):
    """GitHub and screen readers show such a row as empty."""
    heads = re.findall(r"^ *\|(.*)\|\n *\|[-:| ]+\|$", FENCE.sub("", text_of(page)), re.M)
    assert [head for head in heads if "" in map(str.strip, head.split("|"))] == []


@pytest.mark.parametrize("file", ["CITATION.cff", "setup.cfg"])
def test_muster_is_described_in_the_same_words_everywhere(file):
    sentence = re.search(r"^\*\*(.+?)\. ", text_of(CHECKOUT / "README.md"), re.M)
    assert sentence and sentence[1] in " ".join(text_of(CHECKOUT / file).split())


OF_NOW = [page for page in PAGES if page.name not in (EXECUTED, "CHANGELOG.md", "history.md")]


@pytest.mark.parametrize("page", OF_NOW, ids=lambda page: page.name)
def test_paths_named_in_the_text_exist(page):
    plain = FENCE.sub("", page.read_text(encoding="utf-8"))
    missing = {path for path in PATH.findall(plain) if not (CHECKOUT / path).exists()}
    # files that CONTRIBUTING adds as an example are named again after "add"
    assert missing <= set(re.findall(r"[Aa]dd `([\w/.]+)`", plain))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_is_left_to_be_filled_in(page):
    assert re.findall(r"XX\w*|TODO|TBD|FIXME", page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("words", COMMANDS)
def test_command_lines_are_accepted(words, monkeypatch):
    match words:
        case ["make", "-C", _, *rest] | ["make", *rest]:
            assert make_accepts(rest)
        case ["muster", "run", *flags] | ["python", "launch/submit.py", *flags] if is_local(flags):
            # in this process, which has imported it; test_submit.py starts it as users do
            monkeypatch.chdir(CHECKOUT)
            monkeypatch.setattr("sys.argv", ["launch/submit.py", *flags, "--dry-run"])
            assert submit.main() == 0
        case ["muster", "jobs", "fetch", *rest]:
            fetch_parser().parse_args(rest)
        case ["muster", "run", "--login", *flags]:
            _, rest = login_parser().parse_known_args(["--login", *flags])
            accepts_flags(FROM_OUTSIDE, rest)
        case ["muster", "run", *flags] | ["launch/ssh.sh", _, *flags]:
            accepts_flags(FROM_OUTSIDE, flags)
        case ["muster", command, *rest]:
            # a verb has its own help and flags
            assert_runs(*MUSTER[command], *(rest if command == "jobs" else []), "--help")
        case ["sbatch", *rest]:
            script = next(word for word in rest if re.fullmatch(r"(.*/)?slurm/\w+\.sh", word))
            assert script.startswith(("slurm/", "~/muster/slurm/", "$(muster path)/slurm/"))
            assert (CHECKOUT / "slurm" / Path(script).name).exists()
            accepts_flags(IN_JOB, rest[rest.index(script) + 1 :])
        case _ if worker := {"train.worker", "train/worker.py"} & set(words):
            accepts_worker_flags(words[words.index(worker.pop()) + 1 :])
        case ["python", "train/run_glue.py", *flags]:
            run_glue.translate(*run_glue.parse(flags), env={})
        case ["python", "train/command_lines/hetseq.py", *flags]:
            hetseq.translate(*hetseq.parse(flags))
        case _ if "train/main.py" in words:
            flags = words[words.index("train/main.py") + 1 :]
            accepts_worker_flags(["--task", "cs744", *flags])
        case ["python", script, *_] if script.endswith(".py"):
            assert_runs(script, "--help")
        case ["python", "-m", module, *_]:
            assert_runs("-m", module, "--help")


def is_local(flags: list[str]) -> bool:
    """Whether the flags start Muster's trainer on this machine."""
    return "slurm" not in flags and not {"--", "--login", "--hosts", "--on"} & {*flags}


def make_accepts(words: list[str]) -> bool:
    """Whether the Makefile has all these targets and variables."""
    makefile = text_of(CHECKOUT / "Makefile")
    names = [
        re.escape(word.partition("=")[0]) + (r" \?=" if "=" in word else ":") for word in words
    ]
    return all(re.search(f"^{one}", makefile, re.M) for one in names)


def accepts_flags(classes: list[type], argv: list[str]) -> None:
    """Parse flags, including our trainer's, except before `--` and a user's program."""
    flags, program = split_program(argv)
    cli.parse(classes, flags, prog="", description="")
    if program:
        CommandLine.parse(argv)


def accepts_worker_flags(flags: list[str]) -> None:
    """Parse flags as the worker does, with numbers in place of $RANK and other variables."""
    words = [re.sub(r"\$\{?\w*\}?", lambda m: "0" if "RANK" in m[0] else "1", w) for w in flags]
    cli.parse([TrainConfig, ByHand], words, prog="worker", description="")


@cache  # several pages need the same help
def assert_runs(*argv: str) -> None:
    python = interpreter(for_workers=False)
    done = call(python, *argv, cwd=CHECKOUT, env={"MUSTER_PYTHON": python})
    assert done.returncode == 0, done.stderr
