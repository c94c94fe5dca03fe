"""Functions that state the evidence on a claim in words: effect, interval, source, condition, and certainty."""

import math
from collections.abc import Sequence

from experiments.runner.outcome import (
    AGREES,
    ALIKE,
    INCONCLUSIVE,
    LESS,
    MORE,
    OPPOSITES,
    REFUTED,
    SUPPORTED,
    Case,
)
from experiments.runner.run_spec import MEASURED, SIMULATED, TIMING_ONLY
from experiments.tables.answers import GRADES, OPEN, Answer, Evidence
from experiments.tables.wording import NO_NUMBER, paper_figure

SIGNS = {MEASURED: "●", SIMULATED: "○", TIMING_ONLY: "○"}
"""Signs before an effect on time: whether the times are measured or simulated."""
NO_TIMES = "◇"
"""Sign before an effect on bytes, accuracy, or anything else that is not a time."""
VERDICT_WORDS = {
    SUPPORTED: "holds",
    ALIKE: "no difference",
    REFUTED: "does not hold",
    INCONCLUSIVE: "undecided",
}
LEGEND = (
    f"{SIGNS[MEASURED]} measured times, {SIGNS[SIMULATED]} simulated times, {NO_TIMES} bytes or accuracies.\n"
    "A case is a comparison with one other algorithm under one condition. "
    "A cell has its best case, or the best on each number: measured before simulated, `desk` before `smoke`.\n"
    "Brackets hold the 95 % interval and the runs per side; runs are pairs if both sides share random numbers.\n"
    f"How sure: {'; '.join(f'{grade}: {meaning}' for grade, meaning in GRADES.items())}.\n"
    "A verdict needs a significant test at 0.9 % (for up to ten seeds), and an effect of more than 5 % of time (10 % "
    "if measured) or 1 point of accuracy. So some intervals without zero are undecided.\n"
    "Tests are corrected for the number of cases on a claim: a comparison may be decided for one claim only."
)
"""Explanation of the signs and of the grades of certainty, for the results page."""
CONDITIONS = (
    "On a *switch* each host has its own link; on a *shared medium* one host sends at a time, and all others hear it.\n"
    "Adaptive gossip exchanges a model when the model has changed by more than a *threshold*: "
    "a constant *set by hand*, or a threshold that moves in training and *keeps a rate* of exchanges.\n"
    "*Tcomm / Tcalc* is the time that a step of SSGD by multicast communicates, over the time that the step computes.\n"
    "Cases that count in no verdict, such as controls, are only on the paper's page.\n"
    "*r* is the number of nodes that compute each sample, *n* the number of nodes or ranks."
)
"""Explanations of the words that describe conditions, for the results page."""
ON_NUMBER = {AGREES: "agrees with the paper's {}", MORE: "above the paper's {}", LESS: "below the paper's {}"}
"""Texts for the position of a comparison's interval relative to the paper's number."""


def is_undecided(case: Case) -> bool:
    """Return True if a comparison decides neither for nor against the claim."""
    return case.verdict == INCONCLUSIVE


def sign(one: Evidence) -> str:
    """Return the sign for the source of a comparison's times."""
    return SIGNS.get(one.case.source, NO_TIMES)


def effect(one: Evidence) -> str:
    """Return a comparison as text: estimate with interval, baseline, the paper's number, condition and scale."""
    case, (baseline, condition) = one.case, one.place
    words = case.text() if case.estimate is not None else case.note or case.verdict
    than = "than" if OPPOSITES.keys() & set(words.split()) else "against"
    number = on_number(case) * (case.verdict == SUPPORTED)
    no_difference = "no difference: " * (case.verdict == ALIKE and case.estimate is not None)
    parts = [f"{no_difference}{words}" + f" {than} {baseline}" * bool(baseline), number, condition]
    return f"{sign(one)} {', '.join(filter(None, parts))} (`{one.outcome.scale}`)"


def on_number(case: Case) -> str:
    """Return a text on the position of a comparison relative to the paper's number; "" if the position is unknown."""
    return ON_NUMBER[case.on_number].format(f"{case.number:g}") if case.on_number else ""


def number(claim: dict) -> str:
    """Return the number that the paper states for a claim as text; "" if the paper states none."""
    said = paper_figure(claim)
    return "" if said == NO_NUMBER else said


