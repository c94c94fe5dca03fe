"""The answer to a claim: the evidence of all scales together, in the order of its weight, and its certainty.

Measured evidence comes before counted evidence, and both before simulated times. Within each kind, the scale with the
most evidence comes first, then the smaller p value. So no scale hides a result of another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from experiments.runner.outcome import (
    ALIKE,
    BY_CONSTRUCTION,
    CONTROL,
    EVIDENCE,
    INCONCLUSIVE,
    OFF,
    REFUTED,
    SUPPORTED,
    Case,
    Outcome,
)
from experiments.runner.run_spec import MEASURED, SIMULATED, TIMING_ONLY
from experiments.tables.claims import EXPECTED, ClaimResult, PaperResult
from experiments.tables.wording import without_source

IN_SIMULATED_TIME = SIMULATED, TIMING_ONLY
"""Sources of times that were not measured by the clock."""
SURE, ONE_SIDED, OPEN = "A", "B", "C"
GRADES = {
    SURE: "measured and simulated times agree, or the cases compare bytes or accuracies",
    ONE_SIDED: "measured times only, or simulated times only, with the simulator's error",
    OPEN: "undecided, with the number of seeds that would decide it",
}
"""Grades of certainty of an answer."""
DECIDED = SUPPORTED, REFUTED, ALIKE
"""Verdicts that decide a case."""



@dataclass(frozen=True)
class Evidence:
    """A case with its outcome, and its scale's position in the order of evidence."""

    outcome: Outcome
    case: Case
    scale_rank: int

    @property
    def is_simulated(self) -> bool:
        return self.case.source in IN_SIMULATED_TIME

    @property
    def place(self) -> tuple[str, str]:
        """Return baseline and condition, regardless of the source of times: a slow host stands for a slow rank."""
        return self.case.baseline, condition(self.case)

    @property
    def rank(self) -> tuple:
        """Return the sort key of the evidence, with the weightiest first."""
        p = self.case.p if self.case.p is not None else 1.0
        return self.is_simulated, self.case.source != MEASURED, self.scale_rank, p


def condition(case: Case) -> str:
    """Return a case's condition without the source of its times."""
    return without_source(case.condition).replace("one host", "one rank")


@dataclass(frozen=True)
class Answer:
    """A claim with the results of all scales on it. results: one per scale, the scale with the most evidence first."""

    results: Sequence[ClaimResult]

    @property
    def claim(self) -> dict:
        return self.results[0].claim

    @cached_property
    def everything(self) -> list[Evidence]:
        """Return all cases of all scales, controls included, in order; a case of several scales comes once."""
        found = {}
        for scale_rank, result in enumerate(self.results):
            for outcome, case in ((outcome, case) for outcome, finding in result.found for case in finding.cases):
                found.setdefault(case, Evidence(outcome, case, scale_rank))
        return sorted(found.values(), key=lambda one: one.rank)

    @cached_property
    def evidence(self) -> list[Evidence]:
        """Return the counted cases, without simulated cases that a measured case at the same scale contradicts."""
        counted = [one for one in self.everything if one.case.kind == EVIDENCE]
        by_clock = {
            (one.scale_rank, one.place): one.case.verdict for one in reversed(counted) if self._is_decided_by_clock(one)
        }

        def stands(one: Evidence) -> bool:
            verdict = one.case.verdict
            return not one.is_simulated or by_clock.get((one.scale_rank, one.place), verdict) == verdict

        return list(filter(stands, counted))

    @property
    def controls(self) -> list[Evidence]:
        return [one for one in self.everything if one.case.kind == CONTROL]

    @property
    def off(self) -> list[Evidence]:
        """Return the simulated cases that are too far from measured times to count."""
        return [one for one in self.everything if one.case.kind == OFF]

    @property
    def holding(self) -> list[Evidence]:
        """Return the evidence for the claim."""
        return [one for one in self.evidence if one.case.verdict == SUPPORTED]

    @property
    def failing(self) -> list[Evidence]:
        """Return the evidence against the claim: refuted cases, and cases without a difference."""
        return [one for one in self.evidence if one.case.verdict in (REFUTED, ALIKE)]

    @property
    def open(self) -> list[Evidence]:
        return [one for one in self.evidence if one.case.verdict == INCONCLUSIVE]

    @property
    def is_built(self) -> bool:
        """Return whether no result could have been different: all cases are true by construction, or controls."""
        kinds = {one.case.kind for one in self.everything}
        return BY_CONSTRUCTION in kinds and kinds <= {BY_CONSTRUCTION, CONTROL}

    @property
    def is_decided(self) -> bool:
        return bool(self.holding or self.failing)

    def by_scale(self, paper: "PaperAnswers") -> dict[str, ClaimResult]:
        return dict(zip(paper.by_scale, self.results, strict=True))

    def grade(self, one: Evidence) -> str:
        """Return the grade of a case's certainty."""
        if one.case.verdict not in DECIDED:
            return OPEN
        others = {other.is_simulated for other in self.evidence if other.place == one.place and _agree(other, one)}
        return SURE if len(others) == 2 or not one.case.source else ONE_SIDED

    @staticmethod
    def _is_decided_by_clock(one: Evidence) -> bool:
        return not one.is_simulated and one.case.verdict in DECIDED


def _agree(one: Evidence, other: Evidence) -> bool:
    return one.case.verdict == other.case.verdict


@dataclass(frozen=True)
class PaperAnswers:
    """The answers to all claims of a paper. by_scale: the paper's results, by the name of the scale."""

    by_scale: dict[str, PaperResult]

    @property
    def paper(self) -> PaperResult:
        return next(iter(self.by_scale.values()))

    @property
    def about(self) -> dict:
        return self.paper.about

    @cached_property
    def answers(self) -> list[Answer]:
        return [Answer(results) for results in zip(*(paper.claims for paper in self.by_scale.values()), strict=True)]

    @property
    def own(self) -> list[Answer]:
        """Return the answers to the paper's own claims."""
        return [answer for answer in self.answers if answer.claim["kind"] != EXPECTED]

    @property
    def expected(self) -> list[Answer]:
        """Return the answers to claims that are expected of its method."""
        return [answer for answer in self.answers if answer.claim["kind"] == EXPECTED]

    @cached_property
    def main(self) -> list[Answer]:
        """Return the answers to the claims of the paper's abstract: the headline, and the claims next to it."""
        by_id = {answer.claim["id"]: answer for answer in self.answers}
        return [by_id[name] for name in [self.about["headline"], *self.about.get("beside", [])]]
