"""Refuse another launcher as the program, such as `-- torchrun train.py`, and show Muster's flags.

Each of Muster's workers would start the launcher, and so a whole run of its own. None of these runs
would meet the others, and all would end well. The same happens if another launcher has started a
command of Muster several times. Variables of mpirun may be left over in a shell, so this module
looks for the process of mpirun. In a Slurm job only the variables of a step say how often it has
started a command.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from launch.programs.known_launchers import (
    ALL,
    EACH,
    HOSTS,
    LAUNCHERS,
    MUSTER,
    NODES,
    OtherLauncher,
)
from launch.programs.python_choice import choose, workers_environment
from launch.programs.python_command import PYTHON, parse_command
from muster.errors import UsageError, refuse, run
from muster.rank_variables import NAMES, SRUN, is_one_of_several_tasks
from muster.writing import open_plain

SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
# Commands that start the words after their own flags.
IN_FRONT = frozenset(
    "env nohup nice time timeout stdbuf exec numactl taskset uv poetry pipenv conda mamba "
    "micromamba pixi hatch pdm apptainer singularity".split()
)
# A shell's text that passes the place in this run to the other launcher.
OF_RUN = re.compile(r"\$\{?(RANK|GROUP_RANK|WORLD_SIZE|GROUP_WORLD_SIZE|MASTER_ADDR)\b")
# The processes of mpirun: its own, and its daemons on other machines.
OF_MPIRUN = frozenset(
    "mpirun mpiexec mpiexec.hydra orterun orted prterun prte prted hydra_pmi_proxy pmi_proxy "
    "hydra_bstrap_proxy".split()
)
LONGEST = 100_000  # bytes of a script that are looked at


@dataclass(frozen=True)
class Call:
    """Another launcher on a command line."""

    name: str  # the word or module on the command line
    launcher: OtherLauncher
    rest: Sequence[str]  # the launcher's arguments


def problems(words: Sequence[str], wrap: Sequence[str] = ()) -> Iterator[str]:
    """A line if the program, or the command in front of each worker, is another launcher."""
    for option, command, more in (("", words, ()), ("--wrap ", wrap, words)):
        if (call := call_in(command)) is not None:
            yield (
                f"{option}{call.name} starts workers, and so does Muster: each of Muster's workers "
                f"would start a run of its own; without {call.name} it is "
                f"{in_our_flags(call.launcher, [*call.rest, *more])}"
            )


def notes(words: Sequence[str], cwd: Path) -> Iterator[str]:
    """A line if the program is a shell script that may start another launcher."""
    is_shell = Path(words[0]).name in SHELLS
    name = "".join(words[1:2]) if is_shell else words[0]
    try:
        with open_plain(cwd / name) as file:
            text = file.read(LONGEST).decode(errors="replace")
    except OSError:
        return
    if (is_shell or re.match(r"#!.*sh\b", text)) and (call := _call_in_shell(text)) is not None:
        yield (
            f"{name} starts {call.name}; each of Muster's workers would start a run of its own by "
            f"it; without {call.name} it is {in_our_flags(call.launcher, call.rest)}"
        )


def call_in(words: Sequence[str]) -> Call | None:
    """The launcher that a command starts, directly or through Python, a shell or the like."""
    words = [*words]  # `_matches` compares slices with lists
    names = [Path(word).name for word in words]
    if names[:1] and names[0] in SHELLS and words[1:2] == ["-c"]:
        return _call_in_shell("".join(words[2:3]))
    goes_on = names[:1] and names[0] in IN_FRONT
    for at, word in enumerate(words):
        for launcher in LAUNCHERS:
            for call in launcher.calls:
                if length := _matches(call, words, at):
                    return Call(call.removeprefix("-m "), launcher, words[at + length :])
        if word.endswith(".py") or word == "-c":
            break
        if not (goes_on or word.startswith("-") or PYTHON.fullmatch(names[at])):
            break
    return None


def _matches(call: str, words: Sequence[str], at: int) -> int:
    """How many words from `at` on are this call of a command, a module or a module's file; or 0."""
    first, *more = call.removeprefix("-m ").split()
    if [*words[at + 1 : at + 1 + len(more)]] != more:
        return 0
    if not call.startswith("-m "):
        is_first = Path(words[at]).name == first
    elif words[max(at - 1, 0) : at] == ["-m"]:
        is_first = words[at] == first
    else:
        is_first = f"/{words[at]}".endswith(f"/{first.replace('.', '/')}.py")
    return 1 + len(more) if is_first else 0


def _call_in_shell(text: str) -> Call | None:
    """The first launcher in a shell's text, unless the text passes it the place in this run."""
    if OF_RUN.search(text):
        return None
    for line in text.replace("\\\n", " ").splitlines():
        for command in _commands(line):
            if (call := call_in(command)) is not None:
                return call
    return None


