"""The tables: exact for runs made by hand."""

import csv
import io
import json
import math
import re

import numpy as np
import pytest

from grsgd.cli import main
from grsgd.errors import RunFileError, UsageError
from grsgd.runs.measures import (
    crosses_before_first,
    crossing,
    other_seconds,
    samples_to_target,
    seconds,
    seconds_per_step,
    snapshot_at_target,
    time_split,
    time_to_target,
)
from grsgd.runs.numbers import byte_unit, human_bytes
from grsgd.runs.report import report
from grsgd.runs.run_file import save_run
from grsgd.runs.several import by_experiment, names
from grsgd.runs.spread import t_quantile
from tests.support.exhaustive import exhaustive_unless
from tests.support.runs import fake_run

LEGEND = """\
epochs: passes over the data, all ranks together; final: test accuracy of the final model; best: highest test accuracy
of the averaged model; to 60 %: to its first snapshot that reaches the target; time: from the start of training to its
end; step: time of a step, mean over the ranks; samples/s: up to the last snapshot; sent: payload of all ranks; wait
[s]: mean over the ranks that train; wait [%]: share of compute + communicate + wait; consensus: distance of the
replicas from their average at the end."""


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
| algorithm | data/model | epochs | final [%] | best [%] | to 60 % [s] | time [s] | step [ms] | samples/s | sent \
| wait [s] | wait [%] | consensus |
|:-|:-|-:|-:|-:|-:|-:|-:|-:|-:|-:|-:|-:|
| gossip, 2 ranks | mnist/mlp | 2.00 | 80.00 | 80.00 | 30.0 | 50.0 | 1825 | 100.0 | 2.00 MiB | 0.50 | 1.4 | 0.1 |

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
    paths = save(a=fake_run(), b=fake_run("sync"))
    assert "median staleness" in detail(paths[0])
    assert "median staleness" not in report(paths)


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


def test_simulated_time_is_marked_and_real_time_in_a_column_of_its_own(save):
    simulated = fake_run(clock="virtual", virtual_seconds=44.0, wall_seconds=7.0)
    text = report(save(a=fake_run(), b=simulated, c=fake_run("old", clock="virtual")))
    rows = cells(text)
    assert [row["algorithm"] for row in rows] == [
        "gossip, 4 ranks",
        "gossip, 4 ranks, simulated",
        "old, 4 ranks, simulated",
    ]
    assert [row["time [s]"] for row in rows] == ["50.0", "44.0", "40.0"]  # the last: up to its last snapshot
    assert [row["simulating [s]"] for row in rows] == ["—", "7.00", "50.0"]
    assert text.replace("\n", " ").endswith("all times and rates are in simulated seconds, but simulating is real.")
    assert "imulat" not in report(save(a=fake_run()))


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
    assert first["algorithm"] == "gossip, 4 ranks, 3 seeds"
    assert first["final [%]"] == "60.00 (40.00–80.00)"
    assert first["to 60 % [s]"] == "30.0, 2 of 3"
    assert first["time [s]"] == "20.0 (10.0–30.0)"
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
    alone = "gossip, 4 ranks, no name"
    assert names(paths, runs) == [*(f"gossip, 4 ranks, name gossip, seed {seed}" for seed in (1, 2)), alone]


SWEEP = "[algorithm]\nname = 'dpsgd'\n\n[optimizer]\nlr = {lr}\nmomentum = {momentum}\n\n[train]\nseed = {seed}\n"


def swept(seed=1, lr=0.1, momentum=0.9, **attributes):
    config = SWEEP.format(lr=lr, momentum=momentum, seed=seed)
    return fake_run("dpsgd", seed=seed, config=config, wall_seconds=10.0 * seed, **attributes)


def test_an_own_loop_and_a_configuration_have_one_name_for_a_learning_rate(save):
    """An own loop keeps what it is given in a table of its own."""
    loop = fake_run("dpsgd", config="[algorithm]\nname = 'dpsgd'\n\n[config]\nlr = 0.05\nmomentum = 0.9\n")
    runs = [loop, swept(lr=0.1)]
    paths = save(loop=runs[0], swept=runs[1])
    assert names(paths, runs) == ["dpsgd, 4 ranks, lr 0.05", "dpsgd, 4 ranks, lr 0.1"]


