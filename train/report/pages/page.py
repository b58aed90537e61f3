"""A subject becomes one self-contained page, its Markdown, and the data of every figure."""

import csv
import json
import logging
from pathlib import Path
from typing import Any

from train.report.data.statistics import numbers
from train.report.data.subject import Subject
from train.report.data.tables import Table
from train.report.pages import drawing, provenance, sections, verdict
from train.report.pages.sections import Section

TEMPLATES = Path(__file__).parent / "templates"
NO_PDF = "report.pdf was left out: {why}; install it with {how}"
PANGO = "apt-get install libpango-1.0-0 libpangoft2-1.0-0 (Debian, Ubuntu)"


def as_text(value: Any, column: str = "") -> str:
    """A value as a person reads it; what is not known is a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if column in ("efficiency", "error"):
        return f"{value:.1%}"
    if column.endswith("_share"):
        return f"{value:.0%}"
    if column.endswith("_bytes") or column == "bytes":
        return f"{value:,.0f}".replace(",", " ")
    if isinstance(value, int):
        return str(value)
    if column == "speedup":
        return f"{value:.2f}"
    if column.startswith("loss") or column == "final_loss":
        return f"{value:.6f}"
    return f"{value:.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def in_readable_units(table: Table, names: list[str]) -> tuple[Table, list[str]]:
    """The table with columns of seconds in milliseconds where all of them are below one second.

    Only what is shown: data/ keeps seconds.
    """
    renamed = {
        name: name.removesuffix("_s") + "_ms"
        for name in names
        if name.endswith("_s") and "per_s" not in name and _is_short(table.column(name))
    }
    rows = [
        {
            renamed.get(name, name): value * 1e3
            if name in renamed and isinstance(value, int | float)
            else value
            for name, value in row.items()
        }
        for row in table.rows
    ]
    columns = [renamed.get(name, name) for name in table.columns]
    return Table(table.name, table.title, columns, rows), [renamed.get(one, one) for one in names]


def _is_short(values: list[Any]) -> bool:
    known = numbers(values)
    return bool(known) and max(map(abs, known)) < 1


def as_anchor(title: str) -> str:
    """What a section is linked by."""
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower())


def as_heading(column: str) -> str:
    """`mean_s` as "mean (s)", which does not break before its unit."""
    column = column.replace("samples_per_s", "samples/s")
    for unit in ("s", "ms", "bytes"):
        if column.endswith(f"_{unit}"):
            return column.removesuffix(f"_{unit}").replace("_", " ") + f"\N{NO-BREAK SPACE}({unit})"
    return column.replace("_", " ")


def html(subject: Subject, parts: list[Section], *, ink: str = "currentColor") -> str:
    """The page; `ink` is the colour of figures' text and axes, which paper has to be told."""
    from markupsafe import Markup

    # Figures are our own drawings, in which all text is outlines.
    figures = {one.title: Markup(one.figure) for one in parts}
    if ink != "currentColor":
        figures = {
            title: Markup(drawing.broad(one).replace("currentColor", ink))
            for title, one in figures.items()
        }
    return _render("report.html.j2", subject, parts, figures=figures)


def markdown(subject: Subject, parts: list[Section]) -> str:
    """The report in Markdown: sentences and tables, without figures."""
    return _render("report.md.j2", subject, parts).rstrip() + "\n"


def _render(template: str, subject: Subject, parts: list[Section], **more: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name == "report.html.j2",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    chosen, defaults = provenance.settings(subject)
    environment.filters |= {
        "as_anchor": as_anchor,
        "as_text": as_text,
        "in_readable_units": in_readable_units,
        "as_heading": as_heading,
        "as_markdown": markdown_table,
    }
    return environment.get_template(template).render(
        subject=subject,
        parts=parts,
        hosts=provenance.hosts(subject),
        versions=provenance.versions(subject),
        chosen=chosen,
        defaults=defaults,
        commands=provenance.commands(subject),
        verdict=verdict.build(subject),
        **more,
    )


def markdown_table(
    table: Table, columns: list[str] | None = None, longest: int | None = None
) -> str:
    """A table in Markdown, its columns padded so that it reads well in a terminal, too.

    Rows beyond the `longest`-th are left to the report's data.
    """
    names = columns or table.columns
    names = [name for name in names if any(row[name] is not None for row in table.rows)]
    table, names = in_readable_units(table, names)
    lines = [
        [as_text(row[name], name).replace("|", "\\|").replace("\n", " ") for name in names]
        for row in table.rows[:longest]
    ]
    widths = [max(len(line[at]) for line in [names, *lines]) for at in range(len(names))]
    rows = [names, ["-" * width for width in widths], *lines]
    text = "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    )
    more = len(table.rows[longest:]) if longest is not None else 0
    where = f"data/{table.name}.csv of the report"
    return text + (f"\n\n{more} more rows are in {where}." if more else "")


def write(subject: Subject, folder: Path) -> tuple[list[Section], str]:
    """Write the whole report into `folder`; its sections, and why there is no PDF if so."""
    parts = sections.build(subject)
    data, figures = folder / "data", folder / "figures"
    for one in (data, figures):
        one.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(html(subject, parts), encoding="utf-8")
    (folder / "report.md").write_text(markdown(subject, parts), encoding="utf-8")
    for part in parts:
        for table in part.data or [part.table]:
            _write_table(table, data)
        if part.figure:
            alone = drawing.alone(part.figure)
            (figures / f"{part.table.name}.svg").write_text(alone, encoding="utf-8")
    problem = write_pdf(html(subject, parts, ink=drawing.PRINT_INK), folder / "report.pdf")
    return parts, problem


def write_pdf(page: str, path: Path) -> str:
    """Write `page` as a PDF; empty, or why it was not written and what to install."""
    try:
        from weasyprint import HTML
    except ImportError:
        return NO_PDF.format(why="WeasyPrint is missing", how="pip install weasyprint")
    except OSError as error:  # it loads pango when imported
        why = "WeasyPrint finds no " + (str(error).split("'")[1] if "'" in str(error) else "pango")
        return NO_PDF.format(why=why, how=PANGO)
    for name in ("weasyprint", "fontTools"):
        logging.getLogger(name).setLevel(logging.ERROR)  # of CSS that only browsers know
    HTML(string=page, url_fetcher=_fetch_nothing).write_pdf(path)
    return ""


def _fetch_nothing(url: str, *args: object, **kwargs: object) -> dict[str, object]:
    """The page holds all that it shows."""
    raise ValueError(f"{url}: a report fetches nothing")


def _write_table(table: Table, folder: Path) -> None:
    with (folder / f"{table.name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, table.columns)
        writer.writeheader()
        writer.writerows(table.rows)
    content = {"title": table.title, "columns": table.columns, "rows": table.rows}
    text = json.dumps(content, indent=1, default=str)
    (folder / f"{table.name}.json").write_text(text + "\n", encoding="utf-8")
