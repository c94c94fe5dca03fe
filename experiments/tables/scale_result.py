"""The outcomes of a scale (size of the experiment), their results on each paper, and their machines and commits."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from experiments.runner.outcome import Outcome
from experiments.runner.scale import SCALES
from experiments.tables.claims import PaperResult, results
from experiments.tables.report import read_outcomes

MACHINE = re.compile(r"of (\d+ cores?, [^,;]+)")
"""Pattern for the machine's processor in the description of a testbed."""


@dataclass(frozen=True)
class ScaleResult:
    """The outcomes of one scale (size of the experiments), with the results on each paper.

    dates: the dates on which the outcomes were made, by target.
    """

    name: str
    outcomes: dict[str, Outcome]
    dates: dict[str, str]
    papers: Sequence[PaperResult]

    @classmethod
    def of(cls, folder: Path, papers: Sequence[Path]) -> "ScaleResult":
        """Read the outcomes in a folder that is named after its scale.

        The outcomes of a folder that does not exist are empty. Raises ValueError if the outcomes do not fit the claims
        of ``papers``.
        """
        outcomes, dates = read_outcomes(folder)
        return cls(folder.name, outcomes, dates, results(papers, outcomes))

    @cached_property
    def description(self) -> str:
        return SCALES[self.name].description

    @property
    def with_runs(self) -> list[str]:
        """Return the targets whose outcomes rest on runs; all other targets have only counts and formulas."""
        return sorted(target for target, outcome in self.outcomes.items() if outcome.runs)

    def told(self, key: str) -> str:
        """Return the distinct values of ``key`` in the provenance of the outcomes, separated by commas."""
        return ", ".join(
            sorted({outcome.provenance[key] for outcome in self.outcomes.values() if key in outcome.provenance})
        )

    @property
    def machines(self) -> str:
        """Return the machines of measured runs and calibrations.

        If nothing was measured, the machine that made the tables is returned.
        """
        found = MACHINE.findall("; ".join(map(self.told, ("clock", "calibrated"))))
        return ", ".join(sorted(set(found))) or self.told("machine")

    @property
    def commits(self) -> str:
        """Return the commits of the code that made the runs, separated by commas."""
        said = {outcome.provenance.get("code of the runs", "none") for outcome in self.outcomes.values()}
        return ", ".join(sorted({commit for some in said for commit in some.split(", ")} - {"none"})) or "none"

    @property
    def span(self) -> str:
        """Return the first and the last day on which outcomes were made, as text."""
        days = sorted({date.partition(" ")[0] for date in self.dates.values()})
        return " to ".join(dict.fromkeys([days[0], days[-1]]))
