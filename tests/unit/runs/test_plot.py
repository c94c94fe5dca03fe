"""The figure: written for every file type and number of runs; refusals in one line."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import grsgd
from grsgd.cli import main
from grsgd.errors import RunFileError, UsageError
from grsgd.runs import plot as figures
from grsgd.runs.plot import SUFFIXES, plot
from grsgd.runs.run_file import save_run
from grsgd.runs.series import Series, as_series
from grsgd.runs.several import load_runs
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
    return figures.draw(as_series(*load_runs(paths))).get_axes()


def titles(panels) -> list[str]:
    return [axes.get_title(loc="left") for axes in panels]


def entries(axes) -> list[str]:
    """The legend of the curves."""
    (legend,) = axes.get_figure(root=False).legends
    return [text.get_text().replace("\N{NO-BREAK SPACE}", " ") for text in legend.get_texts()]


def bands(axes) -> int:
    return len(axes.collections)


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
        fake_run("endless", wall_seconds=np.inf),
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
    assert [bar.get_width() for bar in split.patches] == [30.0, 6.0, 1.5, 12.5]
    assert [label.get_text() for label in sent.get_yticklabels()] == ["gossip, 4\N{NO-BREAK SPACE}ranks"]


def test_snapshots_without_accuracy_are_passed_over(save):
    run = fake_run()
    run.curve["test_accuracy"][[1, 4]] = np.nan
    over_time = draw(save([run]))[0]
    np.testing.assert_allclose(over_time.lines[0].get_xdata(), [0, 20, 30])


def test_only_panels_in_which_there_is_something(save):
    timing = fake_run(accuracy=False)
    timing.curve["train_loss"][:] = np.nan
    loss = fake_run("interrupted", accuracy=False)
    bars = ["time of a step", "payload sent by all ranks", "time split"]
    accuracies = ["test accuracy over time", "test accuracy over samples"]
    assert titles(draw(save([timing]))) == ["samples of all ranks over time", *bars]
    assert titles(draw(save([loss]))) == ["training loss over time", "training loss over samples", *bars]
    assert titles(draw(save([timing, loss]))) == ["samples of all ranks over time", *bars]  # what they have in common
    panels = draw(save([timing, loss, fake_run("whole")]))
    assert titles(panels) == [*accuracies, *bars]
    assert entries(panels[0]) == ["whole, 4 ranks", "range of the replicas", "target accuracy"]
    assert len(panels[-1].get_yticks()) == 3
    silent = fake_run(ranks=1, wall_seconds=0.0)
    assert titles(draw(save([silent]))) == accuracies


def test_a_run_with_nothing_to_draw(save, tmp_path):
    nothing = fake_run(ranks=1, snapshots=0, wall_seconds=0.0)
    nothing.ranks["steps"][:] = 0
    with pytest.raises(RunFileError, match="nothing to draw"):
        plot(save([nothing]), tmp_path / "figure.png")
    assert not (tmp_path / "figure.png").exists()


def test_a_curve_of_one_point_is_seen(save):
    over_time = draw(save([fake_run(snapshots=1, target_accuracy=None)]))[0]
    assert over_time.lines[0].get_marker() == "o" and over_time.lines[0].get_markevery() == (0, 1)
    assert len(over_time.lines[0].get_xdata()) == 1 and bands(over_time) == 1


def test_metrics_of_own_loops_have_panels(save):
    run = fake_run(accuracy=False)
    run.curve |= {"perplexity": np.array([9.0, 5.0, 4.0, 3.5, np.nan]), "words": np.arange(10.0)}
    panels = draw(save([run, fake_run("other", accuracy=False)]))
    assert titles(panels)[:2] == ["training loss over time", "training loss over samples"]
    assert titles(panels)[2:4] == ["perplexity over time", "perplexity over samples"]  # the other one is no curve
    np.testing.assert_allclose(panels[2].lines[0].get_ydata(), [9, 5, 4, 3.5])


def test_the_final_model_is_a_mark_of_its_own_where_it_is_another(save):
    over_time, over_samples, *_ = draw(save([fake_run(final_test_accuracy=0.9)]))
    assert entries(over_time)[-2:] == ["final model", "target accuracy"]
    np.testing.assert_allclose(over_time.lines[1].get_xydata(), [[40, 90]])
    np.testing.assert_allclose(over_samples.lines[1].get_xydata(), [[2, 90]])
    assert "final model" not in entries(draw(save([fake_run()]))[0])
    alone = draw(save([fake_run(snapshots=0, final_test_accuracy=0.9)]))[0]
    np.testing.assert_allclose(alone.lines[0].get_xydata(), [[50, 90]])


def test_samples_and_virtual_time(save):
    runs = [fake_run(train_samples=None, clock="virtual"), fake_run("sync", clock="virtual")]
    over_time, over_samples, *_ = draw(save(runs))
    assert over_samples.get_xlabel() == "samples"
    assert over_time.get_xlabel() == "simulated time [s]"


def test_simulated_times_and_times_by_the_clock_have_axes_of_their_own(save):
    """Both have seconds, which are not the same; over samples they are beside each other."""
    paths = save([fake_run(), fake_run("sync", clock="virtual", virtual_seconds=9.0), fake_run("more")])
    panels = draw(paths)
    labels = [axes.get_xlabel().split(",")[0] for axes in panels]
    assert labels == ["time [s]", "simulated time [s]", "epochs", "sent [MiB]", "time [s]", "simulated time [s]"]
    curves = [len([line for line in axes.lines if len(line.get_xdata()) > 2]) for axes in panels[:3]]
    assert curves == [2, 1, 3]
    steps = figures.plot(paths, panels=["step"]).get_axes()
    assert [axes.get_xlabel() for axes in steps] == ["time [ms]", "simulated time [ms]"]


# ---- how a figure looks


def test_panels_labels_title_and_size_are_chosen(save, tmp_path):
    paths = save([fake_run(), fake_run("sync")])
    figure = plot(paths, tmp_path / "a.pdf", panels=["accuracy/time", "sent"], labels=["ours", "theirs"], title="a $")
    assert titles(figure.get_axes()) == ["test accuracy over time", "payload sent by all ranks"]
    assert entries(figure.get_axes()[0])[:2] == ["ours", "theirs"] and figure.get_suptitle() == r"a \$"
    both = plot(paths, panels=["train_loss", "accuracy/samples"], size=(3.5, 5.0))
    assert tuple(both.get_size_inches()) == (3.5, 5.0)
    shown = ["training loss over time", "training loss over samples", "test accuracy over samples"]
    assert titles(both.get_axes()) == shown
    assert titles(plot(paths, panels=["samples"]).get_axes()) == ["samples of all ranks over time"]
    for panels in (["nothing"], ["accuracy/speed"], ["sent/time"]):
        with pytest.raises(UsageError, match=r"no panel .*; they have accuracy, train_loss, samples, step, sent, "):
            plot(paths, panels=panels)
    with pytest.raises(UsageError, match=r"^--labels: 1 given for 2 curves, which are: gossip, 4 ranks; sync, 4 rank"):
        plot(paths, labels=["ours"])


def test_several_runs_from_python(save):
    runs = [fake_run(), fake_run("sync", final_test_accuracy=0.1), fake_run(seed=2)]
    figure = grsgd.plot([*save(runs[:1]), *runs[1:]])
    assert entries(figure.get_axes()[0])[:2] == ["gossip, 4 ranks, 2 seeds", "sync, 4 ranks"]
    assert titles(grsgd.plot(runs[:1]).get_axes()) == titles(runs[0].plot().get_axes())


def test_a_figure_by_command(save, tmp_path, capsys):
    files, out = list(map(str, save([fake_run(), fake_run("sync")]))), str(tmp_path / "a.svg")
    words = ["--panels", "accuracy/time, sent", "--labels", "ours,theirs", "--title", "Both", "--size", "3.5x4"]
    assert main(["plot", *files, "-o", out, *words]) == 0
    assert 'width="252pt" height="288pt"' in Path(out).read_text()
    assert main(["plot", *files, "-o", out, "--panels", "speed"]) == 2
    assert "no panel 'speed'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["plot", *files, "--size", "3"])


@pytest.mark.parametrize("count", exhaustive_unless([18], [2, 18, 40]))
def test_curves_have_room_however_many_runs_there_are(count, save):
    name = "an-algorithm-with-a-rather-long-name-and-many-options"
    figure = figures.draw(as_series(*load_runs(save([fake_run(f"{name}-{i}") for i in range(count)]))))
    figure.draw_without_rendering()
    over_time, _, sent, _ = figure.get_axes()
    height = over_time.get_position().height * figure.get_size_inches()[1]
    page = figure.get_size_inches()[1]
    assert height > 2.4 and height / page > 0.2


def test_seeds_share_a_median_a_band_and_a_bar(save):
    runs = [fake_run(seed=seed, snapshots=3 + seed) for seed in (1, 2, 3)] + [fake_run("sync")]
    for run, factor in zip(runs, (1.0, 0.5, 0.9, 1.0), strict=True):
        run.curve["test_accuracy"] *= factor
        run.attributes["final_test_accuracy"] *= factor
    runs[1].curve["time"] += 5.0
    runs[1].traffic["sent"] *= 3
    over_time, _, sent, split = draw(save(runs))
    median, other, _ = [line for line in over_time.lines if len(line.get_xdata()) > 1]
    # From where all seeds are known to where one ends, at the snapshots of any of them.
    np.testing.assert_allclose(median.get_xydata()[:3], [[5, 9], [10, 18], [15, 27]])
    assert median.get_xdata()[-1] == 30 and other.get_xdata()[-1] == 40
    band = over_time.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(60) and band[:, 1].min() == pytest.approx(0)
    assert median.get_color() != other.get_color() and median.get_linestyle() != other.get_linestyle()
    assert entries(over_time)[:4] == [
        "gossip, 4 ranks, 3 seeds",
        "sync, 4 ranks",
        "range of the seeds",
        "range of the replicas",
    ]
    assert [bar.get_width() for bar in sent.patches] == [12.0, 12.0]
    assert len(split.patches) == 8
    names = [label.get_text().replace("\N{NO-BREAK SPACE}", " ") for label in sent.get_yticklabels()]
    assert names == ["gossip, 4 ranks, 3 seeds", "sync, 4 ranks"]


def test_seeds_without_a_time_in_common_are_lines(save):
    runs = [fake_run(seed=seed, target_accuracy=None) for seed in (1, 2)]
    runs[1].curve["time"] += 1000.0
    over_time, over_samples, *_ = draw(save(runs))
    assert len(over_time.lines) == 2 and len(over_samples.lines) == 1


def test_the_time_split_adds_up_to_the_time(save):
    both = draw(save([fake_run(), fake_run("virtual", clock="virtual", virtual_seconds=37.5)]))[-2:]
    for split, row, end in zip(both, (0, 1), (50.0, 37.5), strict=True):
        assert max(bar.get_x() + bar.get_width() for bar in split.patches) == end < split.get_xlim()[1]
        assert {round(bar.get_y() + bar.get_height() / 2) for bar in split.patches} == {row}
    alone = draw(save([fake_run("virtual", clock="virtual", virtual_seconds=37.5)]))[-1]
    assert [text.get_text() for text in alone.get_legend().get_texts()] == ["compute", "communicate", "wait"]


def test_multicast_is_a_mark_of_its_own(save):
    run = fake_run()
    run.traffic["sent_once"] //= 3
    sent = draw(save([run, fake_run("sync")]))[2]
    np.testing.assert_allclose(sent.lines[0].get_xdata(), [4.0, 12.0])


def test_no_two_of_twelve_look_alike():
    series = [Series("", [None], i) for i in range(12)]
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


def test_bad_files_are_named_and_the_others_drawn(save, tmp_path, capsys):
    (good,) = map(str, save([fake_run()]))
    out = tmp_path / "figure.png"
    assert main(["plot", good, "none.h5", "-o", str(out)]) == 1 and out.stat().st_size > 5000
    assert capsys.readouterr().err == "grsgd: error: none.h5: No such file or directory\n"
    assert main(["plot", "none.h5", "-o", str(tmp_path / "other.png")]) == 2
    assert not (tmp_path / "other.png").exists()
