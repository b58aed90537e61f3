"""Turn a subject into one self-contained page, its Markdown, and the data of every figure."""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from muster import extras
from muster.printable import csv_cell, json_text, without_html
from train.report.data import quantities
from train.report.data.frames import frame, records
from train.report.data.reader import Row, finite, numbers
from train.report.data.subject import Subject
from train.report.data.tables import FIRST
from train.report.pages import drawing, head, provenance, repeat, sections, verdict
from train.report.pages.sections import Section

UNKNOWN = "-"  # the cell of a value that is not known
TEMPLATES = Path(__file__).parent / "templates"
NO_PDF = "note: report.pdf was not written: {why}\ntip: install it with: {how}"
PANGO = "apt-get install libpango-1.0-0 libpangoft2-1.0-0 (Debian, Ubuntu)"
# By the end of a column's name; other columns have as many decimals as `drawing.decimals` gives.
FORMATS = {
    **dict.fromkeys(("efficiency", "error"), "{:.1%}"),
    "speedup": "{:.2f}",
    **dict.fromkeys(("batch_loss", *(f"loss_{n}" for n in range(1, FIRST + 1))), "{:.6f}"),
    "_share": "{:.0%}",
    **dict.fromkeys(("difference", "difference_to_it", "drift"), "{:.1e}"),
}


MOST_BESIDE = 7  # columns of a table beside its figure on a wide screen
MOST_HALF = 5  # columns of a table in half of the page, on paper too
MOST_PRINTED = 10  # columns of a table on paper; with more it would not fit on the page


class Column(NamedTuple):
    """A column as a person reads it."""

    name: str
    is_number: bool
    cells: list[str]


def visible_columns(
    table: pd.DataFrame | list[Row],
    columns: Iterable[str] | None = None,
) -> list[Column]:
    """The columns that have at least one known value.

    All seconds of a table are in one unit, and memory is in MiB; data/ keeps seconds and bytes.
    """
    table = frame(table) if isinstance(table, list) else table
    values = {
        name: list(table[name])
        for name in (table.columns if columns is None else columns)
        if name in table
    }
    units = quantities.units(values)
    found = []
    for name, cells in values.items():
        if all(as_text(value) == UNKNOWN for value in cells):
            continue
        is_number = bool(numbers(cells))
        if unit := units.get(name):
            name = f"{name.rpartition('_')[0]}_{unit.name}"
            cells = [unit.convert(value) for value in cells]
        is_time = bool(unit and unit.name in ("s", "ms"))
        places = drawing.decimals(cells, is_time=is_time) if name != "value" else None
        found.append(Column(name, is_number, [as_text(value, name, places) for value in cells]))
    return found


def as_text(value: Any, column: str = "", places: int | None = None) -> str:
    """A value as a person reads it, with the decimals of its column; an unknown one is a dash."""
    if value is None or value is pd.NA or finite(value) is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if how := next((how for end, how in FORMATS.items() if column.endswith(end)), ""):
        return how.format(value) if value or "e" not in how else "0"
    if isinstance(value, int) and not column.endswith("bytes"):
        return str(value)
    return drawing.in_digits(value, places).replace("\N{NO-BREAK SPACE}", " ")


def as_anchor(title: str) -> str:
    """The link target of a section."""
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower())


def as_heading(column: str) -> str:
    """`mean_s` as "mean (s)", without a line break before the unit."""
    column = column.replace("speedup", "speed-\N{WORD JOINER}up")
    column = column.replace("samples_per_s", "samples/\N{WORD JOINER}s")
    for unit in ("s", "ms", "bytes", "MiB"):
        if column.endswith(f"_{unit}"):
            return column.removesuffix(f"_{unit}").replace("_", " ") + f"\N{NO-BREAK SPACE}({unit})"
    return column.replace("_", " ")


def as_plain_heading(column: str) -> str:
    """The heading of a column for a terminal, which may show word joiners and no-break spaces."""
    return as_heading(column).replace("\N{WORD JOINER}", "").replace("\N{NO-BREAK SPACE}", " ")


def layout(part: Section) -> str:
    """The layout of a section: which parts are side by side; "" places all parts top to bottom.

    On a wide screen, "beside" places a table beside its figure, and "half" uses half of the page.
    On paper, "slim" places a table beside its figure, and "led" the words beside the figure.
    """
    if part.is_folded:
        return "half"
    columns = len(visible_columns(part.rows, part.shown))
    if len(part.figures) != 1:
        return "half" if not part.figures and columns <= MOST_HALF else ""
    if part.in_appendix or not part.has_table:
        return "led"
    if columns <= MOST_HALF:
        return "slim beside"
    return "led beside" if columns <= MOST_BESIDE else "led"


