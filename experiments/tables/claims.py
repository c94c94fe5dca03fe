"""The claims of the papers, with the findings (comparisons and their verdicts) on each claim."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from experiments.runner.outcome import Case, Finding, Outcome
from experiments.tables.wording import NOT_COVERED, NOT_MADE, overall

NUMBER, DIRECTION, BY_CONSTRUCTION, EXPECTED = "number", "direction", "by construction", "expected"
KINDS = {
    NUMBER: "the paper gives a number, with which cases are compared",
    DIRECTION: "the paper gives a direction, but no number",
    BY_CONSTRUCTION: "the result follows from the construction of the method or of the count, and could not differ",
    EXPECTED: "not in the paper, but expected of its method; it is tried as a check of the method as built here",
}
METHODS = {
    "documented": "the paper says enough to build the method",
    "reconstructed": "the paper leaves steps open, which were filled in; the verdict is on the filled-in method",
    "stand-in": "another experiment stands in for the paper's experiment",
}


@dataclass(frozen=True)
class ClaimResult:
    """A claim of a paper, with the findings on it, each paired with the outcome that contains it.

    missing: names of the claim's targets (tables or figures) that have not been made. silent: names of the claim's
    targets that have been made, but have no finding on the claim.
    """

    claim: dict
    found: Sequence[tuple[Outcome, Finding]]
    missing: Sequence[str]
    silent: Sequence[str]

    @property
    def cases(self) -> list[Case]:
        return [case for _, finding in self.found for case in finding.cases]

    @property
    def evidence(self) -> list[Case]:
        """Return the comparisons that count for the verdict on the claim."""
        return [case for _, finding in self.found for case in finding.evidence]

    @property
    def verdict(self) -> str:
        """Return the verdict on the claim, one of ``wording.SYMBOLS``."""
        if "not_covered" in self.claim:
            return NOT_COVERED
        return overall(self.cases) if self.found or not self.missing else NOT_MADE

    @property
    def words(self) -> str:
        """Return the verdict with the numbers of comparisons, or the reason why there is no verdict."""
        if not self.found:
            return self.claim.get("not_covered", self.verdict)
        return Finding(self.claim["id"], "", self.cases).verdict


@dataclass(frozen=True)
class PaperResult:
    """A paper, with the results on all of its claims.

    about: the [paper] table of the paper's claims.toml. setup: trainings of the paper, with the trainings that repeat
    them. targets: names of the paper's targets (tables or figures), first in the order of the claims, then the targets
    that no claim mentions.
    """

    id: str
    about: dict
    setup: Sequence[dict]
    claims: Sequence[ClaimResult]
    targets: Sequence[str]

    @property
    def own(self) -> list[ClaimResult]:
        """Return the results on the claims that the paper makes itself."""
        return [result for result in self.claims if result.claim["kind"] != EXPECTED]

    @property
    def expected(self) -> list[ClaimResult]:
        """Return the results on the claims that the paper does not make, but that its method leads one to expect."""
        return [result for result in self.claims if result.claim["kind"] == EXPECTED]

    @cached_property
    def headline(self) -> ClaimResult | None:
        """Return the result on the main claim of the paper; None if claims.toml names none."""
        return next((result for result in self.claims if result.claim["id"] == self.about.get("headline")), None)


def read_claims(papers: Iterable[Path]) -> dict[str, dict]:
    """Return the claims of the papers by id.

    ``papers``: folders with a claims.toml. Each claim also has the name of its paper's folder, as ``paper``. Raises
    ValueError if an id is given twice, and if the headline of a paper is not one of its claims. Raises ValueError if a
    claim lacks a kind, a method, or either targets or a reason why it has no targets.
    """
    claims = {}
    for paper in papers:
        content = read(paper)
        for claim in content["claim"]:
            if claim["id"] in claims:
                raise ValueError(f"{paper}: claim {claim['id']!r} is given twice")
            _check(claim, paper)
            claims[claim["id"]] = {"targets": [], **claim, "paper": paper.name}
        if claims.get(content["paper"]["headline"], {}).get("paper") != paper.name:
            raise ValueError(f"{paper}: the headline {content['paper']['headline']!r} is none of its claims")
    return claims


def _check(claim: dict, paper: Path):
    if bool(claim.get("targets")) == bool(claim.get("not_covered")):
        raise ValueError(f"{paper}: claim {claim['id']!r} must have either targets or not_covered")
    for key, known in (("kind", KINDS), ("method", METHODS)):
        if claim.get(key) not in known:
            raise ValueError(f"{paper}: claim {claim['id']!r} must have a {key}: {', '.join(known)}")


def read(paper: Path) -> dict:
    """Return the content of the claims.toml in a paper's folder."""
    return tomllib.loads((paper / "claims.toml").read_text(encoding="utf-8"))


def results(papers: Sequence[Path], outcomes: Mapping[str, Outcome]) -> list[PaperResult]:
    """Return the results on every claim of the papers.

    Outcomes that belong to no paper, if there are any, are added at the end.

    outcomes: outcomes of targets, by name of the target. Raises ValueError if ``read_claims`` refuses the claims, or
    if an outcome has a finding on a claim that no paper makes.
    """
    claims = read_claims(papers)
    for outcome in outcomes.values():
        for finding in outcome.findings:
            if finding.claim not in claims:
                raise ValueError(
                    f"{outcome.target} has a finding on {finding.claim!r}, which is no paper's claim: make it again"
                )
    shown, left = [], dict.fromkeys(outcomes)
    for folder in papers:
        content = read(folder)
        about = content["paper"]
        own = [_result(claim, outcomes) for claim in claims.values() if claim["paper"] == folder.name]
        named = [target for result in own for target in result.claim["targets"]]
        others = [target for target in left if outcomes[target].paper in (folder.name, about["name"])]
        targets = list(dict.fromkeys(named + others))
        left = {target: None for target in left if target not in targets}
        shown.append(PaperResult(folder.name, about, content.get("setup", []), own, targets))
    return shown + ([PaperResult("others", {"name": "Other targets"}, [], [], list(left))] if left else [])


def _result(claim: dict, outcomes: Mapping[str, Outcome]) -> ClaimResult:
    found = [
        (outcome, finding)
        for outcome in outcomes.values()
        for finding in outcome.findings
        if finding.claim == claim["id"]
    ]
    speaking = {outcome.target for outcome, _ in found}
    missing = [target for target in claim["targets"] if target not in outcomes]
    silent = [target for target in claim["targets"] if target in outcomes and target not in speaking]
    return ClaimResult(claim, found, missing, silent)
