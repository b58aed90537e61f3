"""Foreign text moves no cursor, is not evaluated by a spreadsheet, and adds no HTML tag."""

import pytest
from hypothesis import strategies as st

from muster.printable import csv_cell, on_one_line, printable, without_html
from tests.fuzzing import fuzzed


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\a", r"\x1b]0;title\x07"),
        ("50 %\r100 %", r"50 %\r100 %"),
        ("a\x9b2Jb\u202ec\u2028", r"a\x9b2Jb\u202ec\u2028"),
        ("caf\udce9.csv", r"caf\udce9.csv"),
        ("caf\xe9 \u65e5\u672c \xa0 \U0001f600", "caf\xe9 \u65e5\u672c \xa0 \U0001f600"),
    ],
)
def test_escapes_are_shown_and_letters_stay(text, shown):
    assert printable(text) == on_one_line(text) == shown


def test_lines_stay_lines_but_where_a_field_is_one():
    assert printable("a\n\tb") == "a\n        b"
    assert on_one_line("a\nb") == r"a\nb"


@fuzzed(st.text(), examples=200)
def test_any_text_can_be_printed_on_one_line(text):
    assert on_one_line(on_one_line(text)) == on_one_line(text)
    assert len(on_one_line(text).splitlines()) <= 1
    on_one_line(text).encode()


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd", "-2+3", "@sum(A1)", "=", "-", "-0.5", "+1e-3", "a"]
)
def test_a_formula_is_a_text_and_a_number_a_number(text):
    is_formula = text in ("=1+1", "+cmd", "-2+3", "@sum(A1)")
    assert csv_cell(text) == ("'" if is_formula else "") + text
    assert csv_cell(-0.5) == -0.5 and csv_cell(None) is None


def test_a_tag_is_shown_and_a_comparison_stays():
    assert without_html("<img src=x> 1 < 2 </b> <!--") == "&lt;img src=x> 1 < 2 &lt;/b> &lt;!--"
