"""The tables: exact for runs made by hand."""

import math
import re

import numpy as np
import pytest

from grsgd.errors import RunFileError
from grsgd.runs.measures import samples_to_target, snapshot_at_target, time_to_target
from grsgd.runs.report import (
    by_experiment,
    byte_unit,
    human_bytes,
    names,
    report,
)
from grsgd.runs.run_file import save_run
from tests.support.runs import fake_run

LEGEND = """\
final, best: test accuracy of the averaged model; to target: its first snapshot at or above the target; \
wall: whole run; samples/s: up to the last snapshot;
sent: payload of all ranks (once: a multicast counted once); wait: mean over the ranks, and its share of \
compute + communicate + wait; consensus: distance of the replicas from their average at the end."""


@pytest.fixture
def save(tmp_path):
    """Saves runs by name; returns their paths."""

    def _save(**runs):
        for name, run in runs.items():
            save_run(tmp_path / f"{name}.h5", run)
        return [tmp_path / f"{name}.h5" for name in runs]

    return _save


def cells(text: str) -> list[dict[str, str]]:
    """The first table of a report, a dict a row."""
    header, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n\n")[0].splitlines()
    )
    return [dict(zip(header, row, strict=True)) for row in rows]


def squeezed(text: str) -> str:
    """Without the padding of the cells."""
    return re.sub("-+", "-", re.sub(" +", " ", text))


def test_one_run_exactly(save):
    text = report(save(a=fake_run(ranks=2)))
    assert len({len(line) for line in text.split("\n\n")[0].splitlines()}) == 1
    assert (
        squeezed(text)
        == f"""\
| algorithm | data/model | epochs | final [%] | best [%] | to 60 % [s] | wall [s] | samples/s | sent | wait [s] \
| wait [%] | consensus |
|:-|:-|-:|-:|-:|-:|-:|-:|-:|-:|-:|-:|
| gossip, 2 ranks | mnist/mlp | 2.00 | 80.00 | 80.00 | 30.0 | 50.0 | 100.0 | 2.00 MiB | 0.50 | 1.4 | 0.1 |

{LEGEND}

gossip, 2 ranks:

| rank | steps | samples | compute [s] | communicate [s] | wait [s] | sent | received | messages sent \
| median staleness |
|-:|-:|-:|-:|-:|-:|-:|-:|-:|-:|
| 0 | 20 | 2000 | 30.0 | 6.00 | 0.00 | 1.00 MiB | 1.00 MiB | 20 | 1 |
| 1 | 20 | 2000 | 30.0 | 6.00 | 1.00 | 1.00 MiB | 1.00 MiB | 20 | 1 |"""
    )


def detail(path):
    """The table of the ranks of a run."""
    return report([path]).split("\n\n", 2)[2]


def test_the_table_of_ranks_follows_that_of_a_single_run(save):
    (path,) = save(a=fake_run())
    assert "median staleness" in detail(path)
    assert "median staleness" not in report([path, path])


def test_rows_keep_the_order_given_and_nothing_is_cut(save):
    long = "an-algorithm-with-a-name-" * 5
    paths = save(b=fake_run(long), a=fake_run("sync", ranks=1))
    assert [row["algorithm"] for row in cells(report(paths))] == [f"{long}, 4 ranks", "sync, 1 rank"]


def test_early_ends_are_marked(save):
    non_finite = fake_run("sync", reason="non-finite loss at step 7", final_test_accuracy=math.nan)
    whole, broken = save(a=fake_run(), b=non_finite)
    assert "stopped early" not in report([whole])
    rows = cells(report([whole, broken]))
    assert [row["stopped early"] for row in rows] == ["", "non-finite loss at step 7"]
    assert rows[1]["final [%]"] == "—"
    assert rows[1]["best [%]"] == "80.00"


