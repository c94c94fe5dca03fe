"""The figure: written for every file type and number of runs; refusals in one line."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from grsgd.errors import RunFileError
from grsgd.runs import plot as figures
from grsgd.runs.plot import SUFFIXES, plot
from grsgd.runs.run_file import save_run
from tests.support.exhaustive import exhaustive_unless
from tests.support.runs import fake_run

MAGIC = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.fixture(autouse=True)
def no_warnings():
    """Clipped or collapsed layouts and missing letters are warnings of matplotlib."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def save(tmp_path):
    def _save(runs):
        paths = [tmp_path / f"run{i}.h5" for i in range(len(runs))]
        for path, run in zip(paths, runs, strict=True):
            save_run(path, run)
        return paths

    return _save


def draw(paths):
    """The panels of the figure, drawn but not written: over time, over samples, sent, split."""
    return figures._figure(figures._series(paths)).get_axes()


def words(axes) -> set[str]:
    return {text.get_text() for text in axes.texts}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_file_type(save, tmp_path, suffix):
    out = tmp_path / f"figure{suffix}"
    plot(save([fake_run(), fake_run("sync")]), out)
    assert out.read_bytes().startswith(MAGIC[suffix])
    assert out.stat().st_size > 5000


@pytest.mark.parametrize(
    "count, accuracy",
    exhaustive_unless(
        lambda count, accuracy: (count, accuracy) in [(1, False), (12, True)],
        [(count, accuracy) for accuracy in (True, False) for count in (1, 3, 12)],
    ),
)
def test_numbers_of_runs(save, tmp_path, count, accuracy):
    paths = save([fake_run(f"an-algorithm-with-a-rather-long-name-{i}", accuracy=accuracy) for i in range(count)])
    plot(paths, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_odd_runs(save, tmp_path):
    runs = [
        fake_run("alone", ranks=1),
        fake_run("no-snapshot", snapshots=0),
        fake_run("one-snapshot", snapshots=1, train_samples=None),
        fake_run("no-accuracy", accuracy=False, target_accuracy=None),
        fake_run("virtual", clock="virtual"),
        fake_run("dollar-$x^$-_", target_accuracy=0.2),
    ]
    plot(save(runs), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_panels_and_their_units(save):
    over_time, over_samples, sent, split = draw(save([fake_run()]))
    assert [axes.get_xlabel() for axes in (over_time, over_samples, sent)] == ["time [s]", "epochs", "sent [MiB]"]
    assert split.get_xlabel() == "time [s], mean over the ranks"
    assert over_time.get_ylabel() == "test accuracy [%]"
    curve, target = over_time.lines
    np.testing.assert_allclose(curve.get_xydata(), [[0, 0], [10, 20], [20, 40], [30, 60], [40, 80]])
    assert set(target.get_ydata()) == {60.0}
    np.testing.assert_allclose(over_samples.lines[0].get_xdata(), [0, 0.5, 1, 1.5, 2])
    assert [bar.get_width() for bar in sent.patches] == [12.0]
    assert [bar.get_width() for bar in split.patches] == [30.0, 6.0, 1.5]
    assert [label.get_text() for label in sent.get_yticklabels()] == ["gossip, 4\N{NO-BREAK SPACE}ranks"]


def test_snapshots_without_accuracy_are_passed_over(save):
    run = fake_run()
    run.curve["test_accuracy"][[1, 4]] = np.nan
    over_time = draw(save([run]))[0]
    np.testing.assert_allclose(over_time.lines[0].get_xdata(), [0, 20, 30])


def test_no_accuracy_is_said(save):
    over_time, over_samples, sent, _ = draw(save([fake_run(accuracy=False)]))
    assert words(over_time) == words(over_samples) == {"no accuracy measured"}
    assert not words(sent)


def test_samples_and_virtual_time(save):
    runs = [fake_run(train_samples=None, clock="virtual"), fake_run("sync", clock="virtual")]
    over_time, over_samples, *_ = draw(save(runs))
    assert over_samples.get_xlabel() == "samples"
    assert over_time.get_xlabel() == "simulated time [s]"


def test_seeds_share_style_and_bar(save):
    runs = [fake_run(seed=seed, snapshots=3 + seed) for seed in (1, 2, 3)] + [fake_run("sync")]
    runs[1].traffic["sent"] *= 3
    over_time, _, sent, split = draw(save(runs))
    *seeds, other, _ = over_time.lines
    styles = [(line.get_color(), line.get_linestyle(), line.get_marker(), line.get_linewidth()) for line in seeds]
    assert len(seeds) == 3 and len(set(styles)) == 1
    assert other.get_color() != seeds[0].get_color() and other.get_linestyle() != seeds[0].get_linestyle()
    assert other.get_marker() != seeds[0].get_marker() and other.get_linewidth() > seeds[0].get_linewidth()
    assert [bar.get_width() for bar in sent.patches] == [12.0, 12.0]
    assert len(split.patches) == 6
    names = [label.get_text().replace("\N{NO-BREAK SPACE}", " ") for label in sent.get_yticklabels()]
    assert names == ["gossip, 4 ranks, 3 seeds", "sync, 4 ranks"]


def test_multicast_is_a_mark_of_its_own(save):
    run = fake_run()
    run.traffic["sent_once"] //= 3
    sent = draw(save([run, fake_run("sync")]))[2]
    np.testing.assert_allclose(sent.lines[0].get_xdata(), [4.0, 12.0])


def test_no_two_of_twelve_look_alike():
    series = [figures.Series("", [None], i) for i in range(12)]
    for keys in (("color", "linestyle"), ("marker",)):
        assert len({tuple(one.style[key] for key in keys) for one in series}) == 12


# ---- refusals


@pytest.mark.parametrize("name", ["figure.jpeg", "figure", "figure.h5"])
def test_unknown_suffix(save, tmp_path, name):
    with pytest.raises(RunFileError) as caught:
        plot(save([fake_run()]), tmp_path / name)
    suffix = Path(name).suffix
    assert str(caught.value) == f"{tmp_path / name}: unknown suffix {suffix!r}, not one of .png, .pdf, .svg"
    assert not (tmp_path / name).exists()


def test_unwritable_output_and_missing_input(save, tmp_path):
    paths = save([fake_run()])
    (tmp_path / "folder.png").mkdir()
    for out in (tmp_path / "none" / "figure.png", tmp_path / "folder.png", paths[0] / "figure.png"):
        with pytest.raises(RunFileError, match=out.name) as caught:
            plot(paths, out)
        assert "\n" not in str(caught.value)
    with pytest.raises(RunFileError, match="missing.h5: No such file"):
        plot([tmp_path / "missing.h5"], tmp_path / "figure.png")
    with pytest.raises(RunFileError, match="no run files given"):
        plot([], tmp_path / "figure.png")
    assert sorted(os.listdir(tmp_path)) == ["folder.png", "run0.h5"]


def test_no_window_system_is_needed():
    code = "import sys, grsgd.runs.plot; print('matplotlib.pyplot' in sys.modules)"
    root = str(Path(figures.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
