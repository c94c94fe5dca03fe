"""Runs made from Python: `grsgd.train` and `grsgd.simulator`."""

import tomllib

import numpy as np
import pytest

import grsgd
from grsgd.cli.from_python import simulate, toml_of, train, without_launcher, words_of
from grsgd.errors import ConfigError

SMALL = {
    "algorithm": {"name": "dpsgd"},
    "data": {"name": "digits", "batch_size": 16},
    "model": {"name": "mlp"},
    "train": {"steps": 6},
}


@pytest.mark.parametrize("value", [1, 0.5, "a b", True, [1, 2], ["x"]])
def test_values_become_toml(value):
    assert tomllib.loads(f"value = {toml_of(value)}")["value"] == value


def test_options_become_words():
    options = {"save": "model.pt", "timing_only": True, "check": False, "csv": None}
    options["changes"] = {"train": {"epochs": 2}, "seed": 1}
    assert words_of(options) == ["--save", "model.pt", "--timing-only", "--set", "train.epochs=2", "--set", "seed=1"]


def test_a_value_that_toml_cannot_hold_is_refused():
    with pytest.raises(ConfigError, match="changes: <object"):
        words_of({"changes": {"model": object()}})


def test_a_simulated_run_is_returned(tmp_path):
    options = {"changes": {"optimizer.lr": 0.05}, "network": "1gbit,50us"}
    run = simulate(SMALL, ranks=3, out=tmp_path / "run.h5", **options)
    assert len(run.ranks["steps"]) == 3 and "lr = 0.05" in run.attributes["config"]
    again = simulate(SMALL, ranks=3, out=tmp_path / "again.h5", **options)
    np.testing.assert_array_equal(run.curve["time"], again.curve["time"])


def test_the_name_is_the_function_after_every_import():
    import grsgd.simulator.run  # noqa: F401

    assert grsgd.simulate is simulate


def test_errors_have_their_cause(tmp_path):
    with pytest.raises(ConfigError, match="algorithm.name = 'dpsgdd': unknown"):
        simulate(SMALL | {"algorithm": {"name": "dpsgdd"}}, out=tmp_path / "run.h5")
    with pytest.raises(ConfigError, match="^unrecognized arguments: --networks 1gbit .did you mean --network"):
        simulate(SMALL, out=tmp_path / "run.h5", networks="1gbit")
    with pytest.raises(grsgd.RunFailed, match="non-finite loss") as caught:
        simulate(SMALL, 2, out=tmp_path / "run.h5", changes={"optimizer.lr": 1e30})
    assert caught.value.code == 1 and caught.value.run.attributes["ended"] == "diverged"


def test_errors_of_a_job_are_without_the_launchers_text_and_a_temporary_path(tmp_path):
    with pytest.raises(ConfigError, match="^config: train.stps: unknown key") as caught:
        train(SMALL | {"train": {"stps": 5}}, 2, out=tmp_path / "run.h5")
    assert "\n" not in str(caught.value)
    with pytest.raises(grsgd.RunFailed, match="non-finite loss") as failed:
        train(SMALL, 2, out=tmp_path / "run.h5", changes={"optimizer.lr": 1e30})
    said = str(failed.value)
    assert "train config --out" in said and "----" not in said and "config.toml" not in said


def test_paragraphs_of_the_launcher_that_name_no_cause_are_left_out():
    dashes = 75 * "-"
    killed = f"{dashes}\nprterun noticed that process rank 1 exited on signal 9 (Killed).\n{dashes}\n"
    slots = f"{dashes}\nThere are not enough slots available\n{dashes}\n"
    table = f"my table\n{dashes}\ngrsgd: rank 1 of 2: non-finite loss\n"
    ended = (
        "MPI_ABORT was invoked on rank 0",
        "prterun has exited due to process rank 1",
        ("prterun detected that one or more processes exited with non-zero status,"),
    )
    for line in ended:
        assert without_launcher(f"a\n{dashes}\n{line}\nmore\n{dashes}\nb\n") == "a\nb"
        assert without_launcher(f"{killed}{dashes}\n{line}\n{dashes}\n{table}\0") == f"{killed}{table}".strip()
    for kept in (killed, slots, table):
        assert without_launcher(kept) == kept.strip()
