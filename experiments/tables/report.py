"""The reproduction as one page, and a single outcome as text for the terminal."""

import re
import tomllib
from collections import Counter
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from tabulate import tabulate

from experiments.tables.outcome import FAILS, HOLDS, PARTLY, UNDECIDED, Figure, Outcome, Table, load
from experiments.tables.outcome import WordedFinding as Finding
from experiments.tables.scale import SCALES
from grsgd.files import atomic_write

NOT_MADE = "not made yet"
SYMBOLS = {FAILS: "✗", PARTLY: "◐", UNDECIDED: "?", NOT_MADE: "–", HOLDS: "✓"}
"""Verdicts by their first words, the least favourable first."""
COUNTED = {
    HOLDS: ("holds", "hold"),
    PARTLY: ("holds only under a condition", "hold only under a condition"),
    FAILS: ("does not hold", "do not hold"),
    UNDECIDED: ("is not decided", "are not decided"),
    NOT_MADE: ("is not made yet", "are not made yet"),
}
NO_NUMBER = "no number could be had"
EXPECTED = "expected of the method"
"""The source of a claim that is not the paper's own."""
NUMBER = re.compile(r"[<>≤≥≈~±+−-]{0,2} ?\d.{0,24}")
NO_VALUE = ("", "-", "–", "—", "n/a", "nan")


def build(folder: Path, papers: list[Path], out: Path) -> None:
    """Write the page ``out`` on the outcomes in ``folder``, held against the claims of ``papers``.

    Raises ValueError for claims that ``read_claims`` refuses, and for a finding on a claim that no paper makes.
    """
    claims = read_claims(papers)
    paths = sorted(folder.glob("*.json"))
    outcomes = {outcome.target: outcome for outcome in map(load, paths)}
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"kind": kind, "symbol": lambda verdict: SYMBOLS[kind(verdict)], "anchor": anchor}
    environment.globals |= {
        "paper_figure": paper_figure,
        "column_classes": _column_classes,
        "svg": lambda outcome, i: inline_svg(outcome.figures[i], folder, f"figure-{anchor(outcome.target)}-{i + 1}-"),
    }
    findings = _findings(claims, outcomes)
    page = environment.get_template("report.html.j2").render(
        scale=folder.name,
        meaning=SCALES[folder.name].description if folder.name in SCALES else "",
        machines=_distinct(outcome.provenance.get("machine") for outcome in outcomes.values()),
        commits=_distinct(run.get("commit") for outcome in outcomes.values() for run in outcome.runs),
        dates=sorted(_date(outcomes, path) for path in paths),
        papers=_papers(papers, claims, outcomes),
        claims=claims,
        expected=sum(claim["source"] == EXPECTED for claim in claims.values()),
        findings=findings,
        outcomes=outcomes,
        count=lambda ids: _count([findings[claim] for claim in ids]),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as temporary:
        temporary.write_text(page, encoding="utf-8")


def text(outcome: Outcome, claims: dict[str, dict]) -> str:
    """``outcome`` for the terminal. ``claims``: of ``read_claims``."""
    parts = [f"{outcome.title}\n{'=' * len(outcome.title)}"]
    for table in outcome.tables:
        align = ["right" if numeric(table, i) else "left" for i in range(len(table.headers))] if table.rows else None
        lines = tabulate(table.rows, table.headers, "pipe", disable_numparse=True, colalign=align)
        parts.append(f"{table.caption}\n\n{lines}")
    parts += [f"Note: {note}" for note in outcome.notes]
    for finding in outcome.findings:
        claim = _claim(claims, finding.claim, outcome)
        lines = [
            f"{SYMBOLS[kind(finding.verdict)]} {finding.verdict}: {claim['statement']}",
            f"    paper: {paper_figure(claim)} ({claim['source']})",
            f"    here:  {finding.measured} ({finding.accounting})",
        ]
        parts.append("\n".join(lines + [f"    why:   {finding.reason}"] * bool(finding.reason)))
    if outcome.figures:
        parts.append("Figures: " + ", ".join(figure.svg for figure in outcome.figures))
    return "\n\n".join(parts) + "\n"


def read_claims(papers: list[Path]) -> dict[str, dict]:
    """Return the claims of ``papers``, folders with a claims.toml, by id; each with the folder's name as its ``paper``.

    Raises ValueError for an id given twice and for a claim that no target is to decide.
    """
    claims = {}
    for paper in papers:
        for claim in _toml(paper).get("claim", []):
            if claim["id"] in claims:
                raise ValueError(f"{paper}: claim {claim['id']!r} is given twice")
            if not claim.get("targets"):
                raise ValueError(f"{paper}: claim {claim['id']!r} has no targets")
            claims[claim["id"]] = {**claim, "paper": paper.name}
    return claims


def kind(verdict: str) -> str:
    """Return the key of ``SYMBOLS`` with which the verdict begins."""
    for start in (PARTLY, HOLDS, FAILS, UNDECIDED, NOT_MADE):
        if verdict.startswith(start):
            return start
    raise ValueError(f"not a verdict: {verdict!r}")


def paper_figure(claim: dict) -> str:
    """Return the paper's figure: the number where that is a text, or else number, range and unit as far as they are
    given."""
    number, low, high = (claim.get(key) for key in ("number", "low", "high"))
    if isinstance(number, str):
        return number
    if low is not None and high is not None:
        span = f"{low} to {high}"
    else:
        span = f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""
    figure = span if number is None else f"{number} ({span})" if span else f"{number}"
    return f"{figure} {claim.get('unit', '')}".strip() if figure else NO_NUMBER


def numeric(table: Table, column: int) -> bool:
    """Return whether the column is one of figures, to be set flush right."""
    cells = [cell for row in table.rows if (cell := row[column].strip()) not in NO_VALUE]
    return bool(cells) and all(NUMBER.fullmatch(cell) for cell in cells)


def _column_classes(table: Table) -> list[str]:
    """Return what the page sets flush right, and what it keeps from being squeezed into a column of single words."""
    return [
        "number" if numeric(table, i) else "long" if max([len(row[i]) for row in table.rows], default=0) > 24 else ""
        for i in range(len(table.headers))
    ]


def anchor(name: str) -> str:
    return re.sub(r"[^\w-]+", "-", name)


def inline_svg(figure: Figure, folder: Path, prefix: str) -> Markup:
    """Return the figure's file as an element of a page where ``prefix`` keeps its ids from those of other figures."""
    svg = (folder / figure.svg).read_text(encoding="utf-8")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"""(\sid=["']|href=["']#|url\(["']?#)""", lambda match: match[0] + prefix, svg)
    root = re.match(r"<svg[^>]*>", svg)[0]
    width = re.search(r'\swidth="([\d.]+(pt|px|in|cm|mm)?)"', root)
    style = f' style="--width: {width[1] if width[2] else width[1] + "px"}"' if width else ""
    bare = re.sub(r'\s(width|height)="[^"]*"', "", root)
    return Markup(f'<svg role="img" aria-label="{escape(figure.caption)}"{style}{bare[4:]}{svg[len(root) :]}')


