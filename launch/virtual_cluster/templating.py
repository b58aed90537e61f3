"""Files for daemons come from templates; a name without a value is an error, not a blank."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render(template: str, **values: Any) -> str:
    """The text of `templates/TEMPLATE.j2` with `values` filled in."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # these are no web pages
    )
    return environment.get_template(f"{template}.j2").render(**values)
