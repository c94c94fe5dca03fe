"""Findings of an examination by ``grsgd doctor``, and their output as text for people or as JSON for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from grsgd.text import ranks_in_words

MAX_NAMED = 8
"""Largest number of ranks that are listed after one value, if a fact has different values on different ranks."""


@dataclass(frozen=True)
class Finding:
    """Fact about the job: its ``name``, its ``value`` as text, and the ``group`` of facts to which it belongs."""

    group: str
    name: str
    value: str
    remedy: str = ""
    """Advice to the user on how to remove a fault; "" if the finding is no fault. A fault makes trainings fail, gives
    wrong results, or makes trainings slow."""

    @property
    def verdict(self) -> str:
        """Return "hurts" if the finding reports a fault, else "ok"."""
        return "hurts" if self.remedy else "ok"


def hurting(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that report faults. A fault makes trainings fail, gives wrong results, or makes trainings
    slow, and its finding has a remedy."""
    return [finding for finding in findings if finding.remedy]


def by_ranks(values: Sequence[str]) -> str:
    """Return one line of text with the ``values`` of a fact, one value per rank. A value that several ranks have occurs
    only once. If the values differ, each value is followed by the ranks that have it."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    if len(ranks) == 1:
        return values[0]
    return ", ".join(f"{value} ({ranks_in_words(found, MAX_NAMED)})" for value, found in ranks.items())


def in_text(title: str, findings: Sequence[Finding]) -> str:
    """Return the findings as text. In this text, each finding is one line below the name of its group. The findings
    that report faults are repeated at the end with their remedies."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines, group = [title], None
    for finding in findings:
        if finding.group != group:
            group = finding.group
            lines += ["", group]
        lines.append(f"{'!' if finding.remedy else ' '} {finding.name:<{width}}  {finding.value}")
    hurts = hurting(findings)
    lines += ["", f"{len(hurts)} of {len(findings)} findings hurt" if hurts else "nothing found that hurts"]
    for finding in hurts:
        lines += [f"! {finding.group}, {finding.name}: {finding.value}", f"  remedy: {finding.remedy}"]
    return "\n".join(lines)


def in_json(title: str, findings: Sequence[Finding]) -> str:
    """Return the findings as a JSON object with ``title``, ``hurts`` (the number of findings that report faults) and
    ``findings``."""
    listed = [{**asdict(finding), "verdict": finding.verdict} for finding in findings]
    return json.dumps({"title": title, "hurts": len(hurting(findings)), "findings": listed}, indent=2)
