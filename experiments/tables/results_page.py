"""docs/results.md: what the scales that were made have given, for readers who have installed nothing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.tables import wording
from experiments.tables.claims import KINDS, METHODS, ClaimResult, PaperResult, results
from experiments.tables.outcome import Case, Outcome
from experiments.tables.report import case_drawing, read_outcomes
from experiments.tables.scale import DESK, SCALES, SMOKE
from grsgd.files import atomic_write

SHOWN = (DESK, SMOKE)
"""The scales that the page has, the one that says most first."""
MOST_BYTES = 200_000
"""Of a picture: larger ones are left to the page of the scale."""


@dataclass(frozen=True)
class ScaleResult:
    """The outcomes at a scale. dates: when they were made, by target."""

    name: str
    outcomes: dict[str, Outcome]
    dates: dict[str, str]
    papers: Sequence[PaperResult]

    @cached_property
    def description(self) -> str:
        return SCALES[self.name].description

    def told(self, key: str) -> str:
        """Return what the outcomes say under a key of their provenance."""
        return ", ".join(
            sorted({outcome.provenance[key] for outcome in self.outcomes.values() if key in outcome.provenance})
        )

    @property
    def commits(self) -> str:
        """The commits of the runs."""
        said = {outcome.provenance.get("code of the runs", "none") for outcome in self.outcomes.values()}
        return ", ".join(sorted({commit for some in said for commit in some.split(", ")} - {"none"})) or "none"

    @property
    def span(self) -> str:
        """When it was made."""
        days = sorted({date.partition(" ")[0] for date in self.dates.values()})
        return " to ".join(dict.fromkeys([days[0], days[-1]]))

    @property
    def missing(self) -> list[str]:
        """The targets that are not made."""
        named = dict.fromkeys(target for paper in self.papers for target in paper.targets)
        return [target for target in named if target not in self.outcomes]


def build(made: Path, papers: Sequence[Path], docs: Path) -> Path:
    """Write results.md, and its pictures in the folder results, into ``docs``; return its path.

    made: the folder with a folder of outcomes for each scale. Raises ValueError if no scale has outcomes, and for those
    that do not fit the claims of ``papers``.
    """
    scales = [scale for name in SHOWN if (scale := _scale(made / name.name, papers)).outcomes]
    if not scales:
        raise ValueError(f"{made}: nothing was made at the scales {', '.join(scale.name for scale in SHOWN)}")
    pictures = docs / "results"
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob("*.svg"):
        old.unlink()
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"symbol": wording.symbol, "cell": cell}
    environment.globals |= {"wording": wording, "case_text": case_text, "number": number}
    environment.globals |= {"kinds": KINDS, "methods": METHODS}
    page = environment.get_template("results.md.j2").render(
        scales=scales,
        papers=[_told(index, scales, made, pictures) for index in range(len(papers))],
    )
    path = docs / "results.md"
    with atomic_write(path) as temporary:
        temporary.write_text(re.sub(r"\n{3,}", "\n\n", page), encoding="utf-8")
    return path


def _scale(folder: Path, papers: Sequence[Path]) -> ScaleResult:
    outcomes, dates = read_outcomes(folder)
    return ScaleResult(folder.name, outcomes, dates, results(papers, outcomes))


def _told(index: int, scales: Sequence[ScaleResult], made: Path, pictures: Path) -> dict:
    """Return what the page says of a paper: its results at each scale, and pictures of those at the first that has its
    main claim."""
    by_scale = {scale.name: scale.papers[index] for scale in scales}
    first = next(iter(by_scale.values()))
    main = next((name for name, paper in by_scale.items() if paper.headline.found), None)
    shown = by_scale[main].headline if main else None
    return {
        "about": first.about,
        "by_scale": by_scale,
        "own": list(zip(*(paper.own for paper in by_scale.values()), strict=True)),
        "expected": list(zip(*(paper.expected for paper in by_scale.values()), strict=True)),
        "setup": first.setup,
        "main_scale": main,
        "main": shown,
        "pictures": _pictures(first.id, shown, made / main, pictures) if main else [],
    }


def _pictures(paper: str, result: ClaimResult, folder: Path, pictures: Path) -> list[tuple[str, str]]:
    """Write the cases of a claim, and the first figure that is small enough, as pictures; return names and captions."""
    written = []
    if drawing := case_drawing(result):
        written.append((f"{paper}-cases.svg", "Cases of the main claim: estimates with 95 % intervals.", drawing))
    for figure in (figure for outcome, _ in result.found for figure in outcome.figures):
        drawing = (folder / figure.svg).read_text(encoding="utf-8")
        if len(drawing.encode()) < MOST_BYTES:
            written.append((figure.svg, figure.caption, drawing))
            break
    for name, _, drawing in written:
        (pictures / name).write_text(drawing, encoding="utf-8")
    return [(name, caption) for name, caption, _ in written]


def number(claim: dict) -> str:
    """Return the paper's number of a claim, empty if there is none."""
    said = wording.paper_figure(claim)
    return "" if said == wording.NO_NUMBER else said


def cell(text: str) -> str:
    """Return a text as a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def case_text(case: Case) -> str:
    """Return a case in a cell; what is not counted has no verdict."""
    is_counted = case.kind == wording.EVIDENCE
    estimate = wording.estimate(case) if is_counted or case.estimate is not None else ""
    words = [wording.symbol(case.verdict)] * is_counted + [estimate]
    return cell(" ".join(words) + (f"; {case.note}" if is_counted and case.note else ""))
