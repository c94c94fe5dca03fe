"""Writes docs/results.md, one page with the claims of five papers and the findings of all scales.

The page is written for readers who do not know grsgd. Each paper also has a page of its own, with every claim and
every comparison (`paper_page`).
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.runner.outcome import EVIDENCE, OFF, BreakEven
from experiments.runner.scale import DESK, SMOKE
from experiments.tables import (
    break_even_strip,
    checks,
    downloads,
    headlines,
    markdown,
    paper_page,
    repetition,
    sentences,
    simulator_error,
    trust,
)
from experiments.tables.answers import Answer, PaperAnswers
from experiments.tables.claims import BY_CONSTRUCTION
from experiments.tables.repetition import Repetition
from experiments.tables.scale_result import ScaleResult
from experiments.tables.trust import Trust
from grsgd.files import atomic_write

SHOWN = (DESK, SMOKE)
"""The scales (sizes of experiments) that the results page shows; the scale with the most evidence is first."""
MAX_BYTES = 10_000
"""Greatest number of bytes of the results page.

Lines on undecided and untried claims that do not fit are only on papers' pages.
"""
FEW_TARGETS = 10
"""Limit for the number of a scale's targets that have runs.

If a scale has fewer targets with runs, the results page names these targets.
"""
FOREST, STRIP = "forest.svg", "break-even.svg"
"""Names of the results page's SVG files, in the folder of the papers' pages."""


def build(made: Path, papers: Sequence[Path], docs: Path) -> Path:
    """Write results.md into ``docs``, and the files that it shows into ``docs``/results; return the path of results.md.

    made: a folder with a folder of outcomes per scale. Raises ValueError if no scale has outcomes, or if outcomes do
    not fit the claims of ``papers``.
    """
    scales = [scale for name in SHOWN if (scale := ScaleResult.of(made / name.name, papers)).outcomes]
    if not scales:
        raise ValueError(f"{made}: nothing was made at the scales {', '.join(scale.name for scale in SHOWN)}")
    told = [PaperAnswers({scale.name: scale.papers[i] for scale in scales}) for i in range(len(papers))]
    folder = docs / "results"
    files = dict(written(scales, told, made))
    folder.mkdir(parents=True, exist_ok=True)
    for old in (file for paper in told for file in folder.glob(f"{paper_page.short(paper)}[-_.]*") if file.is_file()):
        old.unlink()
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    path = docs / "results.md"
    with atomic_write(path) as partly:
        tried = checks.load(Trust, folder / trust.RECORD.name)
        again = checks.load(Repetition, folder / repetition.RECORD)
        text = fitting(scales, told, tried, again, files)
        partly.write_text(text, encoding="utf-8")
    return path


def written(scales: Sequence[ScaleResult], papers: Sequence[PaperAnswers], made: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and content of each file that the results page needs: figures, CSV tables, and papers' pages."""
    if rows := {paper.about["name"]: some for paper in papers if (some := headlines.rows_of(paper.main))}:
        yield FOREST, headlines.draw(rows)
    if found := break_evens(scales, papers):
        yield STRIP, break_even_strip.draw(found, pays_elsewhere(papers))
        yield "break-even.csv", downloads.break_evens_csv(found)
    yield downloads.CASES, downloads.cases_csv(paper for scale in scales for paper in scale.papers)
    yield "simulator.csv", downloads.simulator_csv(one for scale in scales for one in scale.outcomes.values())
    for paper in papers:
        yield from paper_page.written(paper, scales, made)


def fitting(
    scales: Sequence[ScaleResult],
    papers: Sequence[PaperAnswers],
    tried: Trust | None,
    again: Repetition | None,
    files: Mapping[str, str],
) -> str:
    """Return the text of the results page, with as many lines in each list as fit into ``MAX_BYTES``.

    Raises ValueError if the page does not fit even without lists.
    """
    values = {
        "scales": scales,
        "few": FEW_TARGETS,
        "papers": papers,
        "counted": counted(papers),
        "tried": tried,
        "again": again,
        "apart": intervals_apart(papers, again),
        "errors": simulator_errors(scales),
        "alone": against_one_rank(papers),
        "lists": [("Not decided", not_decided(papers)), ("Not tried", not_tried(papers))],
        "pictures": {name: described(files[name]) for name in (FOREST, STRIP) if name in files},
        "page_of": paper_page.name_of,
        "in_short": in_short(papers),
    }
    longest = max(len(lines) for _, lines in values["lists"])
    pages = (markdown.render("results.md.j2", most=most, **values) for most in range(longest, -1, -1))
    page = next((page for page in pages if len(page.encode()) <= MAX_BYTES), None)
    if page is None:
        raise ValueError(f"results.md has more than {MAX_BYTES} bytes without any line of its lists")
    return page


# ---- functions that make the contents of the page


def in_short(papers: Sequence[PaperAnswers]) -> dict[str, str]:
    """Return a short text on each paper, by name of the paper.

    The short text of a paper is ``in_short`` in the paper's claims.toml. If a paper's short text was written for other
    verdicts on the main claims than the present ones, the text is left out, and stderr names it. ``in_short_of`` in
    claims.toml is the `digest` of the verdicts for which the text was written.
    """
    found = {}
    for paper in papers:
        if "in_short" in paper.about:
            if paper.about.get("in_short_of") == (now := digest(paper.main)):
                found[paper.about["name"]] = paper.about["in_short"]
            else:
                where = f"{paper.paper.id}/claims.toml"
                print(f'{where}: read in_short again, and set in_short_of = "{now}": left out', file=sys.stderr)
    return found


