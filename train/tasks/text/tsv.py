"""Read GLUE's own files as examples; a wrong row is refused with its file and line."""

import logging
import math
from pathlib import Path

from muster.errors import UsageError
from train.tasks.sources.files import numbered_lines, require_folder
from train.tasks.text.columns import Examples, Spec


def find(spec: Spec, folder: Path) -> dict[str, Path]:
    """The file of each part of `spec` in `folder`.

    Raises:
        UsageError: the folder or a file is missing; the message names what is expected.
    """
    require_folder(folder)
    files = {name: folder / part.file for name, part in spec.parts.items()}
    missing = [path.name for path in files.values() if not path.is_file()]
    if missing:
        # GLUE's own archive has a folder for each task
        inner = folder / spec.name.upper()
        hint = f"; they are in {inner}" if (inner / missing[0]).is_file() else ""
        raise UsageError(
            f"--data-dir {folder} has no {', '.join(missing)}; {spec.name} is read from "
            f"{', '.join(path.name for path in files.values())}{hint}"
        )
    return files


def read(spec: Spec, path: Path) -> Examples:
    """All labelled examples of one file.

    Raises:
        UsageError: the file is empty, not UTF-8, or holds a wrong header, row or label.
    """
    lines = ((number, line) for number, line in numbered_lines(path) if line.strip())
    if spec.columns is None:
        header = next(lines, (1, ""))[1].split("\t")
        if header == [""]:
            raise UsageError(f"{path}: the file is empty")
        _check_header(spec, path, header)
    else:
        header = list(spec.columns)
    at = [header.index(column) for column in (*spec.text, spec.label)]
    is_tabbed = spec.separator == "\t"
    rows: list[list[str]] = []
    labels: list[float] = []
    skipped = 0
    for number, line in lines:
        # no quoting: sentences contain unpaired quotes
        fields = line.split("\t") if is_tabbed else line.rsplit(spec.separator, len(header) - 1)
        if number == 1 and spec.columns is not None and fields == header:
            continue
        if len(fields) < len(header) and spec.short_rows:
            skipped += 1
            continue
        if len(fields) != len(header):
            raise UsageError(
                f"{path}:{number}: expected {len(header)} fields between {spec.separator!r} "
                f"({', '.join(header)}), got {len(fields)}"
            )
        rows.append([fields[column] for column in at[:-1]])
        labels.append(label(spec, fields[at[-1]].strip(), f"{path}:{number}"))
    if not rows:
        raise UsageError(f"{path}: no examples in it")
    if skipped:
        logging.getLogger(__name__).warning(
            "%s: left out %d rows that lack fields, kept %d", path, skipped, len(rows)
        )
    return Examples(tuple(list(column) for column in zip(*rows, strict=True)), labels)


def _check_header(spec: Spec, path: Path, header: list[str]) -> None:
    missing = [column for column in (*spec.text, spec.label) if column not in header]
    if missing:
        raise UsageError(
            f"{path}:1: the header has no {', '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, header))}"
        )


def label(spec: Spec, text: str, where: str) -> float:
    """The number for a file's `text`: a class, or a score.

    Raises:
        UsageError: it is not a label of the task, or not a number; the message begins with `where`.
    """
    if not spec.is_regression:
        if text not in spec.labels:
            raise UsageError(f"{where}: unknown label {text!r}; known: {', '.join(spec.labels)}")
        return spec.labels.index(text)
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UsageError(f"{where}: expected a number as score, got {text!r}")
    return score
