"""What counts as a line that holds code."""

from tests.code_lines import code_lines

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
