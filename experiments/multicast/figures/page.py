"""The results page with figures 8 to 15 as pictures and tables, and with the paper's claims that reproduce."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tabulate import tabulate

from experiments import papers
from experiments.figures import save
from experiments.multicast.figures.figures import FIGURES, MEGABYTES, Shown
from experiments.multicast.figures.plan import AGAIN, IP, STEPS
from experiments.multicast.figures.views import VIEWS, title
from experiments.multicast.verdict import MIN_FOR_INTERVAL, SAME_WITHIN, interval, word
from experiments.papers.cssgd_2021 import tasks
from experiments.papers.cssgd_2021.tasks import MULTICAST
from experiments.runner.outcome import ALIKE, BY_CONSTRUCTION, INCONCLUSIVE, REFUTED, SUPPORTED, Finding
from experiments.runner.sample import Sample
from experiments.tables import draw
from experiments.tables.claims import read_claims
from experiments.tables.targets import Found
from experiments.tables.wording import MIXED, NO_NUMBER, middle, overall, paper_figure

REPRODUCES = {
    BY_CONSTRUCTION: "follows from Tcomm / Tcalc",
    SUPPORTED: "reproduces",
    MIXED: "reproduces in part",
    ALIKE: "makes no difference",
    REFUTED: "does not reproduce",
    INCONCLUSIVE: "is left open",
}
SPREAD = f"its 95 % interval by Student's t, or, of fewer than {MIN_FOR_INTERVAL} rounds, their range"


def draw_figure(number: int, shown: Shown, folder: Path):
    """Draw the views of a figure side by side with equal axes, as PDF, PNG and SVG, and write its numbers as CSV."""
    panels = [
        draw.Panel(title(view), shown.xlabel, shown.ylabel, lines, controls=shown.controls, logy=True)
        for view, lines in shown.lines.items()
    ]
    figure = draw.figure(panels)
    limits = [axes.get_ylim() for axes in figure.axes]
    for axes in figure.axes:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    path = folder / f"figure-{number}"
    save(figure, path)
    path.with_suffix(".svg").write_text(draw.as_svg(figure), encoding="utf-8")
    draw.write_table(path.with_suffix(".csv"), panels)


def page(shown: Mapping[int, Shown], found: Found, nodes: list[int], rounds: int) -> Iterator[str]:
    """Yield the paragraphs of the results page, in Markdown."""
    names = ", ".join(dict.fromkeys(FIGURES[number].task.name for number in shown))
    yield (
        f"{names}; {', '.join(map(str, nodes))} nodes; {rounds} rounds of {STEPS} steps. Medians, and the share of "
        f"SSGD by multicast in the same round, with {SPREAD}; then that share by each way to count, without it."
    )
    for number, each in shown.items():
        yield f"## Figure {figure_name(number)}: {FIGURES[number].title}"
        yield table(each)
        if each.note:
            yield each.note
        for claim, findings in each.findings.items():
            yield f"> {sentence(claim)}\n\n" + "\n".join(f"- {title(view)}: {words(findings[view])}" for view in VIEWS)
    yield "## Controls"
    yield "\n".join(controls(found))
    yield "## What reproduces on a medium that multicasts"
    yield from summary(shown)


def table(shown: Shown) -> str:
    """Return a figure's table of medians, and of ratios to SSGD by multicast.

    In the table, a measured ratio has its 95 % interval or its range.
    """
    rows = []
    for x in sorted({x for points in shown.lines[IP].values() for x in points}):
        for label, points in shown.lines[IP].items():
            if x in points:
                shares = [share(shown.lines[view][label][x], shown.reference[view][x]) for view in VIEWS]
                counted = [f"{each.median():.2f}" for each in shares[1:]]
                rows.append([f"{x:g}", label, amount(shown, points[x]), str(interval(shares[0].known)), *counted])
    unit = "MB" if shown.ylabel == MEGABYTES else "ms"
    headers = [shown.xlabel[-1], "", f"{unit} a step", "of SSGD by multicast", *(view.name for view in VIEWS[1:])]
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True, colalign=("right", "left", *["right"] * 5))


def amount(shown: Shown, of: Sample) -> str:
    return f"{of.median():.2f}" if shown.ylabel == MEGABYTES else f"{1e3 * of.median():.0f}"


def share(ours: Sample, reference: Sample) -> Sample:
    """Return the ratios of the values in ``ours`` to the values in ``reference``, round by round."""
    return tasks.combined(lambda own, other: own / other, ours, reference)


def sentence(claim: str) -> str:
    """Return the paper's claim as text, with the paper's number if the claim has one."""
    about = read_claims([papers.folder("cssgd")])[claim]
    number = paper_figure(about)
    return about["statement"] + (f" The paper: {number}." if number != NO_NUMBER else "")


def words(finding: Finding) -> str:
    """Return the verdict on a claim and the median comparison as text, with the word "round" in place of "seed"."""
    return "; ".join(filter(None, [finding.verdict, middle(finding.cases).replace(" seed", " round")])) + "."


def controls(found: Found) -> Iterator[str]:
    """Yield, for each task and number of nodes, a comparison of SSGD by multicast with its repetition."""
    for task, view, method, n in found:
        if (view, method) == (IP, AGAIN):
            again, first = (tasks.step_seconds(found, task, IP, each, n) for each in (AGAIN, MULTICAST))
            found_share = interval(share(again, first).known)
            holds = word(abs(found_share.middle - 1) <= SAME_WITHIN)
            yield (
                f"- {task.name}, {n} nodes: a step of {AGAIN.name}, takes {found_share} times as long, "
                f"{SAME_WITHIN:.0%} more or less allowed: {holds}."
            )


def summary(shown: Mapping[int, Shown]) -> Iterator[str]:
    """Yield a table of the verdicts on all claims by figure and view.

    The second text lists the comparisons that support claims which are supported only in part.
    """
    rows, held = [], []
    for number, each in shown.items():
        for claim, found in each.findings.items():
            verdicts = [overall(found[view].cases) for view in VIEWS]
            rows.append([figure_name(number), sentence(claim), *(REPRODUCES[verdict] for verdict in verdicts)])
            if verdicts[0] == MIXED:
                held.append(f"- Figure {figure_name(number)}, {claim}, holds for: {where_it_holds(found[IP])}.")
    yield tabulate(rows, ["figure", "the paper", *map(title, VIEWS)], tablefmt="pipe", disable_numparse=True)
    yield "\n".join(held) or "No claim holds in some cases alone."


def figure_name(number: int) -> str:
    return f"{number}, {FIGURES[number].task.name}"


def where_it_holds(finding: Finding) -> str:
    """Return a text that lists the comparisons which support a claim, each with its baseline."""
    return "; ".join(
        f"{case.condition} (against {case.baseline})" for case in finding.evidence if case.verdict == SUPPORTED
    )
