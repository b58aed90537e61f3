"""The page as a PDF; where the library or its parts are missing, one line says what to install."""

import logging
from pathlib import Path

HINT = "report.pdf was left out: {why}; install it with {how}"
PANGO = "apt-get install libpango-1.0-0 libpangoft2-1.0-0 (Debian, Ubuntu)"


def write(html: str, path: Path) -> str:
    """Write `path`; empty, or why it was not written."""
    try:
        from weasyprint import HTML
    except ImportError:
        return HINT.format(why="WeasyPrint is missing", how="pip install weasyprint")
    except OSError as error:  # it loads pango when imported
        why = "WeasyPrint finds no " + (str(error).split("'")[1] if "'" in str(error) else "pango")
        return HINT.format(why=why, how=PANGO)
    logging.getLogger("weasyprint").setLevel(logging.ERROR)  # CSS that only browsers know
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    HTML(string=html, url_fetcher=_nothing).write_pdf(path)
    return ""


def _nothing(url: str, *args: object, **kwargs: object) -> dict[str, object]:
    """The page holds all that it shows; nothing is fetched for it."""
    raise ValueError(f"{url}: a report fetches nothing")
