"""Content that no run file can hold is found before a run trains; content that comes later never costs the run."""

import os

import numpy as np
import pytest

from grsgd.errors import RunFileError
from grsgd.runs.ending import end_attributes
from grsgd.runs.hdf5 import plain
from grsgd.runs.run_file import check_content, load_run, save_run, why_unfit
from grsgd.simulator.run import simulate
from grsgd.testing.simulated import network_of
from grsgd.training.record import fitting
from grsgd.training.saving import ModelFiles
from tests.support.runs import fake_run
from tests.support.training import CONSTANT, config

NOT_UTF8 = os.fsdecode(b"caf\xe9")
WRONG = [NOT_UTF8, "a\0b", "end\0", ["good", NOT_UTF8], ["end\0"], 2**64, [2**64], ["x"] * 70_000]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: ascii(value)[:20])
def test_what_an_attribute_cannot_hold_is_named(tmp_path, value):
    with pytest.raises(RunFileError) as caught:
        check_content(tmp_path / "run.h5", fake_run().attributes | {"note": value})
    text = str(caught.value)
    assert text.startswith(str(tmp_path / "run.h5")) and "note" in text and text.isprintable() and len(text) < 500


def test_what_fits_is_kept_as_it_is(tmp_path):
    attributes = fake_run().attributes | {"note": "é", "list": ["a", "ß"], "number": 2**63, "text": "x" * 10**5}
    attributes |= {"none": None, "nan": float("nan"), "numbers": [1, 2], "yes": True}
    check_content(tmp_path / "run.h5", attributes)
    assert not list(tmp_path.iterdir())
    run = fake_run()
    run.attributes = attributes
    save_run(tmp_path / "run.h5", run)
    found = load_run(tmp_path / "run.h5").attributes
    wanted = {name: repr(plain(value)) for name, value in attributes.items() if value is not None}
    assert wanted == {name: repr(found[name]) for name in wanted}


def test_attributes_of_another_type_are_found_out_too(tmp_path):
    with pytest.raises(RunFileError, match="attribute 'label' must be str"):
        check_content(tmp_path / "run.h5", fake_run().attributes | {"label": 3})


@pytest.mark.parametrize("name", [".", "a\0b", NOT_UTF8, "a/b", ""])
def test_names_that_no_dataset_can_have(name):
    assert why_unfit(name, np.zeros(1)) and why_unfit("loss", np.zeros(1)) is None


@pytest.mark.parametrize("option", ["final", "best"])
def test_a_model_whose_path_no_run_file_can_hold_is_refused_before_it_is_trained(tmp_path, option, monkeypatch):
    monkeypatch.setattr("grsgd.simulator.simulation.Simulation.train", lambda simulation: pytest.fail("it trains"))
    models = ModelFiles(**{option: tmp_path / f"{NOT_UTF8}.pt"})
    with pytest.raises(RunFileError, match=r"model_file = .*\\udce9.pt"):
        simulate(config("dpsgd"), 2, network_of(), tmp_path / "run.h5", CONSTANT, models=models)


def test_the_text_of_an_exception_never_costs_the_run(tmp_path):
    run = fake_run()
    run.attributes |= end_attributes(f"KeyError: {NOT_UTF8}\0\n on rank 1")
    save_run(tmp_path / "run.h5", run)
    assert load_run(tmp_path / "run.h5").attributes["reason"] == r"KeyError: caf\udce9\x00 on rank 1"


def test_what_an_algorithm_keeps_and_no_run_file_can_hold_is_left_out():
    unit = ("steps", "used")
    extra = {"good": (np.ones(2), unit), ".": (np.ones(2), unit), "list": ([1], unit), "bare": np.ones(2), "no": None}
    extra |= {"object": (np.array([object()]), unit), "unit": (np.ones(2), unit[:1])}
    kept, lines = fitting(extra)
    assert list(kept) == ["good"] and len(lines) == 6 and all("is left out: " in line for line in lines)
