"""Loggers for W&B and MLflow: against the libraries where they are installed."""

import json
import sys

import pytest

from grsgd.cli.from_python import simulate
from grsgd.errors import ConfigError, RunFileError
from grsgd.integrations.trackers import KeptId, MlflowLogger, WandbLogger, results, told_in_a_line
from grsgd.job.progress_line import ProgressLine

CONFIG = {"algorithm": {"name": "grsgd"}, "data": {"name": "digits"}, "model": {"name": "mlp"}, "train": {"steps": 8}}


@pytest.fixture
def run(tmp_path):
    return simulate(CONFIG, 2, out=tmp_path / "run.h5", save=tmp_path / "model.pt")


def test_a_job_that_goes_on_has_the_identity_of_the_job_before(tmp_path):
    first = KeptId(tmp_path / "kept", False, "wandb")
    assert first.known is None
    first.keep("abc")
    assert KeptId(tmp_path / "kept", True, "wandb").known == "abc"
    assert KeptId(tmp_path / "kept", False, "wandb").known is None, "a new run in an old folder"
    assert KeptId(tmp_path / "kept", True, "mlflow").known is None
    KeptId(None, True, "wandb").keep("of a run without checkpoints")


def test_results_of_a_run(run):
    found = results(run)
    assert found["ended"] == "completed" and found["final_test_accuracy"] == run.attributes["final_test_accuracy"]
    assert found["sent_bytes"] == run.traffic["sent"].sum() > 0 and found["staleness"] >= 0


def test_a_tracker_that_fails_costs_one_line():
    with pytest.raises(RunFileError, match="^MLflow: no connection$"), told_in_a_line("MLflow"):
        raise OSError("no connection\nto any server")


def test_a_tracker_that_is_down_at_the_end_does_not_fail_the_run(capsys):
    class Down:
        def close(self):
            with told_in_a_line("MLflow"):
                raise OSError("no connection")

    with ProgressLine(is_shown=False) as line:
        line.loggers = [Down()]
    assert "warning: MLflow: no connection" in capsys.readouterr().err


@pytest.mark.parametrize(("logger", "package"), [(WandbLogger, "wandb"), (MlflowLogger, "mlflow")])
def test_the_missing_package_is_named(logger, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"pip install {package}"):
        logger("somewhere")


def test_mlflow_has_the_numbers_of_both_jobs_of_a_run(run, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    uri = f"file:{tmp_path}/runs"
    for goes_on, step in ((False, 3), (True, 6)):
        logger = MlflowLogger(uri, config=CONFIG, folder=tmp_path / "kept", goes_on=goes_on, artifact=True)
        logger.log(step, {"loss": 1 / step})
        if goes_on:
            logger.conclude(run)
        logger.close()
    client = mlflow.MlflowClient(uri)
    (kept,) = client.search_runs([client.get_experiment_by_name("grsgd").experiment_id])
    assert [each.step for each in client.get_metric_history(kept.info.run_id, "loss")] == [3, 6]
    assert kept.info.status == "FINISHED" and kept.data.params["algorithm.name"] == "grsgd"
    assert kept.data.metrics["sent_bytes"] == run.traffic["sent"].sum() and kept.data.tags["ended"] == "completed"
    assert [file.path for file in client.list_artifacts(kept.info.run_id)] == ["model.pt"]


def test_wandb_keeps_the_identity_and_the_results(run, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    identities = []
    for goes_on in (False, True):
        logger = WandbLogger("demo", CONFIG, tmp_path / "kept", goes_on)
        identities.append(logger._run.id)
        logger.log(3, {"loss": 0.5})
        logger.conclude(run)
        summary = json.loads(json.dumps(dict(logger._run.summary)))
        logger.close()
    assert identities[0] == identities[1] and summary["loss"] == 0.5 and summary["ended"] == "completed"
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*-{identities[0]}"))) >= 1
