"""Quotas of the processor, in both versions of control groups."""

import pytest

from grsgd import control_groups


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "50000 100000\n"}, (0.5, 0.1)),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.cfs_quota_us": "2000\n", "cpu.cfs_period_us": "16000\n"}, (0.125, 0.016)),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_a_group(tmp_path, files, quota):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert control_groups.quota_of(tmp_path) == control_groups.cpu_quota(tmp_path) == quota


def test_the_least_quota_counts(tmp_path, monkeypatch):
    (tmp_path / "cpu").mkdir()
    for folder, text in ((tmp_path, "300000 100000"), (tmp_path / "cpu", "70000 100000")):
        (folder / "cpu.max").write_text(text)
    assert control_groups.cpu_quota(tmp_path) == (0.7, 0.1)


def test_groups_above_count_too(tmp_path, monkeypatch):
    """Version 1, where controllers may share a tree, and version 2."""
    monkeypatch.setattr(control_groups.Path, "read_text", lambda path: "3:cpu,cpuacct:/a/b\n2:memory:/c\n0::/d\n")
    found = {str(folder.relative_to(tmp_path)) for folder in control_groups.folders("cpu", tmp_path)}
    assert found == {".", "cpu", "cpu/a/b", "cpu/a", "d"}
