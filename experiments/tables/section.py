"""The section of the report that a target (table or figure of a paper) writes."""

from pathlib import Path

from experiments.runner.decide import corrected
from experiments.runner.outcome import BreakEven, Case, Figure, Finding, Table
from experiments.tables.draw import Panel, draw


class Section:
    """The tables, figures, findings and notes of a target. folder: the folder for its figures."""

    def __init__(self, name: str, folder: Path):
        self.name, self.folder = name, folder
        self.tables: list[Table] = []
        self.figures: list[Figure] = []
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.break_evens: list[BreakEven] = []

    def table(self, caption: str, headers: list[str], rows: list[list]):
        self.tables.append(Table(caption, headers, [[str(cell) for cell in row] for row in rows]))

    def figure(self, caption: str, panels: list[Panel], times: bool = True, shows: str = "times"):
        """Draw a figure, and add it to the section.

        times: whether the figure shows times, so that the simulator's error belongs in its caption. shows: the shown
        quantity, as in `Figure`.
        """
        svg = f"{self.name}-{len(self.figures) + 1}.svg"
        draw(self.folder / svg, panels)
        self.figures.append(Figure(caption, svg, times, shows))

    def note(self, text: str):
        self.notes.append(text)

    def break_even(self, *found: BreakEven):
        """Add break-evens of a method, for the figure of the break-evens of all methods."""
        self.break_evens += found

    def finding(self, claim: str, accounting: str, cases: list[Case], reason: str = ""):
        """Add the finding (comparisons and verdict) on a claim to the section.

        claim: the claim's id. accounting: how time, bytes or accuracy were counted, for how many ranks and on which
        runs. reason: why the claim does not hold, if it does not.
        """
        self.findings.append(Finding(claim, accounting, corrected(cases), reason))
