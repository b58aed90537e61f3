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
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(text: str) -> int:
    """The lines of a Python file that hold code."""
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.string.strip() and token.type != tokenize.COMMENT:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            held.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(held)


def main() -> None:
    totals = {}
    for name in (*SOURCE, "tests"):
        folders: Counter[str] = Counter()
        for path in (REPOSITORY / name).rglob("*.py"):
            folder, *below = path.relative_to(REPOSITORY / name).parts
            folders[folder if below else "."] += code_lines(path.read_text(encoding="utf-8"))
        totals[name] = folders.total()
        print(f"{name:<24}{totals[name]:>7,}")
        for folder, lines in sorted(folders.items()):
            print(f"  {folder:<22}{lines:>7,}")
    print(f"{'all but tests':<24}{sum(totals.values()) - totals['tests']:>7,}")


if __name__ == "__main__":
    main()
