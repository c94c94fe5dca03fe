"""Two looks at a target: one with its seeds, and one with twice as many seeds if more seeds may decide a case.

    python -m experiments.tables.sequential results/SCALE

The rule is fixed before the first run. A target has a second look if twice the seeds of one of its undecided cases
would probably decide this case. In a second look, all cases of the target are decided with all seeds. Each look has the
significance level for its number of seeds (`effect.level`): 0.9 % for up to ten seeds, and 1.8 % for twenty. Therefore,
both looks together err in at most 2.7 % of cases.

The command prints, for the undecided cases of the outcomes in a folder, the number of seeds that would decide them.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from experiments.runner.outcome import EVIDENCE, INCONCLUSIVE, Case, Outcome, load
from experiments.runner.run_spec import MEASURED

LOOKS = 2
"""Greatest number of looks, and ratio of the seeds of the second look to the seeds of the first."""


def takes_second_look(case: Case) -> bool:
    """Return whether a case is undecided, but twice its seeds would decide it with the planned probability.

    Measured cases never take a second look, because each measured training takes minutes.
    """
    is_open = case.verdict == INCONCLUSIVE and case.kind == EVIDENCE and case.source != MEASURED
    return is_open and case.seeds < (case.seeds_needed or 0) <= LOOKS * case.seeds


def undecided_targets(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the targets with a case for which a second look is worth while."""
    return [
        outcome.target
        for outcome in outcomes
        if any(takes_second_look(case) for finding in outcome.findings for case in finding.cases)
    ]


def advice(case: Case) -> str:
    """Return a clause on how an undecided case could be decided."""
    if not case.seeds_needed or case.seeds_needed <= case.seeds:
        return "more seeds would not decide it"
    needed = f"{case.seeds_needed} seeds would decide it"
    return f"{needed}, which a second look has" if takes_second_look(case) else needed


def undecided(folder: Path) -> list[tuple[str, str, str, str, str]]:
    """Return the target, condition, baseline, estimate and advice for each undecided case that is evidence."""
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
