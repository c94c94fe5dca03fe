"""Helpers for Markdown pages: the rendering of templates, and texts as cells of tables."""

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.tables import sentences, wording


def render(template: str, **values) -> str:
    """Return a template of this folder, rendered with ``values``, without double empty lines."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"cell": cell, "one_line": one_line}
    environment.globals |= {"wording": wording, "sentences": sentences}
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(template).render(**values))


def one_line(text: str) -> str:
    """Return a text of several lines as one line, without anything that Markdown takes for HTML."""
    return " ".join(text.split()).replace("<", "&lt;")


def cell(text: str) -> str:
    """Return a text as a cell of a Markdown table."""
    return one_line(text).replace("|", "\\|")
