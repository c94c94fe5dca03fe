"""The outcome of a table or figure of a paper: its parts, and what it says about the paper's claims. Kept as JSON."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from grsgd.files import atomic_write
from grsgd.text import printable

HOLDS, PARTLY, FAILS, UNDECIDED = "holds", "holds only under", "does not hold", "not decided"
"""What a verdict begins with; after ``PARTLY`` comes the condition, after ``UNDECIDED`` why."""


@dataclass(frozen=True)
class Table:
    """``headers`` and ``rows`` are texts, ready to print; ``caption`` says what a row is, and the units."""

    caption: str
    headers: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Figure:
    """``svg``: a file name, in the folder of the outcome. ``times``: whether it shows some."""

    caption: str
    svg: str
    times: bool = True


@dataclass(frozen=True)
class Finding:
    """One claim held against what was measured here.

    claim: an id of the paper's claims.toml. measured: the figure, with its unit and range. accounting: how time or
    bytes were counted, for how many ranks and on what. verdict: begins with one of the four words above. reason: why,
    if the claim does not simply hold.
    """

    claim: str
    measured: str
    accounting: str
    verdict: str
    reason: str = ""


@dataclass(frozen=True)
class Outcome:
    """All about one target. notes: what a reader must know to read it, such as what was computed and not measured."""

    target: str
    title: str
    paper: str
    scale: str
    command: str
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    provenance: dict[str, str] = field(default_factory=dict)
    """Machine, commits of the runs, sources of times, configurations."""
    runs: list[dict[str, str]] = field(default_factory=list)
    """Every run that went into it: ``command``, ``file``, ``commit``, ``source``."""

    def save(self, folder: Path):
        """Write it as a whole or not at all."""
        with atomic_write(folder / f"{self.target}.json") as temporary:
            temporary.write_text(json.dumps(asdict(self), indent=1))


def load(path: Path) -> Outcome:
    """Raises ValueError if the file does not hold one."""
    try:
        content = json.loads(path.read_text())
        content["tables"] = [Table(**table) for table in content["tables"]]
        content["figures"] = [Figure(**figure) for figure in content["figures"]]
        content["findings"] = [Finding(**finding) for finding in content["findings"]]
        return Outcome(**content)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged, make its target again: {printable(str(error))}") from None