def test_groups_are_named_by_the_keys_in_which_their_configurations_differ(save):
    """One that only repeats what another says is left out; a network counts like a key."""
    grid = [swept(seed, lr, momentum=1 - lr) for lr in (0.05, 0.1) for seed in (1, 2)]
    paths = save(**{f"r{i}": run for i, run in enumerate(grid)})
    rows = ["dpsgd, 4 ranks, lr 0.05, 2 seeds", "dpsgd, 4 ranks, lr 0.1, 2 seeds"]
    assert [row["algorithm"] for row in cells(report(paths, group=True))] == rows
    assert all(row.replace("_", r"\_") in report(paths, group=True, form="latex") for row in rows)
    assert names(paths[1:3], grid[1:3]) == ["dpsgd, 4 ranks, lr 0.05", "dpsgd, 4 ranks, lr 0.1"]
    whole = [swept(lr=lr, momentum=momentum) for lr in (0.1, 0.2) for momentum in (0.0, 0.9)]
    shown = names(paths[:4], whole)
    assert shown[0] == "dpsgd, 4 ranks, lr 0.1, momentum 0" and len(set(shown)) == 4
    slow, fast = (fake_run(clock="virtual", network=network, virtual_seconds=1.0) for network in ("1gbit", "10gbit"))
    assert by_experiment([slow, fast]) == [[0], [1]]
    assert names(paths[:2], [slow, fast]) == [f"gossip, 4 ranks, simulated, network {n}" for n in ("1gbit", "10gbit")]


def test_keys_in_which_configurations_differ_are_columns_for_programs(save):
    runs = [swept(1, 0.05), swept(2, 0.05), swept(1, 0.1), fake_run("sync")]
    paths = save(**{f"r{i}": run for i, run in enumerate(runs)})
    rows = json.loads(report(paths, group=True, form="json"))
    assert [(row["optimizer.lr"], row["algorithm.name"]) for row in rows] == [
        (0.05, "dpsgd"),
        (0.1, "dpsgd"),
        (None, "sync"),
    ]
    assert [(row["seeds"], row["runs"]) for row in rows] == [(2, 2), (1, 1), (1, 1)]
    assert [row["optimizer.lr"] for row in csv.DictReader(report(paths, form="csv").splitlines())][2:] == ["0.1", ""]
    chosen = report(paths, form="csv", wanted=["optimizer.lr", "time"]).splitlines()
    assert chosen[0] == "run,optimizer.lr,time_seconds" and chosen[3].split(",")[-2:] == ["0.1", "10.0"]
    assert cells(report(paths, wanted=["optimizer.lr"]))[0]["optimizer.lr"] == "0.05"


def test_a_copy_is_no_other_run(save, tmp_path, capsys):
    paths = save(a=fake_run(seed=1), b=fake_run(seed=2))
    (tmp_path / "copy.h5").write_bytes(paths[0].read_bytes())
    (row,) = cells(report([*paths, paths[0], tmp_path / "copy.h5"], group=True))
    assert row["algorithm"] == "gossip, 4 ranks, 2 seeds"
    assert "copy.h5: has the same content as" in capsys.readouterr().err
    assert main(["report", str(paths[0]), str(paths[0])]) == 0


def test_repetitions_of_a_seed_are_not_counted_as_seeds(save):
    paths = save(a=fake_run(seed=1), b=fake_run(seed=1, wall_seconds=60.0), c=fake_run(seed=2, wall_seconds=70.0))
    (row,) = cells(report(paths[:2], group=True))
    assert row["algorithm"] == "gossip, 4 ranks, 2 runs of 1 seed" and row["time [s]"] == "55.0 (50.0–60.0)"
    (row,) = json.loads(report(paths, group=True, form="json"))
    assert (row["runs"], row["seeds"]) == (3, 2)
    (row,) = json.loads(report(paths, group="mean", form="json"))
    assert row["time_seconds"] == pytest.approx((55 + 70) / 2), "the mean of a seed's runs counts once"


