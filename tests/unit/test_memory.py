"""The memory that is free, of a machine and of control groups."""

import pytest

from grsgd import memory


def group(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


STAT = {"memory__stat": "anon 5\ninactive_file 30\ntotal_inactive_file 20\n"}


@pytest.mark.parametrize(
    "files, left",
    [
        ({"memory__max": "100\n", "memory__current": "60\n"} | STAT, 70),
        ({"memory__max": "max\n", "memory__current": "60\n"} | STAT, None),
        ({"memory__limit_in_bytes": "100", "memory__usage_in_bytes": "60"} | STAT, 60),
        ({"memory__max": "50", "memory__current": "60"} | STAT, 30),
        ({}, None),
    ],
)
def test_what_a_control_group_leaves(tmp_path, files, left):
    assert memory.of_group(group(tmp_path / "group", **files)) == left


def test_the_least_of_machine_and_groups_counts(tmp_path):
    machine = memory.available(tmp_path)
    assert 2**24 < machine <= 2**50
    group(tmp_path, memory__max="1000", memory__current="400", **STAT)
    assert memory.available(tmp_path) == 630
