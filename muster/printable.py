"""Texts of others, such as programs, nodes and other users, in a form that a terminal only shows.

A text may have escapes that colour or clear a terminal, set its title, or move its cursor over
other lines. What a program itself prints is passed on as it is: its colours are its own.
"""


def printable(text: object) -> str:
    """A text with escapes, as in Python, for all that is no letter, sign or end of a line."""
    plain = str(text).expandtabs()
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in plain)


def on_one_line(text: object) -> str:
    """The same for a field that is one line: an end of a line is shown as an escape, too."""
    return printable(text).replace("\n", "\\n")
