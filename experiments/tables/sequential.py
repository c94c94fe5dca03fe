"""Decides whether a target (table or figure) gets twice as many seeds, because more seeds may decide a comparison.

    python -m experiments.tables.sequential results/SCALE

The rule for second looks (doubled seeds) was fixed before the first run. A target has a second look if twice the seeds
of an undecided comparison would probably decide this comparison. In a second look, all comparisons of the target are
made with all seeds. Each look tests at the significance level for its number of seeds (`effect.level`): 0.9 % for up
to ten seeds, and 1.8 % for twenty seeds. The two looks together therefore find a wrong effect in at most 2.7 % of
comparisons.

The command prints the undecided comparisons of the outcomes in a folder, with the number of seeds that would decide
each.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from experiments.runner.outcome import EVIDENCE, INCONCLUSIVE, Case, Outcome, load
from experiments.runner.run_spec import MEASURED

LOOKS = 2
"""Greatest number of looks (sets of seeds) for a target, and factor between the seeds of the two looks."""


def takes_second_look(case: Case) -> bool:
    """Return True if a comparison is undecided, and twice as many seeds would decide it with the planned probability.

    Measured comparisons have no second look, because each measured training takes minutes.
    """
    is_open = case.verdict == INCONCLUSIVE and case.kind == EVIDENCE and case.source != MEASURED
    return is_open and case.seeds < (case.seeds_needed or 0) <= LOOKS * case.seeds


def undecided_targets(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the targets with an undecided comparison that a second look would probably decide."""
    return [
        outcome.target
        for outcome in outcomes
        if any(takes_second_look(case) for finding in outcome.findings for case in finding.cases)
    ]


def advice(case: Case) -> str:
    """Return a clause that says how an undecided comparison could be decided."""
    if not case.seeds_needed or case.seeds_needed <= case.seeds:
        return "more seeds would not decide it"
    needed = f"{case.seeds_needed} seeds would decide it"
    return f"{needed}, which a second look has" if takes_second_look(case) else needed


def undecided(folder: Path) -> list[tuple[str, str, str, str, str]]:
    """Return target, condition, baseline, estimate and advice for each undecided comparison that counts as evidence."""
    return [
        (outcome.target, case.condition, case.baseline, case.text(), advice(case))
        for outcome in map(load, sorted(folder.glob("*.json")))
        for finding in outcome.findings
        for case in finding.cases
        if case.kind == EVIDENCE and case.verdict == INCONCLUSIVE
    ]


def main(arguments: Sequence[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of outcomes, as `make tables` writes them: results/SCALE")
    headers = ["target", "condition", "against", "estimate", "what it takes"]
    print(tabulate(undecided(parser.parse_args(arguments).folder), headers, "github"))


if __name__ == "__main__":
    main()