def test_times_alone_are_no_seed_of_a_training(save):
    twins = [fake_run(seed=seed, clock="virtual", timing_only=seed == 2) for seed in (1, 2)]
    rows = cells(report(save(a=twins[0], b=twins[1]), group=True))
    simulated = "gossip, 4 ranks, simulated"
    assert [row["algorithm"] for row in rows] == [simulated, f"{simulated}, times alone"]


# ---- means


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 7, 10, 30, 100, 1000])
def test_quantiles_of_the_t_distribution(degrees):
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-4)


def test_means_with_their_intervals(save):
    seeds = {f"s{seed}": fake_run(seed=seed, wall_seconds=10.0 * seed) for seed in (1, 2, 3)}
    paths = save(**seeds, alone=fake_run("sync"))
    text = report(paths, group="mean")
    first, second = cells(text)
    assert first["time [s]"] == "20.0 ± 24.8" and second["time [s]"] == "50.0"
    assert first["sent"] == "12.00 MiB" and "mean ± half of its 95 % interval" in text.replace("\n", " ")
    row, _ = json.loads(report(paths, group="mean", form="json"))
    assert (row["time_seconds"], row["time_seconds_half_interval"]) == pytest.approx((20.0, 24.84), abs=0.01)
    assert "$\\pm$" in report(paths, group="mean", form="latex")


@pytest.mark.parametrize("words, how", [([], "20.0 (10.0"), (["mean"], "20.0 ± "), (["median"], "20.0 (10.0")])
def test_groups_by_command(words, how, save, capsys):
    """The word is left out as before, although files follow."""
    paths = save(**{f"s{seed}": fake_run(seed=seed, wall_seconds=10.0 * seed) for seed in (1, 2, 3)})
    assert main(["report", "--group", *words, *map(str, paths)]) == 0
    assert how in capsys.readouterr().out
    assert main(["report", *map(str, paths), "--group", *words]) == 0


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


def test_the_crossing_of_the_target_lies_between_two_snapshots():
    run = fake_run(target_accuracy=0.45)
    assert crossing(run, "time") == pytest.approx(22.5) and crossing(run, "samples") == pytest.approx(2250)
    run.curve["test_accuracy"] = np.array([0.1, 0.25, np.nan, 0.65, 0.4])
    assert crossing(run, "time") == pytest.approx(20.0)
    assert not crosses_before_first(run)
    run.curve["test_accuracy"] = np.array([0.45, 0.2, 0.9, 0.9, 0.9])
    assert crossing(run, "time") == 0.0 and not crosses_before_first(run), "before any training"
    run.curve["test_accuracy"] = np.array([np.nan, 0.45, 0.9, 0.9, 0.9])
    assert crossing(run, "time") == 10.0 and crosses_before_first(run)
    assert crossing(fake_run(target_accuracy=0.95), "time") is None
    assert crossing(fake_run(reason="non-finite loss (nan) on rank 0 at step 7"), "time") is None


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
    assert "sent 92.0% less per sample than gossip, 4 ranks, seed 1" in line
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


# ---- at a terminal


@pytest.fixture
def many(save):
    """Runs with long names and much to tell."""
    runs = [fake_run(f"algorithm-{'x' * 9 * i}-{i}", ranks=2**i, seed=i) for i in range(4)]
    runs.append(fake_run("stopped", reason="rank 3 lost: " + "its process has died " * 9))
    runs.append(fake_run("once", clock="virtual", virtual_seconds=1.0, network="switch", compute="constant:0.1"))
    runs[-1].traffic["sent_once"] //= 3
    return save(**{f"run{i}": run for i, run in enumerate(runs)})


@pytest.mark.parametrize("width", exhaustive_unless([40, 131], [40, 80, 131, 250]))
@pytest.mark.parametrize(
    "options", [{}, {"everything": True}, {"group": True}, {"wanted": ["final", "time", "reason"]}]
)
def test_no_line_is_wider_than_the_terminal(many, width, options):
    for paths in (many, many[:1]):
        text = report(paths, form="text", width=width, **options)
        assert max(map(len, text.splitlines())) <= width
        assert text.count("\nalgorithm") >= min(len(paths), 4)


