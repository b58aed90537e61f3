"""Read folders and text files that a user names; a missing file, or one not UTF-8, is refused."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from muster.errors import UsageError


def require_folder(folder: Path) -> None:
    """Check that `folder`, from --data-dir, is a folder.

    Raises:
        UsageError: it is not.
    """
    if not folder.is_dir():
        state = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"--data-dir {folder} {state}")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Every line with its number from 1, without its end.

    Raises:
        UsageError: a line is not UTF-8; the message names file and line.
    """
    with path.open("rb") as file:
        # By bytes, so that only a newline ends a line: sentences contain other separators.
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                yield number, line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise UsageError(f"{path}:{number}: not UTF-8 text") from None