def digest(main: Sequence[Answer]) -> str:
    """Return a digest of the verdicts on all comparisons (cases) for the main claims, including controls."""
    cases = sorted(
        (answer.claim["id"], one.outcome.scale, *one.place, one.case.source, one.case.kind, one.case.verdict)
        for answer in main
        for one in answer.everything
    )
    return hashlib.sha256(json.dumps(cases).encode()).hexdigest()[:8]

def counted(papers: Sequence[PaperAnswers]) -> dict[str, int]:
    """Return the number of claims that the papers make, and the number of comparisons that count for these claims."""
    own = [answer for paper in papers for answer in paper.own]
    cases = [one.case for answer in own for one in answer.everything]
    return {"claims": len(own), "cases": sum(case.kind == EVIDENCE for case in cases)}


def break_evens(scales: Sequence[ScaleResult], papers: Sequence[PaperAnswers]) -> list[BreakEven]:
    """Return the break-evens of each method against each compared method, from the first scale that has the break-even.

    A break-even is marked as off if simulated times of the compared method differ from measured times by too much at
    any scale.
    """
    found = {}
    for paper, scale in ((paper, scale) for paper in papers for scale in scales):
        name = paper.about["name"]
        for target in paper.by_scale[scale.name].targets:
            if target not in scale.outcomes:
                continue
            off = {
                case.baseline
                for outcome in (other.outcomes[target] for other in scales if target in other.outcomes)
                for finding in outcome.findings
                for case in finding.cases
                if case.kind == OFF
            }
            for one in scale.outcomes[target].break_evens:
                method = one.method if name in one.method else f"{name}, {one.method}"
                found.setdefault((method, one.against), replace(one, method=method, is_off=one.against in off))
    return list(found.values())


def pays_elsewhere(papers: Sequence[PaperAnswers]) -> dict[str, str]:
    """Return, by paper, the reason why the saving of its method does not depend on links.

    Papers without a reason in claims.toml are left out.
    """
    return {paper.about["name"]: paper.about["pays"] for paper in papers if "pays" in paper.about}


def simulator_errors(scales: Sequence[ScaleResult]) -> dict[str, str]:
    """Return the differences of simulated from measured times of equal trainings as text, by algorithm."""
    found: dict[str, list[float]] = {}
    for outcome in (outcome for scale in scales for outcome in scale.outcomes.values()):
        for name, error in outcome.simulator_errors:
            found.setdefault(name, []).append(error)
    return {name: simulator_error.in_percent(found[name]) for name in sorted(found)}


def intervals_apart(papers: Sequence[PaperAnswers], again: Repetition | None) -> dict[str, int]:
    """Return the numbers of comparisons whose intervals in two recordings do not overlap, by name of the paper."""
    found = again.apart if again else {}
    return {paper.about["name"]: found[paper.paper.id] for paper in papers if paper.paper.id in found}


def against_one_rank(papers: Sequence[PaperAnswers]) -> dict[str, str]:
    """Return the saving of each paper's method over one rank alone, by paper.

    The figure of the main claims also shows the savings over one rank alone.
    """
    controls = {
        paper.about["name"]: row for paper in papers for row in headlines.rows(paper.main[0]) if row.is_control
    }
    return {name: f"{row.cases[0].text()}, {row.cases[0].condition}" for name, row in controls.items()}


def not_decided(papers: Sequence[PaperAnswers]) -> list[str]:
    """Return a line for each claim of a paper that was tried but is undecided.

    The line also says how to decide the claim.
    """
    return [
        f"{said(paper, answer)} {sentences.why_open(answer)}"
        for paper in papers
        for answer in paper.own
        if not answer.is_decided and not is_described(answer) and "not_covered" not in answer.claim
    ]


def not_tried(papers: Sequence[PaperAnswers]) -> list[str]:
    """Return a line for each claim of a paper that no target (table or figure) tries, with the reason's first sentence.

    Claims that only describe a method are listed on the papers' pages.
    """
    return [
        f"{said(paper, answer)} {sentences.first_sentence(answer.claim['not_covered'])}"
        for paper in papers
        for answer in paper.own
        if "not_covered" in answer.claim and not is_described(answer)
    ]


def is_described(answer: Answer) -> bool:
    """Return True if a claim cannot be refuted, because it describes a method or follows from its construction."""
    return answer.is_built or answer.claim["kind"] == BY_CONSTRUCTION


def said(paper: PaperAnswers, answer: Answer) -> str:
    """Return the statement of a claim in italics, with the name of its paper."""
    name, statement = paper.about["name"], answer.claim["statement"].strip()
    return f"*{statement}*" if name in statement else f"*{name}: {statement}*"


def described(svg: str) -> str:
    """Return the title of an SVG figure, for readers who do not see it."""
    return re.search(r"<title>(.*?)</title>", svg, re.DOTALL)[1]
