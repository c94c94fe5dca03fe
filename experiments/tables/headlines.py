"""Draws the main claims of all papers: savings, the papers' numbers, and all uncertainties."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.runner.outcome import ALIKE, INCONCLUSIVE, REFUTED, SUPPORTED, Case
from experiments.tables.answers import DECIDED, IN_SIMULATED_TIME, Answer, Evidence
from experiments.tables.draw import as_svg, limits
from experiments.tables.forest import MARKERS, VERDICT_COLOURS, Differences, Ratios, scale_of
from experiments.tables.sentences import VERDICT_WORDS

UNIT = "% less time"
"""The unit of the estimates that the figure of the main claims shows."""
MAX_ROWS = 3
"""Greatest number of rows of the figure per claim; the control of one rank alone has one more row."""
ALONE = ("one rank alone", "one worker alone")
"""Names of the control in the comparisons of every paper: the time of a single rank or worker."""
PALE = "#bbbbbb"
COLOUR_OF = VERDICT_COLOURS | {INCONCLUSIVE: "#444444"}
APART = 0.32
"""Vertical distance of the estimates within a row of the figure; the distance from row to row is 1."""
ROW_INCHES, WIDTH = 0.235, 8.2


@dataclass(frozen=True)
class Row:
    """A row of the figure: the best measured and the best simulated comparison of one baseline and condition."""

    label: str
    cases: Sequence[Case]
    is_control: bool = False

    def words(self) -> str:
        """Return the row as text for readers who do not see the figure."""
        return f"{self.label}: {'; '.join(case.text() for case in self.cases)}"


def rows_of(main: Sequence[Answer]) -> list[Row]:
    """Return the rows of a paper: for its headline claim, for further main claims on time, and for the control.

    Each further main claim has rows with its best evidence. main: the evidence on the main claims; the headline claim
    is first.
    """
    headline, *others = map(rows, main)
    of_claims = [row for row in headline if not row.is_control]
    for answer, some in zip(main[1:], others, strict=True):
        there = [row for row in some if not row.is_control]
        best = {_label(one.place) for one in answer.holding[:1] + answer.failing[:1]}
        first = [row for row in there if row.label in best] or there[:1]
        of_claims += [row for row in first if row.label not in {shown.label for shown in of_claims}]
    return of_claims + [row for row in headline if row.is_control]


def rows(answer: Answer) -> list[Row]:
    """Return the rows of a main claim: the best evidence for it, the best evidence against it, and further evidence.

    The last row is the control of one rank alone, if possible under the condition of the first row.
    """
    ordered = answer.holding[:1] + answer.failing[:1] + answer.evidence
    places = list(dict.fromkeys(one.place for one in ordered if _is_shown(one)))
    first, others = places[:2], places[2:]
    shown = {place[0] for place in first}
    others.sort(key=lambda place: place[0] in shown)
    found = [_row(place, answer.evidence) for place in (first + others)[:MAX_ROWS]]
    alone = [one for one in answer.controls if one.case.baseline in ALONE and _is_shown(one)]
    conditions = [condition for _, condition in places]
    alone.sort(key=lambda one: conditions.index(one.place[1]) if one.place[1] in conditions else len(conditions))
    return found + [Row(f"for comparison, {_label(one.place)}", [one.case], is_control=True) for one in alone[:1]]


def _row(place: tuple[str, str], evidence: Sequence[Evidence]) -> Row:
    """Return the row of a baseline and condition, with its best measured and simulated comparisons.

    Decided comparisons are preferred to undecided comparisons of the same kind of times.
    """
    there = [one for one in evidence if one.place == place and _is_shown(one)]
    decided = {(one.is_simulated, one.case.verdict): one.case for one in reversed(there) if one.case.verdict in DECIDED}
    sources = {is_simulated for is_simulated, _ in decided}
    undecided = {(one.is_simulated, ""): one.case for one in reversed(there) if one.is_simulated not in sources}
    shown = decided | undecided
    return Row(_label(place), [shown[key] for key in sorted(shown)])


def _is_shown(one: Evidence) -> bool:
    return one.case.estimate is not None and one.case.unit == UNIT


def _label(place: tuple[str, str]) -> str:
    """Return the label of a row, made of its baseline and its condition."""
    baseline, condition = place
    return ": ".join(filter(None, [f"against {baseline}" * bool(baseline), condition]))


def describe(by_paper: dict[str, Sequence[Row]]) -> str:
    """Return the whole figure as text for readers who do not see it."""
    return " ".join(f"{paper}: {'. '.join(row.words() for row in some)}." for paper, some in by_paper.items())


def draw(by_paper: dict[str, Sequence[Row]]) -> str:
    """Return an SVG with the rows of all papers, one below the other, and with a title and a description.

    Measured comparisons have filled points, and simulated comparisons have hollow points. A thin line beyond an
    interval shows the range over calibrations and the simulator's error. A vertical tick in a row shows the paper's
    number.
    """
    cases = [case for some in by_paper.values() for row in some for case in row.cases]
    scale = scale_of(cases[0])
    lines = [line for paper, some in by_paper.items() for line in (paper, *some)]
    figure = Figure(figsize=(WIDTH, 1.25 + ROW_INCHES * len(lines)), layout="constrained")
    ax = figure.subplots()
    for place, line in enumerate(lines):
        if isinstance(line, Row):
            _draw_row(ax, place, line, scale)
        else:
            ax.annotate(
                line, (-0.005, place), xycoords=ax.get_yaxis_transform(), ha="right", va="center", weight="bold"
            )
    ax.axvline(0, color="black", linewidth=0.8)
    places = [place for place, line in enumerate(lines) if isinstance(line, Row)]
    ax.set_yticks(places, [lines[place].label for place in places], fontsize=8)
    ax.set_ylim(len(lines) - 0.5, -0.7)
    ax.set_xlim(*limits((scale.place(case.estimate) for case in cases), ax.get_xlim()))
    ax.tick_params(axis="y", length=0)
    scale.set_ticks(ax)
    ax.set_xlabel(scale.label, fontsize=9)
    ax.grid(alpha=0.3, axis="x")
    ax.set_axisbelow(True)
    figure.legend(handles=_legend(cases), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return as_svg(figure, "The main claims of five papers, with their uncertainties", describe(by_paper))


def _draw_row(ax, place: int, row: Row, scale: Differences | Ratios):
    """Draw the comparisons of a row, each at a slightly different height; measured ones are above simulated ones."""
    for number, case in enumerate(row.cases):
        below = APART * (number - (len(row.cases) - 1) / 2)
        _draw_case(ax, place + below, case, scale, PALE if row.is_control else COLOUR_OF[case.verdict])
    for number in {case.number for case in row.cases if case.number is not None}:
        ax.plot([scale.place(number)] * 2, [place - 0.42, place + 0.42], color="black", linewidth=2)


def _draw_case(ax, place: float, case: Case, scale: Differences | Ratios, colour: str):
    if None not in (case.spread_low, case.spread_high):
        ends = [scale.place(case.spread_low), scale.place(case.spread_high)]
        ax.plot(ends, [place, place], color=colour, linewidth=0.9, alpha=0.8, marker="|", markersize=5)
    ends = [scale.place(case.estimate if limit is None else limit) for limit in (case.low, case.high)]
    ax.plot(ends, [place, place], color=colour, linewidth=2.4, solid_capstyle="butt")
    ax.plot(scale.place(case.estimate), place, linestyle="", **_point(case, colour))


def _point(case: Case, colour: str) -> dict:
    fill = "white" if case.source in IN_SIMULATED_TIME else colour
    return {"color": colour, "markerfacecolor": fill, "marker": MARKERS.get(case.bound, "o"), "markersize": 6}


def _legend(cases: Sequence[Case]) -> list[Line2D]:
    there = [
        verdict for verdict in (SUPPORTED, REFUTED, ALIKE, INCONCLUSIVE) if any(c.verdict == verdict for c in cases)
    ]
    colours = [
        Line2D([], [], color=COLOUR_OF[verdict], linewidth=2.4, label=VERDICT_WORDS[verdict]) for verdict in there
    ]
    point = {"linestyle": "", "marker": "o", "color": "black", "markersize": 6}
    return [
        *colours,
        Line2D([], [], color=PALE, linewidth=2.4, label="one rank alone"),
        Line2D([], [], label="measured", **point),
        Line2D([], [], label="simulated", **point | {"markerfacecolor": "white"}),
        Line2D(
            [],
            [],
            linestyle="",
            marker="|",
            markersize=11,
            markeredgewidth=2,
            color="black",
            label="the paper's number",
        ),
        Line2D([], [], color="black", linewidth=0.9, marker="|", label="thin: over calibrations, simulator's error"),
        *(
            Line2D([], [], label=f"saves {case.bound} this much", linestyle="", **_point(case, "black"))
            for case in {case.bound: case for case in cases if case.bound}.values()
        ),
    ]
