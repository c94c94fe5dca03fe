"""Writes the results on all papers as one HTML page, and a single outcome as text for the terminal."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from tabulate import tabulate

from experiments.runner.outcome import Case, Figure, Outcome, Table, load
from experiments.runner.scale import SCALES
from experiments.tables import claims as paper_claims
from experiments.tables import downloads, sentences, wording
from experiments.tables.answers import Answer
from experiments.tables.claims import ClaimResult, PaperResult
from experiments.tables.forest import forest
from grsgd.files import atomic_write

NUMBER = re.compile(r"[<>≤≥≈~±+−-]{0,2} ?\d.{0,24}")
NO_VALUE = ("", "-", "–", "—", "n/a", "nan")
NUMBERS = ("low", "number", "high", "ssgd_multicast", "asgd")
"""Keys of a claim in claims.toml that may contain a number which the paper states."""
INFERRED = "## Documented and inferred"
"""Heading of the table of inferred choices in a paper's README."""


def build(folder: Path, papers: Sequence[Path], out: Path) -> None:
    """Write the HTML page ``out`` about the outcomes in ``folder``, compared with the claims of ``papers``.

    Raises ValueError if ``read_claims`` refuses the claims, or if an outcome has a finding on a claim that no paper
    makes.
    """
    outcomes, dates = read_outcomes(folder)
    results = paper_claims.results(papers, outcomes)
    template = _environment(folder).get_template("report.html.j2")
    page = template.render(
        scale=folder.name,
        meaning=SCALES[folder.name].description if folder.name in SCALES else "",
        machines=_distinct(outcome.provenance.get("machine") for outcome in outcomes.values()),
        commits=_distinct(run.get("commit") for outcome in outcomes.values() for run in outcome.runs),
        dates=sorted(dates.values()),
        made=dates,
        results=results,
        inferred={paper.name: inferred(paper) for paper in papers},
        outcomes=outcomes,
        missing=[target for paper in results for target in paper.targets if target not in outcomes],
        counts=counts(results),
        cases_csv=downloads.cases_csv(results),
        claim_files={paper.name: (paper / "claims.toml").read_text(encoding="utf-8") for paper in papers},
        kinds=paper_claims.KINDS,
        methods=paper_claims.METHODS,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _environment(folder: Path) -> Environment:
    """Return the environment with which jinja2 renders the page; ``folder``: the folder of the figures."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"symbol": wording.symbol, "anchor": anchor, "inline_code": inline_code}
    environment.globals |= {
        "wording": wording,
        "sentences": sentences,
        "answer": lambda result: Answer([result]),
        "column_classes": _column_classes,
        "svg": lambda outcome, i: inline_svg(outcome.figures[i], folder, f"figure-{anchor(outcome.target)}-{i + 1}-"),
        "summary_figure": summary_figure,
        "data_of": lambda figure: downloads.figure_data(folder, figure),
        "seeds_of": lambda figure: downloads.seeds_of(folder, figure),
        "as_link": downloads.as_link,
        "runs_csv": downloads.runs_csv,
        "same": same,
        "tally": tally,
    }
    return environment


def read_outcomes(folder: Path) -> tuple[dict[str, Outcome], dict[str, str]]:
    """Return two dicts by target: the outcomes in a folder, and the date on which each outcome was made."""
    paths = sorted(folder.glob("*.json"))
    outcomes = {path: load(path) for path in paths}
    dates = {outcome.target: _date(outcome, path) for path, outcome in outcomes.items()}
    return {outcome.target: outcome for outcome in outcomes.values()}, dates


# ---- functions that summarise results


def counts(results: Iterable[PaperResult]) -> dict[str, Counter]:
    """Return the number of claims with each verdict, by kind of claim; kinds without claims are left out."""
    found = {kind: Counter() for kind in paper_claims.KINDS}
    for result in (claim for paper in results for claim in paper.claims):
        found[result.claim["kind"]][result.verdict] += 1
    return {kind: count for kind, count in found.items() if count}


def tally(results: Sequence[ClaimResult]) -> str:
    """Return the number of claims with each verdict as text, for example ``supported (2), not made yet (1)``."""
    found = Counter(result.verdict for result in results)
    return ", ".join(f"{verdict} ({found[verdict]})" for verdict in wording.SYMBOLS if found[verdict])


def same(values: Iterable) -> bool:
    """Return True if all values are equal, so that the page states the value only once."""
    return len(set(values)) == 1


def case_drawing(result: ClaimResult) -> str:
    """Return an SVG of the comparisons on a claim that have an estimate; "" if fewer than two have one."""
    cases = wording.of_one_unit(result.cases)
    numbers = dict.fromkeys(result.claim.get(key) for key in NUMBERS)
    return forest(cases, [number for number in numbers if isinstance(number, int | float)]) if len(cases) > 1 else ""


def summary_figure(result: ClaimResult) -> Markup:
    """Return the SVG of ``case_drawing`` as an HTML element of the page; empty if there is no SVG."""
    drawing = case_drawing(result)
    name = f"cases-{anchor(result.claim['id'])}-"
    return _inline(drawing, f"Cases of the claim: {result.claim['statement']}", name) if drawing else Markup("")


def inferred(paper: Path) -> list[list[str]]:
    """Return the rows of the table of inferred choices in a paper's README: choice, standing and option.

    The returned list is empty if the README has no table of inferred choices.
    """
    readme = paper / "README.md"
    _, _, below = (readme.read_text(encoding="utf-8") if readme.exists() else "").partition(INFERRED + "\n")
    lines = [line for line in below.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def inline_code(text: str) -> Markup:
    """Return a line of Markdown as HTML: code becomes <code> elements, and links become their texts."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(words))))


# ---- functions that make elements of the page


def numeric(table: Table, column: int) -> bool:
    """Return True if a column has only numbers, which the page aligns on the right."""
    cells = [cell for row in table.rows if (cell := row[column].strip()) not in NO_VALUE]
    return bool(cells) and all(NUMBER.fullmatch(cell) for cell in cells)


def _column_classes(table: Table) -> list[str]:
    """Return the CSS class of each column: "number" for numbers, "long" for long texts, and "" for short texts."""
    return [
        "number" if numeric(table, i) else "long" if max([len(row[i]) for row in table.rows], default=0) > 24 else ""
        for i in range(len(table.headers))
    ]


def anchor(name: str) -> str:
    return re.sub(r"[^\w-]+", "-", name)


def inline_svg(figure: Figure, folder: Path, prefix: str) -> Markup:
    """Return the SVG file of a figure as an HTML element.

    ``prefix`` is put before the ids of the SVG file, so that they are unique on the page.
    """
    return _inline((folder / figure.svg).read_text(encoding="utf-8"), figure.caption, prefix)


def _inline(svg: str, label: str, prefix: str) -> Markup:
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"""(\sid=["']|href=["']#|url\(["']?#)""", lambda match: match[0] + prefix, svg)
    root = re.match(r"<svg[^>]*>", svg)[0]
    width = re.search(r'\swidth="([\d.]+(pt|px|in|cm|mm)?)"', root)
    style = f' style="--width: {width[1] if width[2] else width[1] + "px"}"' if width else ""
    bare = re.sub(r'\s(width|height)="[^"]*"', "", root)
    return Markup(f'<svg role="img" aria-label="{escape(label)}"{style}{bare[4:]}{svg[len(root) :]}')


