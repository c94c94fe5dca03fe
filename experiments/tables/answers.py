"""The evidence for and against a claim of a paper, at all scales together, sorted by weight, with its certainty.

Comparisons of measured times weigh most, comparisons without times (such as bytes) less, and comparisons of simulated
times least. Among comparisons of one kind, the scale (size of the experiment) with the most evidence weighs most, and
within a scale the comparison with the least p value. Results of all scales are sorted together, so that no scale hides
a result of another scale.
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
"""Sources of times that are simulated."""
SURE, ONE_SIDED, OPEN = "A", "B", "C"
GRADES = {
    SURE: "measured and simulated times agree, or the cases compare bytes or accuracies",
    ONE_SIDED: "measured times only, or simulated times only, with the simulator's error",
    OPEN: "undecided, with the number of seeds that would decide it",
}
"""Grades of certainty that a page states for the evidence on a claim, with their meaning."""
DECIDED = SUPPORTED, REFUTED, ALIKE
"""Verdicts of a comparison that decide for or against a claim."""



@dataclass(frozen=True)
class Evidence:
    """A comparison (case) with the outcome that contains it, and the rank of its scale in the order of evidence."""

    outcome: Outcome
    case: Case
    scale_rank: int

    @property
    def is_simulated(self) -> bool:
        return self.case.source in IN_SIMULATED_TIME

    @property
    def place(self) -> tuple[str, str]:
        """Return the comparison's baseline and condition, with "rank" for "host" and without the source of times."""
        return self.case.baseline, condition(self.case)

    @property
    def rank(self) -> tuple:
        """Return the sort key of this evidence; the evidence that weighs most has the least key."""
        p = self.case.p if self.case.p is not None else 1.0
        return self.is_simulated, self.case.source != MEASURED, self.scale_rank, p


def condition(case: Case) -> str:
    """Return a comparison's condition without the source of its times, and with "one rank" in place of "one host"."""
    return without_source(case.condition).replace("one host", "one rank")


@dataclass(frozen=True)
class Answer:
    """The results on one claim at all scales (sizes of experiments).

    results: one result per scale; the scale with the most evidence is first.
    """

    results: Sequence[ClaimResult]

    @property
    def claim(self) -> dict:
        return self.results[0].claim

    @cached_property
    def everything(self) -> list[Evidence]:
        """Return the comparisons of all scales, including controls, sorted by weight.

        A comparison that several scales have is returned once.
        """
        found = {}
        for scale_rank, result in enumerate(self.results):
            for outcome, case in ((outcome, case) for outcome, finding in result.found for case in finding.cases):
                found.setdefault(case, Evidence(outcome, case, scale_rank))
        return sorted(found.values(), key=lambda one: one.rank)

    @cached_property
    def evidence(self) -> list[Evidence]:
        """Return the comparisons that count as evidence.

        Simulated comparisons are left out if measured comparisons at the same scale contradict them.
        """
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
        """Return the simulated comparisons that do not count because simulated and measured times differ too much."""
        return [one for one in self.everything if one.case.kind == OFF]

    @property
    def holding(self) -> list[Evidence]:
        """Return the comparisons that support the claim."""
        return [one for one in self.evidence if one.case.verdict == SUPPORTED]

    @property
    def failing(self) -> list[Evidence]:
        """Return the comparisons that are against the claim: their verdict is "refuted" or "no difference"."""
        return [one for one in self.evidence if one.case.verdict in (REFUTED, ALIKE)]

    @property
    def open(self) -> list[Evidence]:
        return [one for one in self.evidence if one.case.verdict == INCONCLUSIVE]

    @property
    def is_built(self) -> bool:
        """Return True if all comparisons are controls or true by construction, so that no other result was possible."""
        kinds = {one.case.kind for one in self.everything}
        return BY_CONSTRUCTION in kinds and kinds <= {BY_CONSTRUCTION, CONTROL}

    @property
    def is_decided(self) -> bool:
        return bool(self.holding or self.failing)

    def by_scale(self, paper: "PaperAnswers") -> dict[str, ClaimResult]:
        return dict(zip(paper.by_scale, self.results, strict=True))

    def grade(self, one: Evidence) -> str:
        """Return the grade of certainty of a comparison, a key of ``GRADES``."""
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
    """The evidence on all claims of a paper.

    by_scale: the results for the paper, by name of the scale (size of the experiments).
    """

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
        """Return the evidence on each claim that the paper makes itself."""
        return [answer for answer in self.answers if answer.claim["kind"] != EXPECTED]

    @property
    def expected(self) -> list[Answer]:
        """Return the evidence on each claim that the paper does not make, but that its method leads one to expect."""
        return [answer for answer in self.answers if answer.claim["kind"] == EXPECTED]

    @cached_property
    def main(self) -> list[Answer]:
        """Return the evidence on each claim of the paper's abstract.

        The main claim is first, and the claims in ``beside`` follow.
        """
        by_id = {answer.claim["id"]: answer for answer in self.answers}
        return [by_id[name] for name in [self.about["headline"], *self.about.get("beside", [])]]
