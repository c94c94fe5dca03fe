"""When to stop adding seeds: a rule that is fixed before the first run.

    python -m experiments.tables.sequential results/SCALE

Seeds are added in batches of five, up to twenty. After each batch a comparison has an answer, and no more seeds, if its
direction is significant at the bound of O'Brien and Fleming (1979, "A multiple testing procedure for clinical trials"),
or if its 95 % interval lies within the equivalence zone. The bound is strict at first, so that looking four times is no
more often wrong than one look.

The command prints, for the cases of the outcomes in a folder that are not decided, how many seeds would decide them.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scipy import special
from tabulate import tabulate

from experiments.tables.effect import FEWEST_SEEDS, SIGNIFICANCE, level
from experiments.tables.outcome import EVIDENCE, INCONCLUSIVE, REFUTED, SUPPORTED, Case, load

BATCH, MOST = FEWEST_SEEDS, 20
"""How many seeds are added at a time, and how many there are at most."""
FINAL_BOUND = 2.609
"""Of a normal deviate, after the last batch; after k of K batches it is greater by the square root of K / k. All looks
together have 1 %, the level of few seeds (`effect.level`)."""


def bound(seeds: int) -> float:
    """Return the two-sided level of the t test after so many seeds."""
    return 2 * float(special.ndtr(-FINAL_BOUND * math.sqrt(MOST / min(seeds, MOST))))


def judged(case: Case) -> Case:
    """Return a case whose seeds were added by this rule, with the verdict and the p value of its look.

    The p value is scaled, so that it is below 0.05 where the t test is significant at the bound of the look.
    """
    if case.p is None or not case.seeds:
        return case
    scaled = replace(case, p=min(1.0, case.p * level(case.seeds) / bound(case.seeds)))
    if case.verdict not in (SUPPORTED, REFUTED) or scaled.p < SIGNIFICANCE:
        return scaled
    note = f"not significant at the bound for {case.seeds} of {MOST} seeds"
    return replace(scaled, verdict=INCONCLUSIVE, note="; ".join(filter(None, [case.note, note])))


def more_seeds(case: Case) -> int:
    """Return how many seeds a judged case gets next; 0 if it is decided, or has as many as the rule allows."""
    if case.verdict != INCONCLUSIVE or case.seeds >= MOST:
        return 0
    return BATCH - case.seeds % BATCH


def advice(case: Case) -> str:
    """Return what a judged case takes: "decided", "5 more seeds", or how many seeds beyond the rule."""
    if case.verdict != INCONCLUSIVE:
        return "decided"
    needed = f"{case.seeds_needed} seeds would decide it" if case.seeds_needed else "more seeds would not decide it"
    more = more_seeds(case)
    return f"{more} more seeds; {needed}" if more else f"undecided with {case.seeds} seeds; {needed}"


def undecided(folder: Path) -> list[tuple[str, str, str, str, str]]:
    """Return target, condition, baseline, estimate and advice of each case of the evidence that is not decided."""
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