def _distinct(texts) -> list[str]:
    return sorted({text for text in texts if text})


def _date(outcome: Outcome, path: Path) -> str:
    """Return the date on which the outcome was made, from its provenance, or else the date of its file."""
    date = outcome.provenance.get("made")
    return date or datetime.fromtimestamp(path.stat().st_mtime).strftime("%Y-%m-%d %H:%M")


# ---- functions that write text for the terminal


def text(outcome: Outcome, claims: dict[str, dict]) -> str:
    """Return ``outcome`` as text for the terminal. ``claims``: the claims by id, from ``read_claims``."""
    parts = [f"{outcome.title}\n{'=' * len(outcome.title)}"]
    for table in outcome.tables:
        align = ["right" if numeric(table, i) else "left" for i in range(len(table.headers))] if table.rows else None
        lines = tabulate(table.rows, table.headers, "pipe", disable_numparse=True, colalign=align)
        parts.append(f"{table.caption}\n\n{lines}")
    parts += [f"Note: {note}" for note in outcome.notes]
    for finding in outcome.findings:
        claim = claims[finding.claim]
        lines = [
            f"{wording.symbol(wording.overall(finding.cases))} {finding.verdict}: {claim['statement']}",
            f"    paper: {wording.paper_figure(claim)} ({claim['source']})",
            *(f"    {line}" for line in map(case_line, finding.cases)),
            f"    how:   {finding.accounting}",
        ]
        parts.append("\n".join(lines + [f"    why:   {finding.reason}"] * bool(finding.reason)))
    if outcome.figures:
        parts.append("Figures: " + ", ".join(figure.svg for figure in outcome.figures))
    return "\n\n".join(parts) + "\n"


def case_line(case: Case) -> str:
    """Return a comparison (case) as one line of text for the terminal."""
    counted = "" if case.kind == wording.EVIDENCE else f" [{case.kind}, not counted]"
    note = f" ({case.note})" if case.note else ""
    return f"{wording.symbol(case.verdict)} {wording.case_name(case)}: {wording.estimate(case)}{counted}{note}"