def best(some: Sequence[Evidence], answer: Answer) -> str:
    """Return the best comparison of ``some`` on a claim as text, with the number of comparisons that agree.

    The number of undecided comparisons is added, unless ``some`` is against a claim that also has evidence for it. If
    the best comparison is measured, the number of simulated comparisons in ``some`` is added.

    If the paper states several numbers for a claim, such as one per baseline, the text has the best comparison for
    each number. Returns "" if ``some`` is empty.
    """
    if not some:
        return ""
    named = "; ".join(effect(evidence[0]) for evidence in by_number(some, answer))
    count = len(answer.evidence)
    is_beside = some == answer.holding or not answer.holding
    undecided = f", {len(answer.open)} undecided" if answer.open and is_beside else ""
    count_simulated = 0 if some[0].is_simulated else sum(one.is_simulated for one in some)
    simulated = f" ({count_simulated} simulated)" if count_simulated else ""
    return f"{named}; {f'{len(some)} of {count} cases{simulated}{undecided}' if count > 1 else 'the only case'}"


def by_number(some: Sequence[Evidence], answer: Answer) -> list[list[Evidence]]:
    """Return the comparisons in ``some`` as one list per number of the paper, each in the order of ``some``.

    If one of the answer's comparisons has no number of the paper, all comparisons are in one list.
    """
    divided = all(one.case.number is not None for one in answer.evidence)
    found: dict[float | None, list[Evidence]] = {}
    for one in some:
        found.setdefault(one.case.number if divided else None, []).append(one)
    return list(found.values())


def how_sure(answer: Answer) -> str:
    """Return a text on the certainty of an answer, with the simulator's error.

    For an undecided claim, the text says how to decide it. The text names each baseline for which the paper states a
    number and all comparisons are undecided.
    """
    if not answer.is_decided:
        return f"{OPEN}: {why_open(answer)}"
    found = [some[0] for some in (answer.holding, answer.failing) if some]
    grades = [answer.grade(one) for one in found]
    errors = dict.fromkeys(words for one in found if (words := simulator_error(one)))
    both = grades[0] if len(set(grades)) == 1 else f"{grades[0]} that it holds, {grades[1]} that it does not"
    undecided = [
        f"{OPEN} against {cases[0].case.baseline}{_seeds(soonest(cases))}"
        for cases in by_number(answer.evidence, answer)
        if all(is_undecided(one.case) for one in cases)
    ]
    return "; ".join([both, *undecided, *errors])


def _seeds(one: Evidence) -> str:
    return f" (about {one.case.seeds_needed} seeds would decide)" if one.case.seeds_needed else ""


def simulator_error(one: Evidence) -> str:
    """Return the simulator's error in a simulated comparison as text; "" for a comparison that is not simulated."""
    return f"simulator's error: {one.case.simulator_error.rpartition(': ')[2]}" if one.case.simulator_error else ""


def errors_of(cases: Sequence[Case]) -> str:
    """Return the simulator's errors in comparisons as text, without repetitions."""
    return "; ".join(dict.fromkeys(case.simulator_error for case in cases if case.simulator_error))


def why_open(answer: Answer) -> str:
    """Return a text on why a claim is undecided, and on how many seeds would decide it."""
    if not answer.evidence and answer.off:
        return f"{effect(answer.off[0])}; {simulator_error(answer.off[0])}; a measured run has to decide"
    if not answer.evidence:
        missing = dict.fromkeys(f"table-{target}" for result in answer.results for target in result.missing)
        return f"not made yet, `make {' '.join(missing)}`" if missing else "no result tells of this claim"
    one = soonest(answer.open)
    if not one.case.seeds_needed:
        return f"{effect(one)}; {one.case.note or 'no number of seeds is known to decide it'}"
    return f"{effect(one)}; about {one.case.seeds_needed} seeds in all would decide it"


def soonest(some: Sequence[Evidence]) -> Evidence:
    """Return the comparison that the fewest seeds would decide; the first one if no number of seeds is known."""
    return min(some, key=lambda one: one.case.seeds_needed or math.inf)


def first_sentence(text: str) -> str:
    """Return the first sentence of ``text``, on one line."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".") + "."
