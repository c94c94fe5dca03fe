"""The code of runs: that of a target is one, and what nobody can have again is not recorded."""

from pathlib import Path

import pytest

from experiments.runner import code
from experiments.runner.hosts import Hosts
from experiments.runner.learning_rates import MissingRun
from experiments.runner.needs import Steps
from experiments.runner.parallel import Unfinished
from experiments.runner.plan import Plan
from experiments.runner.run_spec import MEASURED, SIMULATED, UNIT_STEPS
from experiments.runner.setting import Setting
from experiments.runner.store import Store
from experiments.tables import codes
from tests.support.runs import fake_run
from tests.support.store import any_run, plan

DIGITS = ('data.name="digits"', 'model.name="mlp"', "data.augment=false", "data.batch_size=32")
OURS, THEIRS = (Steps(Setting(f"grsgd/{name}", 4, MEASURED, overrides=DIGITS)) for name in ("grsgd", "dpsgd"))
NEEDS = {"ours": {"it": OURS}, "both": {"it": OURS, "other": THEIRS}}


def plan_of(code: str, *algorithms: str) -> Plan:
    """Return the plan of both targets where runs of these algorithms are there."""
    made = plan({}, lambda spec: any_run(spec) if spec.load().algorithm.name in algorithms else None)
    made.store.code, made.needs = code, dict(NEEDS)
    return made


def test_a_target_has_runs_of_one_code_or_is_made_anew():
    """Ours is there of today, theirs of older code alone: they are not joined."""
    today, older = plan_of("0123abcd", "grsgd"), plan_of("0123abce", "dpsgd")
    codes.share([today, older])
    assert list(today.needs) == ["ours", "both"] and not older.needs
    today, older = plan_of("0123abcd", "grsgd"), plan_of("0123abce", "dpsgd", "grsgd")
    codes.share([today, older])
    assert list(today.needs) == ["ours"] and list(older.needs) == ["both"], "all of it is of the older code"


def test_a_run_has_its_code_in_its_name(tmp_path, monkeypatch):
    (spec, *_) = OURS.specs(plan_of("").conditions, lambda setting: 0.1)
    today = Store(tmp_path, Hosts(9, 0.2))
    monkeypatch.setattr(code, "digest_code", lambda: "f" * 8)
    tomorrow = Store(tmp_path, Hosts(9, 0.2))
    unit = spec._replace(source=UNIT_STEPS)
    assert today.path(unit) != tomorrow.path(unit) == today.with_code("f" * 8).path(unit)
    tomorrow.path(unit).touch()
    assert today.other_codes() == ["f" * 8]


def test_comments_and_docstrings_are_no_code():
    plain = code.dump_statements(b"A = 1\n\n\ndef f(x):\n    return x\n")
    told = b'"""It."""\nA = 1  # one\n"""The A."""\ndef f(x):\n    """Return x."""\n\n    return x\n'
    assert code.dump_statements(told) == plain != code.dump_statements(b"A = 2\n\n\ndef f(x):\n    return x\n")


def test_runs_of_code_that_was_not_committed_are_not_recorded():
    runs = {Path(f"{name}.h5"): fake_run(commit=name) for name in ("ce883f7a5b4e", "133f6b4e317c-dirty")}
    runs[Path("none.h5")] = fake_run(commit=None)
    with pytest.raises(Unfinished, match=r"\(1 of 133f6b4e317c-dirty, 1 of no commit\)"):
        codes.check_committed(runs, [])
    codes.check_committed(runs, ["133f6b4e317c-dirty.h5", "none.h5"])


def test_a_missing_run_that_has_no_calibration_yet_has_no_name(tmp_path):
    made = plan({"it": OURS})
    made.store = Store(tmp_path, Hosts(9, 0.2))
    (spec, *_) = OURS.specs(made.conditions, lambda setting: 0.1)
    with pytest.raises(MissingRun, match="^grsgd/grsgd on 4 ranks, seed 0$"):
        made.load_run(spec._replace(source=SIMULATED))
