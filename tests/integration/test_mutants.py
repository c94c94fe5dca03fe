"""The mutants of tests/mutants: drawn as said, written down as the code stands, and found by tests."""

import ast
import json
import subprocess
import sys

import pytest

from tests.mutants import changes
from tests.mutants.changes import ROOT

TRAFFIC = "grsgd/comm/traffic.py"
TESTS_OF_TRAFFIC = "tests/unit/comm/test_traffic.py"


def test_the_dangerous_ones_fit_the_code():
    mutants = changes.dangerous(changes.files())
    assert len(mutants) > 40
    assert all(mutant.text != (ROOT / mutant.path).read_text() for mutant in mutants)


@pytest.mark.parametrize("before", ["self.sent_twice = 0", "counters = self._of(receiver)"], ids=["nowhere", "twice"])
def test_a_dangerous_one_that_does_not_fit_is_named(before):
    entry = {"name": "mine", "file": TRAFFIC, "before": before, "after": "pass", "wrong": "nothing"}
    with pytest.raises(ValueError, match="mine.*times in grsgd/comm/traffic.py"):
        changes.dangerous(changes.files(), [entry])


def test_the_equivalent_ones_fit_the_code():
    assert all(changes.equivalent().values())


def test_an_equivalent_one_is_known_by_its_change_and_its_line():
    line = "counters[HEADERS] += header"
    entry = {"file": TRAFFIC, "line": line, "before": line, "after": "pass", "reason": "none"}
    (name,) = changes.equivalent([entry])
    assert name.startswith(TRAFFIC) and name.endswith("removed")
    with pytest.raises(ValueError, match="no mutant of grsgd/comm/traffic.py"):
        changes.equivalent([entry | {"line": "self.sent_once = 0"}])


def test_mutants_are_drawn_by_their_seed_and_spread_over_the_files():
    paths = changes.files()
    first, again, other = (changes.drawn(paths, 80, seed) for seed in (1, 1, 2))
    assert [m.name for m in first] == [m.name for m in again] != [m.name for m in other]
    assert len(first) == len({m.name for m in first}) == 80
    for some in (first, other):
        files = {m.path for m in some}
        assert {path.split("/")[1] for path in files} >= {"comm", "algorithms", "simulator"} and len(files) == 80


@pytest.mark.parametrize("path", [TRAFFIC, "grsgd/comm/engine.py", "grsgd/algorithms/gosgd.py", "coding/cpu.py"])
def test_every_change_is_one_of_the_code(path):
    whole = ast.dump(ast.parse((ROOT / path).read_text()))
    for mutant in changes.all_of(path):
        assert ast.dump(ast.parse(mutant.text)) != whole, mutant


def test_what_people_read_is_left_alone():
    text = '"""Doc 1."""\nx: int = 2\ndef f(a: "1" = 3):\n    """Doc 2."""\n    raise ValueError(a + 1)\n'
    text += "class C:\n    def __str__(self):\n        return 4 + 4\n"
    found = {(text[site.begin : site.end], after) for site in changes.sites(text) for _, after in site.becomes}
    assert found == {("2", "(3)"), ("2", "(1)"), ("3", "(4)"), ("3", "(2)"), ("raise ValueError(a + 1)", "pass")}


PROGRAM = """
import json, sys
from functools import partial
from tests.mutants import trial
from tests.mutants.changes import Mutant
from tests.mutants.trial import in_children, killer, reached

trial.SECONDS_FOR_A_TEST = 20
path, tests, texts = json.load(sys.stdin)
works = [("lines", partial(reached, tests[0].partition("::")[0], [path]))]
for name, text in texts.items():
    mutant = Mutant(name, path, range(1), False, "", "", text)
    works.append((name, partial(killer, mutant, dict.fromkeys(tests, 0.1))))
found = {}
in_children(works, 2, lambda key, result, output: found.update({key: result}))
print(json.dumps(found))
"""


def test_a_mutant_is_killed_by_a_test_that_reaches_it():
    pytest.importorskip("coverage")
    text = (ROOT / TRAFFIC).read_text()
    counting = "self.sent_once += nbytes - header"
    texts = {
        "none": text,
        "wrong": text.replace(counting, "self.sent_once += nbytes"),
        "endless": text.replace(counting, "while True: pass"),
        "unreadable": text.replace(counting, "self.sent_once +="),
    }
    tests = [f"{TESTS_OF_TRAFFIC}::{name}" for name in ("test_messages_to_one_rank", "test_nothing_at_first")]
    command = [sys.executable, "-c", PROGRAM]
    asked = json.dumps([TRAFFIC, tests, texts])
    done = subprocess.run(command, cwd=ROOT, input=asked, capture_output=True, text=True, timeout=600, check=True)
    found = json.loads(done.stdout)
    lines = found.pop("lines")
    assert not lines["failed"] and set(tests) < lines["seconds"].keys()
    where = 1 + text[: text.index(counting)].count("\n")
    assert tests[0] in lines["lines"][TRAFFIC][str(where)]
    assert tests[1] not in lines["lines"][TRAFFIC][str(where)]
    assert found.pop("unreadable").startswith("pytest ends with")
    assert found == {"none": None, "wrong": tests[0], "endless": "takes too long"}
