"""The test of whether less traffic, less time and the same accuracy hold together, as the paper's abstract claims."""

from collections.abc import Sequence

from experiments.papers.adgossip_2018.runs import (
    ADAPTIVE,
    FEWER_BYTES,
    PERIODIC,
    SECONDS,
    SENT,
    accuracy_at_the_end,
    columns_until_target,
    each,
    until_target,
    whole,
)
from experiments.runner import decide
from experiments.runner.outcome import ALIKE, INCONCLUSIVE, REFUTED, SUPPORTED, Case
from experiments.runner.run_spec import SIMULATED
from experiments.tables.targets import register

NAMES = ADAPTIVE | PERIODIC
UNTIL, WHOLE = "until the target", "whole"


def needs(conditions):
    return {(UNTIL, name): until_target(conditions, *config) for name, config in NAMES.items()} | {
        (WHOLE, name): whole(conditions, *config) for name, config in NAMES.items()
    }


def show(found, section):
    parts = {part: {name: runs for (which, name), runs in found.items() if which == part} for part in (UNTIL, WHOLE)}
    columns = columns_until_target(parts[UNTIL])
    accuracies = each(accuracy_at_the_end, parts[WHOLE])
    rows, cases = [], []
    for ours in ADAPTIVE:
        for other in PERIODIC:
            three = [
                decide.less(columns[SENT][ours], columns[SENT][other], ours, other, FEWER_BYTES, source="", pairs=True),
                decide.less(columns[SECONDS][ours], columns[SECONDS][other], ours, other, pairs=True),
                decide.no_worse(accuracies[ours], accuracies[other], ours, other, source="", pairs=True),
            ]
            together = all_of(three, ours, other)
            rows.append([ours, other, *(f"{case.text()}: {case.verdict}" for case in three), together.verdict])
            cases.append(together)
    section.table(
        "Bytes and time until the target accuracy, and accuracy after the same number of samples; simulated, slow "
        "links.",
        ["exchanges", "against", "bytes", "time", "accuracy", "all three together"],
        rows,
    )
    section.finding(
        "adgossip-together",
        "the claim holds if bytes and time until the target accuracy are less and at most one point of accuracy is "
        "lost, each by its own interval; the claim does not hold if one of these three parts does not hold or makes no "
        "difference; simulated, slow links",
        cases,
        "Sending fewer bytes need not save time, and rare exchanges may cost accuracy.",
    )


def all_of(cases: Sequence[Case], condition: str, baseline: str) -> Case:
    """Return a comparison (case) that tests whether the claims of all ``cases`` hold at once.

    The verdict of the returned case is "supported" if all ``cases`` are supported. The verdict of the returned case is
    "refuted" if one of ``cases`` is refuted or shows no difference. If some cases are undecided, and none is refuted
    or shows no difference, the verdict of the returned case is "inconclusive". The p value of the returned case is the
    greatest p value of ``cases`` if all are supported. If some are refuted, it is the least p value of the refuted
    cases. The note of a returned case with the verdict "refuted" names the effects that refute the claims.
    """
    failing = [case for case in cases if case.verdict in (REFUTED, ALIKE)]
    if failing:
        verdict, p = REFUTED, min((case.p for case in failing if case.verdict == REFUTED), default=None)
    elif all(case.verdict == SUPPORTED for case in cases):
        verdict, p = SUPPORTED, max(case.p for case in cases)
    else:
        verdict, p = INCONCLUSIVE, None
    seeds = min(case.seeds for case in cases)
    note = " and ".join(case.text() for case in failing)
    return Case(condition, baseline, verdict, None, None, None, "", seeds, SIMULATED, p=p, note=note)


register("adgossip-together", "Less traffic, less time and the same accuracy together", needs, show)