def test_runs_without_accuracy_target_or_snapshots(save):
    rows = cells(report(save(a=fake_run(accuracy=False, target_accuracy=None), b=fake_run("sync", snapshots=0))))
    for row in rows:
        assert [row[name] for name in ("final [%]", "best [%]", "to target [s]")] == ["—"] * 3
    assert [row["samples/s"] for row in rows] == ["100.0", "—"]


def test_samples_where_the_length_of_the_data_is_not_known(save):
    rows = cells(report(save(a=fake_run(), b=fake_run("sync", train_samples=None))))
    assert [row["samples"] for row in rows] == ["4000", "4000"]
    assert "epochs" not in rows[0]


def test_multicast_shows_both_counts(save):
    run = fake_run("multicast")
    run.traffic["sent_once"] //= 3
    rows = cells(report(save(a=fake_run(), b=run)))
    assert [(row["sent"], row["sent once"]) for row in rows] == [("12.00 MiB", "12.00 MiB"), ("12.00 MiB", "4.00 MiB")]


def test_virtual_time_is_marked(save):
    text = report(save(a=fake_run(), b=fake_run(clock="virtual")))
    assert [row["algorithm"] for row in cells(text)] == ["gossip, 4 ranks", "gossip, 4 ranks, virtual time"]
    assert text.endswith("\nVirtual time: all times and rates but wall are in simulated seconds.")
    assert "irtual" not in report(save(a=fake_run()))


def test_different_targets_share_a_column(save):
    rows = cells(report(save(a=fake_run(), b=fake_run("sync", target_accuracy=0.3))))
    assert [row["to target [s]"] for row in rows] == ["30.0", "20.0"]


def test_text_from_the_file_cannot_break_the_table(save):
    rows = report(save(a=fake_run(dataset="a|b"), b=fake_run("sync", reason="two\nlines"))).splitlines()
    assert "a\\|b/mlp" in rows[2]
    assert "two lines" in rows[3]


def test_no_files_and_no_run():
    with pytest.raises(RunFileError, match="no run files given"):
        report([])
    with pytest.raises(RunFileError, match="none.h5: No such file"):
        report(["none.h5"])


# ---- several seeds


def test_seeds_grouped(save):
    seeds = {f"s{seed}": fake_run(seed=seed, snapshots=6 - seed, wall_seconds=10.0 * seed) for seed in (1, 2, 3)}
    paths = save(**seeds, other=fake_run("sync", reason="interrupted"))
    text = report(paths, group=True)
    first, second = cells(text)
    assert first["algorithm"] == "gossip, 4 ranks"
    assert first["final [%]"] == "60.00 (40.00–80.00)"
    assert first["to 60 % [s]"] == "30.0, 2 of 3"
    assert first["wall [s]"] == "20.0 (10.0–30.0)"
    assert first["sent"] == "12.00 MiB"
    assert first["stopped early"] == ""
    assert second["stopped early"] == "interrupted"
    assert "Several seeds: median (least–greatest)" in text
    assert [row["algorithm"] for row in cells(report(paths))] == [
        "gossip, 4 ranks, seed 1",
        "gossip, 4 ranks, seed 2",
        "gossip, 4 ranks, seed 3",
        "sync, 4 ranks",
    ]


def test_early_ends_of_some_seeds_are_counted(save):
    paths = save(a=fake_run(seed=1), b=fake_run(seed=2, reason="interrupted"))
    assert cells(report(paths, group=True))[0]["stopped early"] == "interrupted (1 of 2)"


def test_other_settings_are_another_experiment(tmp_path):
    runs = [fake_run(seed=1), fake_run(seed=2), fake_run(seed=3, config="[train]\nbatch_size = 8\nseed = 3\n")]
    assert by_experiment(runs) == [[0, 1], [2]]
    assert by_experiment([fake_run(config="no [TOML"), fake_run(config="no [TOML"), fake_run(ranks=8)]) == [[0, 1], [2]]
    paths = [tmp_path / "a" / "run.h5", tmp_path / "b" / "run.h5", tmp_path / "b" / "more.h5"]
    assert names(paths, runs) == [f"gossip, 4 ranks, {file}" for file in ("a/run.h5", "b/run.h5", "b/more.h5")]