def test_columns_give_way_by_importance_and_are_named(many):
    wide, narrow = (report(many, form="text", width=width) for width in (400, 80))
    assert "No room" not in wide and "consensus" in wide.split("\n\n")[1]
    assert "time [s]" in narrow and "consensus" not in narrow.split("\n\n")[1]
    named = re.search(r"No room for (.*?): --all shows all", narrow.replace("\n", " "))[1].split(", ")
    assert "consensus" in named and "time" not in named
    whole = report(many, form="text", width=80, everything=True)
    assert "consensus" in whole and "No room" not in whole
    with pytest.raises(UsageError, match=r"--columns: unknown column 'nothing'; allowed: data, epochs, .*reason$"):
        report(many, wanted=["time", "nothing"])


def test_what_is_common_stands_above_the_table(save):
    text = report(save(a=fake_run(), b=fake_run("sync", reason="rank 1 lost: gone")), form="text", width=100)
    common, table, ends, *_ = text.split("\n\n")
    assert common == "mnist/mlp, 4 ranks, 32 samples per rank and step, seed 1, measured"
    assert "ranks" not in table and "data/model" not in table and "failed" in table
    assert ends == "sync stopped early: rank 1 lost: gone"
    simulated = fake_run(clock="virtual", network="switch", compute="constant:0.1", dataset="other", batch_size=None)
    text = report(save(a=fake_run(clock="virtual"), b=simulated), form="text", width=100)
    assert text.startswith("4 ranks, seed 1\n\n") and "other/mlp" in text
    own = fake_run(dataset=None, model=None)
    assert report(save(a=own), form="text").startswith("4 ranks, 32 samples")
    assert cells(report(save(a=own)))[0]["data/model"] == "—"


def test_what_was_not_measured_has_no_column(save):
    text = report(save(a=fake_run(accuracy=False), b=fake_run("sync", accuracy=False)), form="text", width=100)
    assert "final [%]" not in text and "loss" in text and "Not measured: final, best, to_target." in text
    text = report(
        save(a=fake_run(target_accuracy=0.99), b=fake_run("sync", target_accuracy=0.99)), form="text", width=100
    )
    assert "to 99 % [s]" in text and "Not measured" not in text  # it was not reached
    assert "to_target" not in report(save(a=fake_run(accuracy=False, target_accuracy=None)), form="text", width=100)


def test_participation_has_a_column_if_steps_did_not_take_part(save):
    assert "taking part" not in report(save(whole=fake_run(participation=1.0), old=fake_run("old")))
    rows = cells(report(save(whole=fake_run(participation=1.0), part=fake_run("part", participation=0.9))))
    assert [row["taking part [%]"] for row in rows] == ["100.0", "90.0"]


def test_metrics_of_own_loops_have_columns(save):
    run = fake_run(accuracy=False, target_accuracy=None)
    run.curve |= {"perplexity": np.array([9.0, 5.0, 4.0, 3.5, np.nan]), "wait": np.arange(5), "words": np.ones((2, 5))}
    (row,) = cells(report(save(a=run)))
    assert (row["perplexity"], row["wait_logged"], row["words"], row["wait [s]"]) == ("3.5", "4", "—", "1.50")
    narrow = report(save(a=run, b=fake_run("other")), form="text", width=80).split("\n\n")[1]
    assert "perplexity" in narrow and "wait [s]" not in narrow
    assert json.loads(report(save(a=run), form="json", wanted=["perplexity"]))[0]["perplexity"] == 3.5


# ---- for programs and documents


