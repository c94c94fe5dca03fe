"""How far simulated times are from measured ones, of made-up times; and on which network a run is simulated."""

import json
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.runner import batch
from experiments.runner.parallel import Unfinished
from experiments.validation import rates, rounds
from experiments.validation.__main__ import testbed_checks as checks_of_the_testbed
from experiments.validation.errors import Row, Times, median_error, table, verdicts
from experiments.validation.settings import SETTINGS, EmulatedCluster
from experiments.validation.variant import Variant

FOUR, EIGHT, UNEVEN = SETTINGS
DPSGD = Variant("dpsgd", ())
TREE = Variant("ring_allreduce", ('algorithm.variant="tree"',))


def row(setting, variant, *errors):
    return Row(setting, variant, [(Times(0.1, 0.2), Times(0.1 * (1 + error), 0.3)) for error in errors])


def test_the_median_of_the_rounds_counts():
    one = row(FOUR, DPSGD, 0.02, -0.01, 0.01, 0.5, 0.03)
    assert one.error == pytest.approx(0.02)
    assert one.repeatability == pytest.approx(1.4826 * 0.01)
    measured, simulated = one.medians()
    assert measured == pytest.approx((0.1, 0.2)) and simulated == pytest.approx((0.102, 0.3))


@pytest.mark.parametrize(
    ("errors", "is_close"),
    [
        ((0.04,) * 5, True),
        ((-0.06,) * 5, False),
        ((0.0, 0.03, 0.06, 0.09, 0.12), True),  # off by 6 %, and repeats to 4 %
        ((0.09, 0.10, 0.10, 0.10, 0.11), False),
    ],
)
def test_a_row_is_close_within_the_bound_or_its_repeatability(errors, is_close):
    assert row(FOUR, DPSGD, *errors).is_close is is_close


def test_verdicts_of_each_setting_and_of_all():
    rows = [row(FOUR, DPSGD, 0.01), row(FOUR, TREE, 0.2), row(EIGHT, DPSGD, -0.02)]
    assert median_error(rows) == pytest.approx(0.02)
    found = verdicts(rows)
    assert list(found.values()) == [False, True, True]
    assert "1 of 2 rows" in list(found)[0] and "the median error is 2.0%" in list(found)[2]
    line = next(line for line in table(rows).splitlines() if "tree" in line)
    wanted = ["four", "`ring_allreduce`", "variant=tree", "100.0", "120.0", "+20.0%", "unknown", "off", "20%", "30%"]
    assert line.replace("|", "").split() == wanted


def test_settings_can_be_told_apart():
    assert len({*SETTINGS}) == 3 and [setting.hosts for setting in SETTINGS] == [4, 8, 4]
    assert UNEVEN.slow == {0: 2.0} and UNEVEN.slow_links == {3: "25mbit"}


def test_a_run_is_simulated_with_the_computing_around_it(tmp_path):
    rounds.network_file(tmp_path, DPSGD).write_text(
        'bandwidth = "100mbit"\nlatency = "50us"\n[compute]\nmedian = 9.0\n[processor]\nsend = "1us"\n'
    )
    before, after = rounds.computing_files(tmp_path, DPSGD)
    before.write_text(json.dumps([[0.1, 0.02, 0.1, 0.01], [0.1, 0.02, 0.1, 0.01], [0.2, 0.02, 0.1, 0.01]]))
    after.write_text(json.dumps([[0.3, 0.04, 0.2, 0.03], [0.1, 0.04, 0.2, 0.03], [0.4, 0.04, 0.2, 0.03]]))
    rounds.work_file(tmp_path, DPSGD).write_text("0.003")
    spec = rounds.network_of(tmp_path, DPSGD)
    assert spec.compute.work == 0.003
    assert spec.compute.median == pytest.approx(0.2) and spec.compute.sigma == pytest.approx(0.03)
    assert spec.compute.after_wait == pytest.approx(0.15) and spec.compute.after_wait_sigma == pytest.approx(0.02)
    assert spec.compute.slowdown == {1: pytest.approx(0.5), 2: pytest.approx(1.5)}
    assert spec.processor.send == pytest.approx(1e-6) and spec.bandwidth == pytest.approx(12.5e6)