def _commands(line: str) -> Iterator[list[str]]:
    """The commands of a line, without the variables that are set for them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    command: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set("();<>|&"):
                yield command
                command = []
            elif command or not re.match(r"\w+=", word):
                command.append(word)
    except ValueError:  # a quotation that goes on in the next line
        return
    yield command


def in_our_flags(launcher: OtherLauncher, rest: Sequence[str]) -> str:
    """`--nodes 2 --nproc-per-node 4 -- train.py` for a launcher's arguments."""
    if launcher is MUSTER:
        return shlex.join(rest)
    flags: list[tuple[str, str]] = []
    at = 0
    is_module = False
    while at < len(rest) and rest[at].startswith("-"):
        word = rest[at]
        at += 1
        name, equals, value = word.lstrip("-").partition("=")
        if attached := re.fullmatch(r"-([A-Za-z])(\d+)", word):  # srun -N2
            name = attached[1]
            equals = "="
            value = attached[2]
        name = name.replace("_", "-")
        if not equals and name not in launcher.switches:
            count = 2 if name in launcher.pairs else 1
            value = "=".join(rest[at : at + count])
            at += count
        is_module = is_module or (name in ("m", "module") and name in launcher.switches)
        if flag := launcher.ours.get(name):
            flag, _, variable = flag.partition(" ")
            flags.append((flag, f"{variable}={value}" if variable else value))
    program = _without_python(rest[at:]) or ["PROGRAM"]
    words = [*(["-m"] if is_module else []), *program]
    texts = [f"{flag} {shlex.quote(value)}" for flag, value in _with_counts(flags)]
    return " ".join([*texts, "--", shlex.join(words)])


def _with_counts(flags: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Muster's flags, with the numbers of nodes and of workers per node that the others imply."""
    counts = {flag: value for flag, value in flags if flag in (NODES, EACH, ALL, HOSTS)}
    hosts, _, slots = counts.get(HOSTS, "").partition(":")
    if slots:  # a:4,b:4
        hosts = ",".join(host.partition(":")[0] for host in counts[HOSTS].split(","))
        counts.setdefault(EACH, slots.partition(",")[0])
        counts[HOSTS] = hosts
    total = counts.pop(ALL, "")
    each = counts.get(EACH, "")
    if total.isdigit() and each.isdigit() and HOSTS not in counts:
        counts.setdefault(NODES, str(-(-int(total) // max(int(each), 1))))
    elif total.isdigit() and not each:
        listed = hosts.count(",") + 1
        nodes = int(counts[NODES]) if counts.get(NODES, "").isdigit() else listed
        counts[EACH] = str(-(-int(total) // max(nodes, 1)))
    if counts.get(EACH) == "auto":  # torchrun's word for all GPUs
        counts[EACH] = "gpu"
    order = [(flag, counts[flag]) for flag in (HOSTS, NODES, EACH) if flag in counts]
    return order + [pair for pair in flags if pair[0] not in (NODES, EACH, ALL, HOSTS)]


def _without_python(words: Sequence[str]) -> list[str]:
    """The program as it is typed for Muster: `train.py` for `python -u train.py`."""
    command = parse_command(words) if words else None
    return [*words] if command is None else [*command.program]


def refuse_several(env: Mapping[str, str]) -> None:
    """Refuse to start a run in each task of a step, or in each rank of an mpirun.

    Raises:
        UsageError: this command is one of several, all of which are refused.
    """
    for launcher, variable in _several(env):
        raise UsageError(
            f"{launcher} has started this command {env[variable]} times ({variable}), and each "
            f"would start the whole run; leave out {launcher}: Muster starts the workers of all "
            f"nodes. For a run in each task: env -u {variable} ..."
        )


def _several(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The launcher that has started several commands, and the variable with their number.

    The program of a run may start what it likes: it is not refused.
    """
    if "MUSTER_RUN_DIR" in env:
        return
    sizes = [size for _, size, *_ in NAMES.values() if env.get(size, "1") != "1"]
    if sizes and any(name in OF_MPIRUN for name in _ancestors()):
        yield "mpirun", sizes[0]
    if is_one_of_several_tasks(env):
        yield "srun", SRUN[1]


def _ancestors() -> Iterator[str]:
    try:
        for process in psutil.Process().parents():
            yield process.name()
    except psutil.Error:  # the process has ended, or is hidden
        return


def main() -> int:
    """Serve a script that starts the workers without Muster's leader.

    This refuses the program if it is another launcher. Otherwise it prints the Python that a leader
    would choose for the program.
    """
    refuse(problems(sys.argv[1:]))
    environment = workers_environment(Path.cwd(), {}, os.environ, is_over_ssh=False)
    print(choose("torchrun", environment).python or sys.executable)
    return 0


if __name__ == "__main__":
    run(main)
