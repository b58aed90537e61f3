"""What our commands print before anything starts matches the records beside this file.

A scene in a `*.txt` begins with `# TITLE`, which may end with `(needs TOOL)`, and has a new folder.
`> FILE` writes the indented lines below it. Below `$ COMMAND` is its output without empty lines,
then `+ FILE` for each file that it makes, and its exit code, if that is not 0. Below `>>> PYTHON`
is what this line of Python prints or raises; one process runs all such lines of a scene.

`pytest tests/refusals --update` records what the commands print now; the diff shows what changed.
"""

import difflib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import takewhile
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from tests.fork_server import interpreter
from tests.refusals.console import END

TOOLS = "sh bash cat chmod env git head ln mkdir mkfifo rm rmdir sed touch true".split()
FILES = sorted(Path(__file__).parent.glob("*.txt"))


def scenes_of(file: Path) -> list[str]:
    return re.split("^(?=# )", file.read_text(encoding="utf-8"), flags=re.MULTILINE)


def parameters() -> Iterator[object]:
    for file in FILES:
        for number, scene in enumerate(scenes_of(file)):
            title = scene.partition("\n")[0]
            needs = re.findall(r"\(needs (.*)\)$", title)
            marks = [pytest.mark.needs(*needs[0].split(", "))] if needs else []
            if re.search(r"^(\$|>>>) ", scene, re.MULTILINE):
                yield pytest.param(file, number, id=f"{file.stem}{title[1:]}", marks=marks)


@pytest.fixture(scope="session")
def forked() -> Iterator[Callable[..., int]]:
    """Yield a function that runs a command and returns its exit code."""
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore::RuntimeWarning:runpy", "-m", "tests.refusals.forked"],
        cwd=CHECKOUT, env={**os.environ, "PYTHONUTF8": "1"}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert server.stdin is not None and server.stdout is not None

    def run(**asked: object) -> int:
        print(json.dumps(asked), file=server.stdin, flush=True)
        return int(server.stdout.readline())

    with server:
        yield run
        server.stdin.close()


