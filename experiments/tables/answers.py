"""The answer to a claim: the evidence of all scales together, the best first, and how sure it is.

What the clock has measured comes before what was counted, and that before simulated times; within each the scale that
says most comes first, then the smaller p value. So no scale hides what another one has found.
"""

import re
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

IN_SIMULATED_TIME = SIMULATED, TIMING_ONLY
"""The sources of times that no clock has measured."""
SURE, ONE_SIDED, OPEN = "A", "B", "C"
GRADES = {
    SURE: "measured and simulated times agree, or what counts are bytes or accuracies",
    ONE_SIDED: "measured times alone, or simulated times alone, with the simulator's error",
    OPEN: "undecided, with the number of seeds that would decide it",
}
"""How sure an answer is."""
DECIDED = SUPPORTED, REFUTED, ALIKE
CLOCK = re.compile(r",? ?\bby the clock\b,? ?")


@dataclass(frozen=True)
class Evidence:
    """A case with the outcome that it comes from, and its place in the order of all evidence."""

    outcome: Outcome
    case: Case
    scale_rank: int

    @property
    def is_simulated(self) -> bool:
        return self.case.source in IN_SIMULATED_TIME

    @property
    def place(self) -> tuple[str, str]:
        """Against whom, and under what condition, however times were had: a slow host stands for a slow rank."""
        return self.case.baseline, condition(self.case)

    @property
    def rank(self) -> tuple:
        """The order of evidence, the best first."""
        p = self.case.p if self.case.p is not None else 1.0
        return self.is_simulated, self.case.source != MEASURED, self.scale_rank, p


def condition(case: Case) -> str:
    """Return a case's condition without how times were had."""
    return CLOCK.sub(", ", case.condition).replace("one host", "one rank").strip(", ")


@dataclass(frozen=True)
class Answer:
    """A claim with what all scales have found on it. results: of each scale, the one that says most first."""

    results: Sequence[ClaimResult]

    @property
    def claim(self) -> dict:
        return self.results[0].claim

    @cached_property
    def everything(self) -> list[Evidence]:
        """All cases of all scales, controls too, the best first; what several scales share, once."""
        found = {}
        for scale_rank, result in enumerate(self.results):
            for outcome, case in ((outcome, case) for outcome, finding in result.found for case in finding.cases):
                found.setdefault(case, Evidence(outcome, case, scale_rank))
        return sorted(found.values(), key=lambda one: one.rank)

    @cached_property
    def evidence(self) -> list[Evidence]:
        """The counted cases, without simulated ones where the clock has decided otherwise at the same scale."""
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
        """The simulated cases that are too far from the clock to be counted."""
        return [one for one in self.everything if one.case.kind == OFF]

    @property
    def holding(self) -> list[Evidence]:
        """The evidence for the claim."""
        return [one for one in self.evidence if one.case.verdict == SUPPORTED]

    @property
    def failing(self) -> list[Evidence]:
        """The evidence against the claim: the other way round, or no difference."""
        return [one for one in self.evidence if one.case.verdict in (REFUTED, ALIKE)]

    @property
    def open(self) -> list[Evidence]:
        return [one for one in self.evidence if one.case.verdict == INCONCLUSIVE]

    @property
    def is_built(self) -> bool:
        """Whether all that is found could not have come out otherwise."""
        kinds = {one.case.kind for one in self.everything}
        return BY_CONSTRUCTION in kinds and kinds <= {BY_CONSTRUCTION, CONTROL}

    @property
    def is_decided(self) -> bool:
        return bool(self.holding or self.failing)

    def by_scale(self, paper: "PaperAnswers") -> dict[str, ClaimResult]:
        return dict(zip(paper.by_scale, self.results, strict=True))

    def grade(self, one: Evidence) -> str:
        """Return how sure what a case says is."""
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
        """The answers to what the paper itself says."""
        return [answer for answer in self.answers if answer.claim["kind"] != EXPECTED]

    @property
    def expected(self) -> list[Answer]:
        """The answers to what is expected of its method."""
        return [answer for answer in self.answers if answer.claim["kind"] == EXPECTED]

    @cached_property
    def main(self) -> list[Answer]:
        """The answers to what the paper's abstract is about: the headline, and the claims beside it."""
        by_id = {answer.claim["id"]: answer for answer in self.answers}
        return [by_id[name] for name in [self.about["headline"], *self.about.get("beside", [])]]
