"""The section of the report that a target writes."""

from pathlib import Path

from experiments.tables.draw import Panel, draw
from experiments.tables.outcome import FAILS, HOLDS, PARTLY, UNDECIDED, Figure, Table
from experiments.tables.outcome import WordedFinding as Finding


class Section:
    """The tables, figures, findings and notes of a target."""

    def __init__(self, name: str, folder: Path | None):
        self.name, self.folder = name, folder
        self.tables: list[Table] = []
        self.figures: list[Figure] = []
        self.findings: list[Finding] = []
        self.notes: list[str] = []

    def table(self, caption: str, headers: list[str], rows: list[list]):
        self.tables.append(Table(caption, headers, [[str(cell) for cell in row] for row in rows]))

    def figure(self, caption: str, panels: list[Panel], times: bool = True):
        """times: whether it shows some, so that the simulator's error belongs under it."""
        if self.folder is not None:
            svg = f"{self.name}-{len(self.figures) + 1}.svg"
            draw(self.folder / svg, panels)
            self.figures.append(Figure(caption, svg, times))

    def note(self, text: str):
        self.notes.append(text)

    def finding(self, claim: str, measured: str, accounting: str, cases: dict[str, bool | None], reason: str = ""):
        """cases: by condition, whether the claim holds there; None where it cannot be said. reason: why it does not."""
        found = verdict(cases)
        self.findings.append(Finding(claim, measured, accounting, found, "" if found == HOLDS else reason))


def verdict(cases: dict[str, bool | None]) -> str:
    """Return whether a claim holds; it does only if that was decided in all cases."""
    holding = [condition for condition, holds in cases.items() if holds]
    undecided = [condition for condition, holds in cases.items() if holds is None]
    if len(holding) == len(cases):
        return HOLDS
    if len(undecided) == len(cases):
        return f"{UNDECIDED}: the target accuracy was not reached"
    if not holding:
        return FAILS
    return f"{PARTLY} {'; '.join(holding)}" + (f" (not decided: {'; '.join(undecided)})" if undecided else "")