class Stage:
    """A machine on which nothing is installed but Python and a few tools."""

    def __init__(self, root: Path, forked: Callable[..., int]) -> None:
        self._root = root
        self._forked = forked
        self._console: subprocess.Popen[str] | None = None
        self._places = {
            "/project": str(root / "project"),
            "/home/me": str(root / "home"),
            "/env/bin": str(Path(sys.executable).parent),
            "/muster": str(CHECKOUT),
        }
        for name in ("project", "project/bin", "home", "runtime", "tmp", "tools"):
            (root / name).mkdir(mode=0o700)
        for tool in filter(shutil.which, TOOLS):
            (root / "tools" / tool).symlink_to(str(shutil.which(tool)))

    def play(self, scene: str) -> str:
        """Return the scene with the current output of its commands."""
        lines = list[str]()
        file: Path | None = None
        for line in scene.removesuffix("\n").split("\n"):
            if not line.startswith("  "):
                file = None
                lines.append(line)
            if line.startswith("> "):
                file = self._root / "project" / self._here(line[2:])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("")
                file.chmod(0o755 if file.parent.name == "bin" else 0o644)
            elif line.startswith("$ "):
                lines += [f"  {printed}" for printed in self._printed(line[2:])]
            elif line.startswith(">>> "):
                lines += [f"  {answer}" for answer in self._answered(line[4:])]
            elif file is not None:
                lines.append(line)
                with file.open("a", encoding="utf-8") as opened:
                    opened.write(self._here(line[2:]) + "\n")
        return "".join(f"{line}\n" for line in lines)

    def _printed(self, command: str) -> Iterator[str]:
        words = shlex.split(self._here(command))
        given = {}
        while re.match(r"\w+=", words[0]):
            name, _, given[name] = words.pop(0).partition("=")
        project = self._root / "project"
        env = self._env() | given
        output = self._root / "output"
        output.unlink(missing_ok=True)
        before = {*project.rglob("*")}
        code = self._forked(words=words, folder=str(project), env=env, output=str(output))
        made = (new for new in {*project.rglob("*")} - before if new.parent in {project, *before})
        text = output.read_text(encoding="utf-8", errors="replace")
        text += "".join(f"+ {path}\n" for path in sorted(new.relative_to(project) for new in made))
        for line in self._recorded(text):
            if line.strip():
                yield line.rstrip()
        if code:
            yield f"[{code}]"

    def _env(self) -> dict[str, str]:
        path = [self._root / "project" / "bin", self._places["/env/bin"], self._root / "tools"]
        return {
            "PATH": os.pathsep.join(map(str, path)),
            "HOME": str(self._root / "home"),
            "XDG_RUNTIME_DIR": str(self._root / "runtime"),
            "TMPDIR": str(self._root / "tmp"),
            "USER": "me",
            "TERM": "dumb",
            "COLUMNS": "100",
            "LC_ALL": "C.UTF-8",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def _answered(self, code: str) -> Iterator[str]:
        if self._console is None:
            self._console = subprocess.Popen(
                [interpreter(for_workers=False), Path(__file__).with_name("console.py")],
                cwd=self._root / "project", env=self._env(), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        console = self._console
        assert console.stdin is not None and console.stdout is not None
        print(self._here(code), file=console.stdin, flush=True)
        text = "".join(takewhile(f"{END}\n".__ne__, console.stdout))
        yield from (line.rstrip() for line in self._recorded(text) if line.strip())

    def close(self) -> None:
        if self._console is not None:
            self._console.communicate()

    def _here(self, text: str) -> str:
        for place, path in self._places.items():
            text = re.sub(rf"(?<![\w.]){place}\b", path, text)
        return text

    def _recorded(self, text: str) -> list[str]:
        """Return the lines without the details of this machine and time."""
        for place, path in self._places.items():
            text = text.replace(path, place)
        text = re.sub(r"\b\d{8}-\d{6}\b", "TIME", text)
        lines = text.split("\n")
        port = r"(master-port|process_port|MASTER_PORT)(\W+)\d{5}\b"
        is_plan = [" /muster/muster/" in line or '"kind": "plan"' in line for line in lines]
        return [
            re.sub(port, r"\1\2PORT", line) if plan else line
            for line, plan in zip(lines, is_plan, strict=True)
        ]


@pytest.mark.parametrize(("file", "number"), list(parameters()))
def test_commands_print_what_is_recorded(file, number, tmp_path, forked, request):
    scenes = scenes_of(file)
    with closing(Stage(tmp_path, forked)) as stage:
        printed = stage.play(scenes[number])
    lines = (text.split("\n") for text in (scenes[number], printed))
    change = list(difflib.unified_diff(*lines, "recorded", "printed", n=2, lineterm=""))
    if request.config.getoption("update"):
        scenes[number] = printed
        file.write_text("".join(scenes), encoding="utf-8")
    elif change:
        pytest.fail("\n".join(change), pytrace=False)


def refusals() -> Iterator[tuple[str, str]]:
    """Yield each recorded error and the line below it."""
    for file in FILES:
        is_printed = False
        lines = file.read_text(encoding="utf-8").split("\n")
        for line, below in itertools.pairwise(lines):
            if not line.startswith("  "):
                is_printed = not line.startswith("> ")
            elif is_printed and line.startswith("  error: "):
                yield line.removeprefix("  error: "), below


# the fact about what was set: "--lr 0: ...", "(got 0)", "--end-lr 1.0 is above --lr 0.1"
TRUE = re.compile(
    r"[;:(?]|, \w+ | needs | must be | is (for|above|below|longer|more|not) | leaves no "
)


def test_refusals_name_what_was_set_what_is_true_and_what_to_do():
    """What to do is in a tip, or clear from what is true; a sentence ends without a period."""
    found = list(refusals())
    assert len(found) > 500
    no_remedy = [text for text, below in found if not below.startswith("  tip: ")]
    assert [text for text in no_remedy if not TRUE.search(text)] == []
    assert [text for text, _ in found if re.search(r"\w\.$", text) or len(text.split()) < 2] == []
    assert [text for text, _ in found if re.search(r"Traceback|<class | object at 0x", text)] == []