def _findings(claims: dict[str, dict], outcomes: dict[str, Outcome]) -> dict[str, list[tuple[str, Finding]]]:
    """For every claim: targets and what they found; stand-ins for the findings that its targets have not made."""
    found = {claim: [] for claim in claims}
    for outcome in outcomes.values():
        for finding in outcome.findings:
            _claim(claims, finding.claim, outcome)
            found[finding.claim].append((outcome.target, finding))
    for claim, pairs in found.items():
        for target in claims[claim]["targets"]:
            if target not in outcomes:
                pairs.append((target, Finding(claim, "", "", f"{NOT_MADE}: make table-{target}")))
            elif target not in (name for name, _ in pairs):
                pairs.append(
                    (target, Finding(claim, "", "", UNDECIDED, "The target was made, but says nothing on it."))
                )
    return found


def _claim(claims: dict[str, dict], name: str, outcome: Outcome) -> dict:
    if name not in claims:
        raise ValueError(f"{outcome.target} has a finding on {name!r}, which is no paper's claim: make it again")
    return claims[name]


def _count(findings: list[list[tuple[str, Finding]]]) -> list[tuple[str, str]]:
    """Symbols, and how many claims each stands for; a claim counts by the least favourable that was found on it."""
    kinds = Counter(min((kind(f.verdict) for _, f in pairs), key=list(SYMBOLS).index) for pairs in findings)
    return [
        (SYMBOLS[name], f"{kinds[name]} {one if kinds[name] == 1 else many}")
        for name, (one, many) in COUNTED.items()
        if kinds[name]
    ]


def _papers(folders: list[Path], claims: dict[str, dict], outcomes: dict[str, Outcome]) -> list[dict]:
    """Return what the page says of each paper, its targets in the order of its claims; last, targets of none of the
    papers."""
    papers, left = [], dict.fromkeys(outcomes)
    for folder in folders:
        paper = _toml(folder)["paper"]
        own = [claim for claim in claims.values() if claim["paper"] == folder.name]
        named = [target for claim in own for target in claim["targets"] if target not in outcomes or target in left]
        targets = list(dict.fromkeys(named + [t for t in left if outcomes[t].paper in (folder.name, paper["name"])]))
        left = {target: None for target in left if target not in targets}
        authors = paper["authors"] if isinstance(paper["authors"], str) else ", ".join(paper["authors"])
        papers.append({**paper, "id": folder.name, "authors": authors, "targets": targets, "claims": own})
    if left:
        papers.append({"name": "Other targets", "id": "others", "targets": list(left), "claims": []})
    return papers


def _toml(paper: Path) -> dict:
    return tomllib.loads((paper / "claims.toml").read_text(encoding="utf-8"))


def _distinct(texts) -> list[str]:
    return sorted({text for text in texts if text})


def _date(outcomes: dict[str, Outcome], path: Path) -> str:
    """When the outcome was made: what it says itself, or else the date of its file."""
    date = outcomes[path.stem].provenance.get("made") if path.stem in outcomes else None
    return date or datetime.fromtimestamp(path.stat().st_mtime).strftime("%Y-%m-%d %H:%M")