# ---- numbers


def test_a_run_that_diverged_has_no_time_to_the_target():
    """Whoever asks, although a snapshot before had reached it."""
    whole, diverged = fake_run(), fake_run(reason="non-finite loss (nan) on rank 0 at step 7")
    assert snapshot_at_target(whole) == 3 and samples_to_target(whole) == 3000.0
    assert snapshot_at_target(diverged) is None
    assert math.isnan(time_to_target(diverged)) and math.isnan(samples_to_target(diverged))
    interrupted = fake_run(reason="interrupted (Ctrl-C)")
    assert time_to_target(interrupted) == time_to_target(whole) == 30.0


def test_time_to_target_is_that_of_the_first_snapshot_at_or_above():
    run = fake_run(target_accuracy=0.45)
    assert time_to_target(run) == 30.0
    run.curve["test_accuracy"] = np.array([0.1, np.nan, 0.45, 0.2, 0.9])
    assert time_to_target(run) == 20.0
    assert math.isnan(time_to_target(fake_run(target_accuracy=0.95)))
    assert math.isnan(time_to_target(fake_run(target_accuracy=math.nan)))


@pytest.mark.parametrize(
    "counts, median", [([1, 2, 1], "1"), ([2, 1, 1], "0.5"), ([0, 1, 1], "2"), ([0, 0, 5], "3"), ([0, 0, 0], "—")]
)
def test_median_staleness(save, counts, median):
    run = fake_run(ranks=1)
    run.staleness["count"] = np.array([counts])
    assert detail(save(a=run)[0]).endswith(f" {median} |")


@pytest.mark.parametrize(
    "value, text",
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (5 * 1024**3, "5.00 GiB"), (2**60, "1024.00 PiB")],
)
def test_human_bytes(value, text):
    assert human_bytes(value) == text
    assert text.endswith(byte_unit(value)[0])


# ---- what adaptive communication saves


def adaptive(sent, consensus, **attributes):
    run = fake_run(depends_on_values=True, **attributes)
    run.traffic["sent"] = run.traffic["sent"] * sent // 100
    run.curve["consensus_distance"] = run.curve["consensus_distance"] * 0 + consensus
    return run


def test_saving_and_price_of_adaptive_communication(tmp_path):
    runs = {"fixed": fake_run(), "adaptive": adaptive(8, 0.25, seed=2), "other": fake_run(ranks=2)}
    for name, run in runs.items():
        save_run(tmp_path / f"{name}.h5", run)
    text = report([tmp_path / f"{name}.h5" for name in runs])
    (line,) = [line for line in text.splitlines() if "adaptive, sent" in line]
    assert "sent 92.0% less a sample than gossip, 4 ranks, seed 1" in line
    assert line.endswith("consensus distance of 0.25 instead of 0.1.")


@pytest.mark.parametrize("differs", [{"comparison": "mode = pull"}, {"replication": 2}, {"network": "shared"}])
def test_saving_is_told_of_runs_alike_only(save, differs):
    alike = {"comparison": "mode = pair", "replication": 1}
    paths = save(x=adaptive(8, 0.25, **alike), y=fake_run(**alike), z=fake_run(**alike | differs))
    lines = [line for line in report(paths).splitlines() if "adaptive," in line]
    assert len(lines) == 1 and "y.h5, and ended" in lines[0]
    assert "adaptive, sent" not in report([paths[0], paths[2]])


def test_no_saving_without_a_run_to_compare_with(tmp_path):
    save_run(tmp_path / "a.h5", adaptive(8, 0.25))
    save_run(tmp_path / "b.h5", fake_run("easgd"))
    assert "adaptive, sent" not in report([tmp_path / "a.h5", tmp_path / "b.h5"])
