"""Replace placeholders in a program's arguments: `--rank {rank}` is `--rank 2` in rank 2.

    python placeholders.py COMMAND [argument ...]      replace them, and become the command

`{{rank}}` becomes `{rank}`. All other braces stay, and so does `${rank}`, a shell variable. The
name of the program is not changed. The values come from variables that the starter of a worker
sets, so they are known only in the worker.

This file is loaded by its path. It needs only the standard library of Python 3.8 or newer.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

# torchrun's variables by the names of its flags, and the run folder.
VARIABLES = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "world_size": "WORLD_SIZE",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "node_rank": "GROUP_RANK",
    "nnodes": "GROUP_WORLD_SIZE",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
    "run_dir": "MUSTER_RUN_DIR",
}
# Other launchers' names for them.
OTHER_NAMES = {"master_ip": "master_addr", "num_nodes": "nnodes"}
# Their values if none are set, as in the single worker of `accelerate launch`.
SINGLE_WORKER = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
}
NAME_PATTERN = f"(?:{'|'.join(VARIABLES)})"
PLACEHOLDER = re.compile(rf"\${{+{NAME_PATTERN}}}+|{{{{{NAME_PATTERN}}}}}|{{{NAME_PATTERN}}}")
OTHER = re.compile(r"(?<![${]){(\w+)}(?!})")  # what a user may have meant to be a placeholder
LEAST = 0.85  # of difflib's ratio


def used(words: Sequence[str]) -> set[str]:
    """The names of the placeholders in arguments that `filled` changes, `{{rank}}` included."""
    matches = (match[0] for word in _arguments(words) for match in PLACEHOLDER.finditer(word))
    return {text.strip("{}") for text in matches if not text.startswith("$")}


def filled(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """`words` with this worker's values for their placeholders.

    Raises:
        SystemExit: with an error, if a variable is not set.
    """
    values = env if "RANK" in env else {**SINGLE_WORKER, **env}

    def value(match: re.Match[str]) -> str:
        text = match[0]
        if text.startswith("$"):
            return text
        if text.startswith("{{"):
            return text[1:-1]
        variable = VARIABLES[text[1:-1]]
        if variable not in values:
            sys.exit(
                f"error: {text}: {variable} is not set in this worker; to pass on {text} "
                f"itself, write {{{text}}}"
            )
        return values[variable]

    arguments = _arguments(words)
    return [
        *words[: len(words) - len(arguments)],
        *(PLACEHOLDER.sub(value, word) for word in arguments),
    ]


def _arguments(words: Sequence[str]) -> Sequence[str]:
    """The words after the name of the program."""
    return words[2:] if words[0] in ("-m", "--exec") else words[1:]


def notes(words: Sequence[str]) -> Iterator[str]:
    """A line for each name in braces that is like one of ours, but is not replaced."""
    import difflib  # imported here: workers do not need it

    for name in dict.fromkeys(name for word in _arguments(words) for name in OTHER.findall(word)):
        similar = difflib.get_close_matches(name.lower(), [*VARIABLES, *OTHER_NAMES], 1, LEAST)
        if name not in VARIABLES and similar:
            meant = OTHER_NAMES.get(similar[0], similar[0])
            yield f"{{{name}}} is not replaced; did you mean {{{meant}}}?"


if __name__ == "__main__":
    program = filled(sys.argv[1:], os.environ)
    os.execvp(program[0], program)
