"""Layout of tables of text for terminals, in Markdown and in LaTeX. The first column of a table has the names of the
table's rows."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from tabulate import tabulate

from grsgd.runs.numbers import UNKNOWN
from grsgd.text import printable

GAP = 2
"""Number of spaces between two columns."""
MIN_NAME = 12
"""Smallest number of characters to which the names of rows are shortened."""


class TextColumn(NamedTuple):
    """Column of a table, with cells of text. ``is_number`` says whether the cells are aligned right."""

    name: str
    title: str
    cells: list[str]
    is_number: bool = True

    @property
    def width(self) -> int:
        return max(len(text) for text in [self.title, *self.cells])


def markdown(columns: Sequence[TextColumn]) -> str:
    """Return all columns as a table that is readable as plain text and as Markdown."""
    return _table([column._replace(cells=[_escaped(cell) for cell in column.cells]) for column in columns], "pipe")


def _escaped(cell: str) -> str:
    return printable(cell).replace("|", "\\|")


def latex(columns: Sequence[TextColumn]) -> str:
    """Return all columns as a table for a LaTeX document that uses the package booktabs."""
    cells = [
        [printable(cell).replace(UNKNOWN, "---").replace("–", "--") for cell in column.cells] for column in columns
    ]
    plain = [column._replace(cells=one) for column, one in zip(columns, cells, strict=True)]
    # LaTeX reads a bracket or star at the beginning of a row as an argument of the line break before it.
    table = re.sub(r"^ ([\[*])", r" {}\1", _table(plain, "latex_booktabs"), flags=re.MULTILINE)
    return "% \\usepackage{booktabs}\n" + table.replace("±", r"$\pm$")


def fitted(columns: Sequence[TextColumn], width: int, by_importance: Sequence[str]) -> tuple[str, list[str]]:
    """Return a table whose lines have at most ``width`` characters, and the names of the columns that were left out.

    ``by_importance`` has the names of the columns, the most important first. The columns at the end of
    ``by_importance`` are left out first.
    """
    rows, *others = _short(columns, width)
    room, kept = width - rows.width, set()
    for column in sorted(others, key=lambda column: by_importance.index(column.name)):
        if column.width + GAP <= room:
            room -= column.width + GAP
            kept.add(column.name)
    shown = [column for column in others if column.name in kept]
    return _plain([rows, *shown]), [column.name for column in others if column.name not in kept]


def stacked(columns: Sequence[TextColumn], width: int) -> str:
    """Return all columns in several tables, one below the other, whose lines have at most ``width`` characters."""
    rows, *others = _short(columns, width)
    tables = [[rows]]
    for column in others:
        taken = sum(one.width + GAP for one in tables[-1])
        if len(tables[-1]) > 1 and taken + column.width > width:
            tables.append([rows])
        tables[-1].append(column)
    return "\n\n".join(_plain(one) for one in tables)


def _short(columns: Sequence[TextColumn], width: int) -> list[TextColumn]:
    """Return the columns with cells of one line, shortened to fit into ``width`` characters. The names of the rows take
    at most half of ``width``."""
    rows, *others = [column._replace(cells=[printable(cell) for cell in column.cells]) for column in columns]
    rows = _cut(rows, max(width // 2, MIN_NAME))
    room = max(width - rows.width - GAP, MIN_NAME)
    return [rows, *(column if column.is_number else _cut(column, room) for column in others)]


def _cut(column: TextColumn, most: int) -> TextColumn:
    return column._replace(cells=[shortened(cell, most) for cell in column.cells])


def shortened(text: str, most: int) -> str:
    """Return ``text`` shortened to ``most`` characters, by leaving out characters in the middle."""
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[-end:]}"


def _plain(columns: Sequence[TextColumn]) -> str:
    """Return ``columns`` as a table of plain text. The header and the dashes below the header are passed to tabulate as
    ordinary rows, because tabulate makes columns with a header wider."""
    cells = list(zip(*([one.title, "-" * one.width, *one.cells] for one in columns), strict=True))
    text = tabulate(cells, tablefmt="plain", colalign=_alignment(columns), disable_numparse=True)
    return "\n".join(line.rstrip() for line in text.splitlines())


def _table(columns: Sequence[TextColumn], form: str) -> str:
    cells = list(zip(*(column.cells for column in columns), strict=True))
    titles = [column.title for column in columns]
    return tabulate(cells, titles, tablefmt=form, colalign=_alignment(columns), disable_numparse=True)


def _alignment(columns: Sequence[TextColumn]) -> list[str]:
    return ["right" if column.is_number else "left" for column in columns]
