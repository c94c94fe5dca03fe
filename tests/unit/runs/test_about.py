"""A run file says what its attributes mean, to those who open it with h5py alone."""

import re
from pathlib import Path

import h5py
import pytest

from grsgd.runs.about import ABOUT
from grsgd.runs.layout import ATTRIBUTES, KNOWN
from grsgd.runs.run_file import load_run, save_run
from grsgd.training import device
from tests.support.runs import fake_run

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "run-file.md"


def test_each_attribute_of_a_file_is_described_in_it(tmp_path):
    run = fake_run(mine="a note")
    save_run(tmp_path / "run.h5", run)
    with h5py.File(tmp_path / "run.h5") as file:
        assert dict(file["about"].attrs) == {name: ABOUT[name] for name in file.attrs if name != "mine"}
    found = load_run(tmp_path / "run.h5")
    assert found.extra == {} and set(found.attributes) == set(run.attributes)
    save_run(tmp_path / "again.h5", found)
    with h5py.File(tmp_path / "again.h5") as file:
        assert set(file["about"].attrs) == {*run.attributes, "format"} - {"mine"}


@pytest.mark.parametrize("name", sorted({*ABOUT, *ATTRIBUTES, *KNOWN}))
def test_the_page_and_the_file_describe_the_same(name):
    table = PAGE.read_text().partition("## Attributes of the root")[2].partition("## Datasets")[0]
    rows = " ".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))
    shown = re.sub("_(file|source|sha256)$", "_", name) if "_code_" in name else name
    assert ABOUT[name] and f"`{shown}" in rows


def test_the_page_names_no_attribute_that_no_file_describes():
    table = PAGE.read_text().partition("## Attributes of the root")[2].partition("## Datasets")[0]
    rows = " ".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))
    names = set(re.findall("`([a-z_0-9]+)`", rows))
    assert {name for name in names if not name.endswith("_code_")} <= ABOUT.keys() | {""} and len(names) > 40


def test_what_computes_is_named(monkeypatch):
    monkeypatch.setattr(device.torch, "get_num_threads", lambda: 2)
    assert re.fullmatch(r".+, \d+ of \d+ cores, 2 threads", device.processor())
    monkeypatch.setattr(device.Path, "read_text", lambda path: "no processor")
    assert device.processor().startswith(device.platform.processor() or device.platform.machine())
