"""Make grids: products of named values, in which each point has a name that suits a folder.

    python -m launch.studies.grid 7 workers=1,2,4 precision=fp32,bf16

prints the number of points and the values of point 7, for a shell script.
"""

import hashlib
import itertools
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from configs import cli
from muster.errors import UsageError, refuse
from muster.terminal import TIP
from muster.worker import placeholders

VALUE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
PLACEHOLDER = re.compile(
    r"(?<![${]){([\w.-]+)}(?!})", re.ASCII
)  # for a value, in a program's arguments
UNSAFE = re.compile(r"[^\w.+=-]", re.ASCII)  # not allowed in the name of a run and its folder
LONGEST = 100
MOST_RUNS = 10_000
DIGITS = 8


def points(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each combination of the values of a block; the last name's values change fastest.

    Raises:
        UsageError: there are too many combinations.
    """
    refuse_too_many_runs(size_of(block))
    values = [value if isinstance(value, list) else [value] for value in block.values()]
    for point in itertools.product(*values):
        yield dict(zip(block, point, strict=True))


def size_of(block: Mapping[str, Any]) -> int:
    """The number of a block's points."""
    return math.prod(len(value) for value in block.values() if isinstance(value, list))


def refuse_too_many_runs(count: int) -> None:
    """Refuse more than 10000 runs, since nobody would wait for so many.

    Raises:
        UsageError: there are more runs.
    """
    if count > MOST_RUNS:
        raise UsageError(f"{count} runs are too many (at most {MOST_RUNS})\ntip: give fewer values")


def name_of(point: Mapping[str, Any]) -> str:
    """The name of a point, such as `lr-1e-4_seed-1`; `run` for a point without values."""
    return UNSAFE.sub("-", "_".join(f"{name}-{value}" for name, value in point.items())) or "run"


def names_of(of_points: Sequence[Mapping[str, Any]], prefix: str) -> list[str]:
    """A different name for each point; a long name ends with a digest of the point's values."""
    plain = [f"{prefix}-{name_of(point)}" for point in of_points]
    count = Counter(plain)
    return [
        name
        if len(name) <= LONGEST and count[name] == 1
        else f"{name[: LONGEST - DIGITS - 1]}-{digest(point)}"
        for name, point in zip(plain, of_points, strict=True)
    ]


def digest(value: Any) -> str:
    """Eight hexadecimal digits that identify a value, which may be any JSON value."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:DIGITS]


def read(texts: Sequence[str], flag: str = "--over ") -> dict[str, list[str]]:
    """Read a block from texts such as `lr=1e-4,3e-4`; `;` separates values that contain commas.

    Raises:
        UsageError: a text has another form, or a name or value is given twice; all problems are
            listed.
    """
    block: dict[str, list[str]] = {}
    problems = []
    for text in texts:
        name, equals, rest = text.partition("=")
        values = rest.split(";" if ";" in rest else ",")
        if not equals or not VALUE_NAME.fullmatch(name):
            problems.append(
                f"{flag}{text}: expected NAME=VALUE,VALUE, with commas and no spaces between values"
                + (f"{TIP}a program goes after --" if flag else "")
            )
        elif not all(values):
            problems.append(f"{flag}{text}: {'a value' if any(values) else 'the list'} is empty")
        elif any(is_same_flag(name, other) for other in block):
            problems.append(
                f"{flag}{text}: {name} is given twice"
                f"\ntip: separate its values with commas: {name}=VALUE,VALUE"
            )
        else:
            problems += [
                f"{flag}{text}: {value} is given twice, so two runs would be the same"
                for value, count in Counter(values).items()
                if count > 1
            ]
            block[name] = values
    refuse(problems)
    return block


def placeholder_names(words: Sequence[str], names: Collection[str]) -> set[str]:
    """The `names` that occur in `words` as `{NAME}`.

    `{{NAME}}` and `${NAME}` do not count, nor do placeholders that each worker replaces (`{rank}`).
    """
    found = {name for word in words for name in PLACEHOLDER.findall(word)}
    return found.intersection(names) - placeholders.VARIABLES.keys()


def with_values(words: Sequence[str], point: Mapping[str, str]) -> list[str]:
    """`words` with a point's values: each in place of its placeholder, or as a flag at the end."""
    in_place = {name: point[name] for name in placeholder_names(words, point)}
    filled = [
        PLACEHOLDER.sub(lambda match: in_place.get(match[1], match[0]), word) for word in words
    ]
    left = [(name, value) for name, value in point.items() if name not in in_place]
    return [*filled, *(word for name, value in left for word in (f"--{name}", value))]


def is_same_flag(name: str, other: str) -> bool:
    """Whether two names mean the same flag."""
    return name.replace("_", "-") == other.replace("_", "-")


def main() -> int:
    match sys.argv[1:]:
        case [index, *texts] if index.isdigit():
            all_points = list(points(read(texts, flag="")))
            count = len(all_points)
            if int(index) >= count:
                raise UsageError(
                    f"array index {index}, but the grid has {count} points: --array=0-{count - 1}"
                )
            print(count, *all_points[int(index)].values())
            return 0
    raise UsageError("usage: python -m launch.studies.grid INDEX NAME=VALUE,VALUE ...")


if __name__ == "__main__":
    cli.run(main)
