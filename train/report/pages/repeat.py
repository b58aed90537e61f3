"""Commands that repeat runs and studies: the recorded commands without flags of the old run."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from muster import run_files
from muster.printable import printable
from train.report.data.columns import Entry
from train.report.data.subject import Subject

# The command of each script that records one.
COMMANDS = {"submit.py": "run", "study.py": "study", "sweep.py": "sweep"}
# Flags of the old run, with a value and without.
RUN_FLAGS = frozenset(("--run-id", "--logs-dir", "--checkpoint-dir"))
SWITCHES = frozenset(("--overwrite", "--detach", "--json", "--quiet", "--dry-run", "--fresh"))
# The flag that names the folder of a study or sweep, which runs nothing again in its old folder.
NAMED_BY = {"study": "--output", "sweep": "--name"}
NOT_A_COMMAND = frozenset(("--function", "--cells"))  # calls from Python: their files are gone


def commands(subject: Subject) -> list[str]:
    """The study's command, or the distinct commands of the runs."""
    if subject.command:
        recorded: list[object] = [subject.command]
    else:
        recorded = [entry.run.launch.get("command") for entry in subject.entries]
    found = [repeating(command) for command in recorded if isinstance(command, str)]
    return list(dict.fromkeys(filter(_is_text, found)))


def from_settings(subject: Subject) -> list[str]:
    """For each run outside of a study, the command that reads all of its settings."""
    if subject.cells or subject.command:
        return []
    found = [command for entry in subject.entries for command in _from_settings(entry)]
    return list(filter(_is_text, found))


def repeating(command: str) -> str:
    """Turn a recorded command into one to type now; empty if impossible, as for a batch script.

    A new study or sweep gets a folder of its own.
    """
    words = _words(command)
    word = COMMANDS.get(Path(words[1]).name) if len(words) > 1 else None
    if word is None or NOT_A_COMMAND.intersection(words):
        return ""
    count = words.index("--") if "--" in words else len(words)
    own = [*_without_old(words[2:count], NAMED_BY.get(word, ""))]
    if word == "study":
        name = next((Path(text).stem for text in own if text.endswith((".yaml", ".yml"))), "study")
        own += ["--output", f"logs/studies/{name}-again"]
    elif word == "sweep":
        own += ["--name", "again"]
    return shlex.join(["muster", word, *own, *words[count:]])


def _is_text(command: str) -> bool:
    """Whether a page can show this command unchanged: one line, without incomplete characters."""
    return bool(command) and printable(command) == command


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a damaged record
        return []


def _without_old(words: Sequence[str], named_by: str) -> Iterator[str]:
    """Yield the words, without the flags of the old run."""
    rest = list(words)
    while rest:
        text = rest.pop(0)
        name, equals, value = text.partition("=")
        flag = name.replace("_", "-") if name.startswith("--") else name
        if flag in RUN_FLAGS or flag == named_by:
            if not equals and rest:
                rest.pop(0)
        elif flag == "--resume" and (value or (rest or [""])[0]) == "auto":  # by the run's id
            if not equals:
                rest.pop(0)
        elif flag not in SWITCHES:
            yield text


def _from_settings(entry: Entry) -> Iterator[str]:
    path = run_files.CONFIG.path(entry.run.path).absolute()
    words = _words(str(entry.run.launch.get("command", "")))
    program = words[words.index("--") :] if "--" in words else []
    is_repeatable = bool(program) or not entry.run.is_foreign
    if entry.run.config and is_repeatable and not NOT_A_COMMAND.intersection(words):
        yield shlex.join(["muster", "run", "--config", str(path), *program])
