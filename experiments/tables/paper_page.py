"""Writes the page of a paper in docs/results, with all findings on its claims, and with figures and seeds."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.tables import downloads, markdown
from experiments.tables.answers import PaperAnswers
from experiments.tables.claims import KINDS, METHODS
from experiments.tables.draw import in_words
from experiments.tables.report import case_drawing
from experiments.tables.scale_result import ScaleResult

MAX_BYTES = 200_000
"""Greatest number of bytes of a figure on a paper's page.

Figures with more bytes are only on the page of the scale.
"""
MAX_PICTURES = 2
"""Greatest number of figures for the main claim, in addition to the figure of its comparisons."""


def name_of(paper: PaperAnswers) -> str:
    """Return the file name of the page of a paper."""
    return f"{short(paper)}.md"


def short(paper: PaperAnswers) -> str:
    """Return the short name of a paper, with which the names of its targets and configurations begin."""
    return paper.paper.id.partition("_")[0]


def written(paper: PaperAnswers, scales: Sequence[ScaleResult], made: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the content of a paper's page, and of each file that the page shows or links to.

    made: a folder with a folder per scale, each of which has outcomes and their figures.
    """
    pictures = {name: (caption, svg) for name, caption, svg in _pictures(paper, made)}
    for name, (_, svg) in pictures.items():
        yield name, svg
    seeds = f"{short(paper)}-seeds.csv"
    yield (
        seeds,
        downloads.seeds_csv(
            outcome
            for scale in scales
            for outcome in scale.outcomes.values()
            if outcome.target in paper.by_scale[scale.name].targets
        ),
    )
    yield (
        name_of(paper),
        markdown.render(
            "paper.md.j2",
            paper=paper,
            scales=scales,
            pictures={name: caption for name, (caption, _) in pictures.items()},
            seeds=seeds,
            missing={scale.name: _missing(paper, scale) for scale in scales},
            kinds=KINDS,
            methods=METHODS,
        ),
    )


def _missing(paper: PaperAnswers, scale: ScaleResult) -> list[str]:
    return [target for target in paper.by_scale[scale.name].targets if target not in scale.outcomes]


def _pictures(paper: PaperAnswers, made: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, caption and SVG text of the figures for the main claim at each scale."""
    for scale, result in zip(paper.by_scale, paper.main[0].results, strict=True):
        if drawing := case_drawing(result):
            caption = f"All cases of the main claim at the scale {scale}: estimates with 95 % intervals."
            statement = " ".join(result.claim["statement"].split())
            yield f"{short(paper)}-cases-{scale}.svg", caption, in_words(drawing, statement, words_of(result.cases))
        for figure in [figure for outcome, _ in result.found for figure in outcome.figures][:MAX_PICTURES]:
            svg = (made / scale / figure.svg).read_text(encoding="utf-8")
            if len(svg.encode()) < MAX_BYTES:
                name = f"{Path(figure.svg).stem}-{scale}.svg"
                yield name, f"{figure.caption} Scale {scale}.", in_words(svg, figure.caption, "")


def words_of(cases) -> str:
    """Return comparisons (cases) as text for readers who do not see their figure."""
    return "; ".join(f"{case.condition}, {case.baseline}: {case.text()}" for case in cases if case.estimate is not None)
