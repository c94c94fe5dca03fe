"""Recorded runs that are made again, and how often verdicts are wrong: what the page says of its trust."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.runner.outcome import Outcome
from experiments.runner.run_spec import MEASURED, SIMULATED
from experiments.tables import checks, trust
from grsgd.runs.run_file import save_run
from tests.support.runs import fake_run


def test_runs_are_the_same_if_no_number_differs_but_in_the_last_digit():
    one, again = fake_run(seed=1), fake_run(seed=1)
    assert trust.is_same(one, again)
    again.ranks["compute_seconds"] = one.ranks["compute_seconds"] * (1 + 1e-15)
    assert trust.is_same(one, again)
    for part, name, factor in (("ranks", "steps", 2), ("curve", "time", 1 + 1e-9), ("traffic", "sent", 3)):
        other = fake_run(seed=1)
        getattr(other, part)[name] = getattr(other, part)[name] * factor + (
            0 if np.any(getattr(other, part)[name]) else 1
        )
        assert not trust.is_same(one, other), name


def test_simulated_runs_alone_are_made_again_and_each_once(tmp_path):
    files = [tmp_path / f"{name}.h5" for name in "ab"]
    for file in files:
        save_run(file, fake_run())
    runs = [{"file": str(file), "source": SIMULATED, "command": ""} for file in files]
    runs += [{"file": str(tmp_path / "gone.h5"), "source": SIMULATED}, {"file": str(files[0]), "source": MEASURED}]
    outcome = replace(Outcome("a", "", "", "smoke", ""), runs=runs)
    assert trust.simulated_runs([outcome, outcome]) == runs[:2]


def test_a_run_that_comes_out_otherwise_is_named(tmp_path, monkeypatch, capsys):
    runs = [{"file": str(tmp_path / f"{seed}.h5"), "source": SIMULATED, "command": f"again {seed}"} for seed in (0, 1)]
    for run in runs:
        Path(run["file"]).touch()
    monkeypatch.setattr(trust, "comes_out_the_same", lambda run, folder: run["command"] == "again 0")
    monkeypatch.setattr(trust.nulls, "greatest", lambda draws, seed: trust.nulls.Rates(above=2.0, below=3.0))
    found = trust.try_anew([replace(Outcome("a", "", "", "smoke", ""), runs=runs)], runs=5, draws=7, seed=1)
    assert (found.made, found.equal, found.wrong_supported, found.wrong_refuted) == (2, 1, 2.0, 3.0)
    assert "differs when repeated: again 1" in capsys.readouterr().err


def test_a_damaged_record_is_named(tmp_path):
    assert checks.load(trust.Trust, tmp_path / "trust.json") is None
    (tmp_path / "trust.json").write_text("{}")
    with pytest.raises(ValueError, match="trust.json is damaged, make it again"):
        checks.load(trust.Trust, tmp_path / "trust.json")
