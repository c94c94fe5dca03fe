"""The section of the report that one target (table or figure of a paper) fills."""

from pathlib import Path

from experiments.runner.decide import corrected
from experiments.runner.outcome import BreakEven, Case, Figure, Finding, Table
from experiments.tables.draw import Panel, draw


class Section:
    """The tables, figures, findings and notes of a target (table or figure of a paper).

    folder: the folder for the section's figures.
    """

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
        """Draw the panels as a figure, and add the figure to the section.

        times: True if the figure shows times, so that its caption has to state the simulator's error. shows: the shown
        quantity, as in `Figure`.
        """
        svg = f"{self.name}-{len(self.figures) + 1}.svg"
        draw(self.folder / svg, panels)
        self.figures.append(Figure(caption, svg, times, shows))

    def note(self, text: str):
        self.notes.append(text)

    def break_even(self, *found: BreakEven):
        """Add break-evens of a method to the section; the figure of all break-evens shows them."""
        self.break_evens += found

    def finding(self, claim: str, accounting: str, cases: list[Case], reason: str = ""):
        """Add the finding on a claim (comparisons and their verdict) to the section.

        claim: the id of the claim. accounting: how time, bytes or accuracy were counted, for how many ranks and on
        which runs. reason: the reason why the claim does not hold, if it does not.
        """
        self.findings.append(Finding(claim, accounting, corrected(cases), reason))