def html(subject: Subject, parts: list[Section], *, ink: str = "currentColor") -> str:
    """The page; `ink` is the colour of figures' text and axes, which must be explicit on paper."""
    return _render("report.html.j2", subject, parts, ink=ink)


def markdown(subject: Subject, parts: list[Section]) -> str:
    """The report in Markdown: its tables and lines, without figures."""
    return _render("report.md.j2", subject, parts).rstrip() + "\n"


def beginning(subject: Subject) -> str:
    """The first part of `markdown`: what ran, the table of all runs, and the warnings."""
    return _render("beginning.md.j2", subject, []).rstrip() + "\n"


def _render(template: str, subject: Subject, parts: list[Section], **more: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name == "report.html.j2",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for convert in (as_anchor, as_heading, layout, visible_columns, without_html):
        environment.filters[convert.__name__] = convert
    environment.filters["as_markdown"] = partial(markdown_table, heading=as_plain_heading)
    on_page = [part for part in parts if part.is_on_page]
    what: dict[str, Any] = {"subject": subject, "parts": on_page, "verdict": verdict.build(subject)}
    what |= {"ended_at": head.ended_at(subject), "provenance": provenance, "repeat": repeat}
    what["most_printed"] = MOST_PRINTED
    return environment.get_template(template).render(what, **more)


def markdown_table(
    table: pd.DataFrame | list[Row],
    columns: Iterable[str] | None = None,
    heading: Callable[[str], str] = str,
) -> str:
    """A table in Markdown, with padded columns, so that it is also readable in a terminal."""
    padded = []
    for column in visible_columns(table, columns):
        name, *cells = (
            without_html(cell).replace("|", "\\|").replace("\n", " ")
            for cell in (heading(column.name), *column.cells)
        )
        width = max(map(len, [name, *cells]))
        padded.append([cell.ljust(width) for cell in (name, "-" * width, *cells)])
    return "\n".join("| " + " | ".join(row) + " |" for row in zip(*padded, strict=True))


def write(subject: Subject, folder: Path) -> tuple[list[Section], str]:
    """Write the whole report into `folder`; return its sections, and why there is no PDF, or ""."""
    parts = sections.build(subject)
    data, figures = folder / "data", folder / "figures"
    for subfolder in (data, figures):
        subfolder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(html(subject, parts), encoding="utf-8")
    (folder / "report.md").write_text(markdown(subject, parts), encoding="utf-8")
    for part in parts:
        for name, table in {part.name: part.table, **part.data}.items():
            cells = table.map(csv_cell).rename(columns=csv_cell)
            cells.to_csv(data / f"{name}.csv", index=False)
            content = {"title": part.title, "columns": list(table), "rows": records(table)}
            text = json_text(content, indent=1, default=str)
            (data / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        for name, svg in part.figures.items():
            (figures / f"{name}.svg").write_text(drawing.alone(svg), encoding="utf-8")
    problem = write_pdf(html(subject, parts, ink=drawing.PRINT_INK), folder / "report.pdf")
    return parts, problem


def write_pdf(page: str, path: Path) -> str:
    """Write `page` as a PDF; return "", or why it was not written and what to install."""
    try:
        from weasyprint import HTML
    except ImportError:
        how = extras.install_command(extras.REPORT, ["weasyprint"])
        return NO_PDF.format(why="WeasyPrint is missing", how=how)
    except OSError as error:  # WeasyPrint loads Pango when it is imported
        why = "WeasyPrint cannot find " + (
            str(error).split("'")[1] if "'" in str(error) else "pango"
        )
        return NO_PDF.format(why=why, how=PANGO)
    for name in ("weasyprint", "fontTools"):
        logging.getLogger(name).setLevel(logging.ERROR)  # about CSS for browsers
    HTML(string=page, url_fetcher=_fetch_nothing).write_pdf(path)
    return ""


def _fetch_nothing(url: str, *args: object, **kwargs: object) -> dict[str, object]:
    """Refuse to load anything: the page contains everything that it shows."""
    raise ValueError(f"{url}: a report must not load anything")
