"""What counts as a line that holds code."""

from tests.code_lines import by_folder, code_lines

TEXT = '''"""A page
of text."""

import os  # a comment


def f(a,
      b):
    """Says something."""
    # a reason
    return """one
two"""
'''


def test_blank_lines_comments_and_docstrings_do_not_count():
    assert code_lines(TEXT) == 1 + 2 + 2


def test_files_count_for_their_folder(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("x.py", "a/y.py", "a/b/z.py"):
        (tmp_path / name).write_text("x = 1\n")
    assert by_folder(tmp_path) == {".": 1, "a": 2}