def test_csv_has_full_numbers_units_and_empty_cells(save):
    one = fake_run(final_test_accuracy=1 / 3, wall_seconds=10 / 3, model="a,b")
    paths = save(a=one, b=fake_run(seed=2, model="a,b", accuracy=False))
    rows = list(csv.DictReader(report(paths, form="csv").splitlines()))
    assert [row["run"] for row in rows] == ["gossip, 4 ranks, seed 1", "gossip, 4 ranks, seed 2"]
    assert rows[0]["file"] == str(paths[0]) and rows[0]["model"] == "a,b"
    assert float(rows[0]["final_accuracy"]) == 1 / 3 and float(rows[0]["time_seconds"]) == 10 / 3
    assert rows[0]["sent_bytes"] == str(12 * 1024**2) and rows[1]["final_accuracy"] == ""
    chosen = report(paths, form="csv", wanted=["time", "sent_bytes"]).splitlines()
    assert chosen[0] == "run,time_seconds,sent_bytes"


def test_csv_is_read_by_pandas(save):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(io.StringIO(report(save(a=fake_run(), b=fake_run(accuracy=False)), form="csv")))
    assert frame["final_accuracy"].isna().tolist() == [False, True] and frame["sent_bytes"].dtype == int


def test_json_has_null_for_what_is_not_known(save):
    rows = json.loads(report(save(a=fake_run(accuracy=False, wall_seconds=math.inf)), form="json"))
    assert rows[0]["final_accuracy"] is None and rows[0]["time_seconds"] is None and rows[0]["ranks"] == 4


def test_seeds_in_json(save):
    seeds = {f"s{seed}": fake_run(seed=seed, snapshots=6 - seed) for seed in (1, 2, 3)}
    first, second = json.loads(report(save(**seeds, x=fake_run("sync")), group=True, form="json"))
    assert first["seeds"] == 3 and first["seed"] is None and second["seeds"] == 1 and first.keys() == second.keys()
    keys = ("final_accuracy", "final_accuracy_least", "final_accuracy_greatest", "to_target_seconds_known")
    assert [first[key] for key in keys] == pytest.approx([0.6, 0.4, 0.8, 2])


def test_latex_is_escaped(save):
    text = report(save(a=fake_run("ring_allreduce", dataset="50%&$"), b=fake_run(accuracy=False)), form="latex")
    assert r"ring\_allreduce, 4 ranks" in text and r"50\%\&\$/mlp" in text and r"final [\%]" in text
    assert "---" in text and "—" not in text
    assert "\n {}[a], 4 ranks" in report(save(a=fake_run("[a]"), b=fake_run()), form="latex")
    assert text.splitlines()[1].startswith(r"\begin{tabular}") and text.endswith(r"\end{tabular}")


# ---- files that cannot be read


def test_one_bad_file_is_named_and_the_others_shown(save, tmp_path, capsys):
    good, other = map(str, save(a=fake_run(), b=fake_run("sync")))
    (tmp_path / "bad.h5").write_text("nothing")
    bad, missing = str(tmp_path / "bad.h5"), str(tmp_path / "none.h5")
    assert main(["report", good, bad, other]) == 1
    out, error = capsys.readouterr()
    assert error == f"grsgd: error: {bad}: not an HDF5 file\n"
    assert [row["algorithm"] for row in cells(out)] == ["gossip, 4 ranks", "sync, 4 ranks"]
    assert main(["report", bad, missing]) == 2
    out, error = capsys.readouterr()
    assert not out and [line.split(": ")[2] for line in error.splitlines()] == [bad, missing]
    assert main(["report", good, "--columns", "speed"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# ---- the time


def test_the_time_of_a_run_is_told_in_full():
    run = fake_run(ranks=4)
    assert time_split(run) == {"compute": 30.0, "communicate": 6.0, "wait": 1.5}
    assert seconds(run) == 50.0 and other_seconds(run) == 12.5
    run.ranks["steps"][3] = 0  # a server
    run.ranks["compute_seconds"][3] = np.nan
    assert time_split(run) == {"compute": 30.0, "communicate": 6.0, "wait": 1.0}
    simulated = fake_run(clock="virtual", virtual_seconds=37.0)
    assert seconds(simulated) == 37.0 and other_seconds(simulated) == 0.0


def test_no_step_has_no_time():
    run = fake_run()
    run.ranks["steps"][:] = 0
    assert math.isnan(seconds_per_step(run))
    assert seconds_per_step(fake_run(ranks=1)) == pytest.approx(1.8)