def test_under_a_quota_no_steps_after_waits_are_measured(tmp_path):
    rounds.network_file(tmp_path, DPSGD).write_text('bandwidth = "100mbit"\nlatency = "50us"\n')
    for file in rounds.computing_files(tmp_path, DPSGD):
        file.write_text(json.dumps([[0.1, 0.02, None, 0.0]] * 3))
    rounds.work_file(tmp_path, DPSGD).write_text("null")
    compute = rounds.network_of(tmp_path, DPSGD).compute
    assert (compute.median, compute.after_wait, compute.work) == (0.1, None, 0.0)


def test_what_is_missing(tmp_path, monkeypatch):
    assert rounds.list_missing(tmp_path, FOUR, 0, [DPSGD, TREE]) == [DPSGD, TREE]
    folder = rounds.folder_of(tmp_path, FOUR, 0)
    folder.mkdir(parents=True)
    monkeypatch.setattr(rounds, "finished_run", lambda path: path if path.exists() else None)
    for variant in (DPSGD, TREE):
        for file in rounds.files_of(folder, variant):
            file.touch()
    rounds.file_of(folder, FOUR, TREE).touch()
    assert rounds.list_missing(tmp_path, FOUR, 0, [DPSGD, TREE]) == [DPSGD]
    assert rounds.list_missing(tmp_path, FOUR, 1, [TREE]) == [TREE]


def test_what_an_earlier_attempt_has_left_is_not_taken_for_a_later_run(tmp_path, monkeypatch):
    """The second attempt ends right after a run, whose computing afterwards was never measured."""
    folder = rounds.folder_of(tmp_path, FOUR, 0)
    folder.mkdir(parents=True)
    for variant in (DPSGD, TREE):
        for file in rounds.files_of(folder, variant):
            file.write_text("old")
    monkeypatch.setattr(rounds, "finished_run", lambda path: path if path.exists() else None)
    testbed = SimpleNamespace(mpiexec=None, without_cpu_limit=None)
    monkeypatch.setattr(EmulatedCluster, "testbed", lambda setting: nullcontext(testbed))

    def make_runs(host, ranks, runs, timeout):
        for one in runs[:4] if isinstance(runs[0], batch.Calibration) else []:
            Path(one.out).write_text("new")
            yield one
        raise Unfinished("no end")

    monkeypatch.setattr(batch, "make_runs", make_runs)
    with pytest.raises(Unfinished):
        rounds.measure(tmp_path, FOUR, [DPSGD, TREE], 1, SimpleNamespace(update=lambda: None))
    assert rounds.file_of(folder, FOUR, DPSGD).exists() and rounds.network_file(folder, DPSGD).read_text() == "new"
    assert rounds.list_missing(tmp_path, FOUR, 0, [DPSGD, TREE]) == [DPSGD, TREE]


# ---- the testbed itself


def test_a_testbed_that_was_off_still_is_where_all_runs_are_there(tmp_path, monkeypatch):
    off = rates.Check("links", 0.5, 0.9, 1.1)
    monkeypatch.setattr(rates, "measure_checks", lambda folder, config: iter([off]))
    assert checks_of_the_testbed(tmp_path, is_to_be_used=True) == [off] and not off.holds
    monkeypatch.setattr(rates, "measure_checks", lambda folder, config: pytest.fail("measured again"))
    assert checks_of_the_testbed(tmp_path, is_to_be_used=False) == [off]


def test_a_testbed_that_was_never_checked_is_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "measure_checks", lambda folder, config: iter([rates.Check("links", 1.0, 0.9, 1.1)]))
    assert [check.holds for check in checks_of_the_testbed(tmp_path, is_to_be_used=False)] == [True]


def test_a_host_that_cannot_compute_ends_the_checks_with_its_command():
    hosts = SimpleNamespace(hosts=["tb0-0", "tb0-1"], enter=lambda host, command: ["sh", "-c", "exit 3", host])
    with pytest.raises(subprocess.CalledProcessError, match="tb0-0.* exit status 3"):
        rates.spin(hosts)
