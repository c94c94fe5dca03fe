"""Versions on all ranks."""

from grsgd.doctor import versions
from grsgd.doctor.versions import VersionFacts


def test_the_same_versions_everywhere():
    found = versions.facts()
    assert {"grsgd", "Python", "torch", "system"} <= {*found.versions}
    assert not any(each.remedy for each in versions.findings([found, found]))


def test_other_versions_on_a_rank_hurt():
    one, two = VersionFacts({"torch": "2.6", "system": "Linux 6.1"}), VersionFacts({"system": "Linux 6.2"})
    torch, system = versions.findings([one, two])
    assert torch.value == "2.6 (rank 0), not installed (rank 1)" and "one environment" in torch.remedy
    assert system.verdict == "ok"
