"""How many lines hold code, by folder: `python -m tests.code_lines`.

Neither blank lines, nor comments, nor docstrings count.
"""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
SOURCE = ("configs", "launch", "muster", "train")
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """The lines of a Python file that hold code."""
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if first is not None and ast.get_docstring(node, clean=False) is not None:
                held.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(held)


def main() -> None:
    total = 0
    for name in (*SOURCE, "tests"):
        folders: Counter[str] = Counter()
        for path in (REPOSITORY / name).rglob("*.py"):
            parts = path.relative_to(REPOSITORY / name).parts
            folder = parts[0] if len(parts) > 1 else "."
            folders[folder] += code_lines(path.read_text(encoding="utf-8"))
        print(f"{name:<24}{folders.total():>7,}")
        for folder, lines in sorted(folders.items()):
            print(f"  {folder:<22}{lines:>7,}")
        total += folders.total() if name in SOURCE else 0
    print(f"{'all but tests':<24}{total:>7,}")


if __name__ == "__main__":
    main()
