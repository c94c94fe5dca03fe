"""Helpers for Markdown pages: they render templates, and turn texts into cells of tables."""

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.tables import sentences, wording


def render(template: str, **values) -> str:
    """Return the text of a template in this folder, rendered with ``values``, without repeated empty lines."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"cell": cell, "one_line": one_line}
    environment.globals |= {"wording": wording, "sentences": sentences}
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(template).render(**values))


def one_line(text: str) -> str:
    """Return ``text`` on one line, with "<" escaped so that Markdown takes nothing for HTML."""
    return " ".join(text.split()).replace("<", "&lt;")


def cell(text: str) -> str:
    """Return ``text`` as a cell of a Markdown table, on one line and with "|" escaped."""
    return one_line(text).replace("|", "\\|")
