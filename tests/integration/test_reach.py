"""``python -m tests.reach``: which unit tests reach a line, as records say that need not be of the code as it is."""

import json

import pytest

from tests import reach
from tests.mutants import reach as records

TRAFFIC = "grsgd/comm/traffic.py"


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """Records of two files of tests: one of the code as it is, and one of older code."""
    monkeypatch.setattr(records, "CACHE", tmp_path)
    new, old = "tests/integration/test_reach.py", "tests/integration/test_places.py"
    monkeypatch.setattr(records, "files_of_tests", lambda: [new, old])
    files = {new: records.record_of(new), old: tmp_path / f"{records.dotted(old)}-0.json"}
    for number, (name, file) in enumerate(files.items()):
        test = f"{name}::test_{number}"
        lines = {TRAFFIC: {"30": [test], str(31 + number): [test]}}
        file.write_text(json.dumps({"seconds": {test: 0.1}, "failed": [], "lines": lines}))
    return [f"{name}::test_{number}" for number, name in enumerate(files)]


@pytest.mark.parametrize(("place", "which"), [("", [1, 0]), (":30", [1, 0]), (":31", [0]), (":32", [1])])
def test_tests_that_reach_a_place_are_printed(place, which, recorded, capsys):
    assert reach.main([TRAFFIC + place]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [recorded[number] for number in which]
    assert said.err.startswith("1 of 2 files of tests are not recorded with the code as it is: --record ")


def test_a_line_that_no_test_reaches(recorded, capsys):
    assert reach.main([f"{TRAFFIC}:1"]) == 1
    assert capsys.readouterr().out == f"no unit test reaches {TRAFFIC}:1 in a function\n"


@pytest.mark.parametrize(
    ("place", "why"),
    [(TRAFFIC, "--record makes them"), ("docs/results.md", "not among the files"), (f"{TRAFFIC}:x", "'x' is not")],
)
def test_what_cannot_be_told(place, why, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(records, "CACHE", tmp_path)
    with pytest.raises(SystemExit):
        reach.main([place])
    assert why in capsys.readouterr().err
