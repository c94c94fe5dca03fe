"""Loggers for W&B and MLflow: against the libraries where they are installed."""

import json
import os
import socket
import sys
import time
from collections import namedtuple
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest

from grsgd.cli.from_python import simulate
from grsgd.errors import ConfigError, RunFileError
from grsgd.integrations.trackers import (
    BATCH,
    MLFLOW_LIMITS,
    WANDB_LIMITS,
    KeptId,
    MlflowLogger,
    WandbLogger,
    results,
    told_in_a_line,
)
from grsgd.job.progress_line import ProgressLine

CONFIG = {"algorithm": {"name": "grsgd"}, "data": {"name": "digits"}, "model": {"name": "mlp"}, "train": {"steps": 8}}


class Server:
    """Client of MLflow that keeps its requests, and the limits in the environment when it was made."""

    def __init__(self, uri):
        self.requests, self.params = [], {}
        self.limits = {name: os.environ.get(name) for name in MLFLOW_LIMITS}
        Server.last = self

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id="1")

    def create_run(self, experiment):
        return SimpleNamespace(info=SimpleNamespace(run_id="abc"))

    def get_run(self, identity):
        return SimpleNamespace(data=SimpleNamespace(params=self.params))

    def log_batch(self, identity, metrics=(), params=(), tags=()):
        self.requests.append({"metrics": metrics, "params": params, "tags": tags})
        self.params |= {param.key: param.value for param in params}

    def update_run(self, identity, status):
        self.status = status

    set_terminated = update_run


@pytest.fixture
def server(monkeypatch):
    """Stand-in for the package mlflow; returns its class of clients."""
    mlflow, exceptions = ModuleType("mlflow"), ModuleType("mlflow.exceptions")
    mlflow.MlflowClient = Server
    mlflow.entities = SimpleNamespace(
        Metric=namedtuple("Metric", "key value timestamp step"),
        Param=namedtuple("Param", "key value"),
        RunTag=namedtuple("RunTag", "key value"),
    )
    exceptions.MlflowException = type("MlflowException", (Exception,), {})
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", exceptions)
    for name in MLFLOW_LIMITS:
        monkeypatch.setenv(name, "")  # so that the variable is as before after the test
        monkeypatch.delenv(name)
    return Server


@pytest.fixture
def wandb(monkeypatch):
    """Stand-in for the package wandb; returns the module, whose ``runs`` are the runs that were made."""
    module = ModuleType("wandb")
    error = type("Error", (Exception,), {})
    module.errors, module.runs = SimpleNamespace(Error=error, CommError=type("CommError", (error,), {})), []

    def init(project, id, resume, config):
        made = MagicMock(id=id, exit_codes=[])
        made.finish = lambda exit_code=None: made.exit_codes.append(exit_code)
        module.runs.append(made)
        return made

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


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


def test_a_refused_folder_keeps_the_identity_of_its_own_run(tmp_path, server, wandb):
    for logger, name in ((WandbLogger, "wandb"), (MlflowLogger, "mlflow")):
        path = tmp_path / f"{name}-run"
        path.write_text("of another run")
        made = logger("demo", folder=tmp_path)
        assert path.read_text() == "of another run", "the folder is checked after the loggers are made"
        with ProgressLine(is_shown=False) as line:
            line.loggers = [made]
            line.training(None)
            assert path.read_text() == KeptId(tmp_path, True, name).known != "of another run"


def test_a_loop_without_a_beginning_keeps_the_identity_with_its_first_numbers(tmp_path, wandb):
    logger = WandbLogger("demo", folder=tmp_path / "kept")
    logger.log(1, {"loss": 1.0})
    assert KeptId(tmp_path / "kept", True, "wandb").known == logger._run.id


def test_wandb_learns_how_a_run_ended(run, wandb):
    for ended in ("completed", "diverged", "interrupted", "failed", None):
        logger = WandbLogger("demo")
        logger.log(1, {"loss": 1.0})
        if ended:  # otherwise an error has ended the job before the end of its run
            run.attributes["ended"] = ended
            logger.conclude(run)
        logger.close()
        assert wandb.runs[-1].exit_codes == [int(ended != "completed")]


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


def test_mlflow_gets_one_request_per_call_and_waits_briefly(run, server):
    logger = MlflowLogger("http://nowhere", config={f"setting{k}": k for k in range(BATCH + 1)})
    client = server.last
    assert client.limits == MLFLOW_LIMITS
    assert [len(each["params"]) for each in client.requests] == [BATCH, 1]
    client.requests.clear()
    logger.log(3, {"loss": 0.5, "waiting": 1})
    (request,) = client.requests
    assert [(each.key, each.value, each.step) for each in request["metrics"]] == [("loss", 0.5, 3), ("waiting", 1.0, 3)]
    client.requests.clear()
    logger.conclude(run)
    last = client.requests[-1]
    assert "ended" in {each.key for each in last["tags"]} and "sent_bytes" in {each.key for each in last["metrics"]}
    assert sum(bool(each["metrics"]) for each in client.requests) == 1
    logger.close()
    assert client.status == "FINISHED"


def test_limits_of_the_user_stay(server, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    MlflowLogger("http://nowhere")
    assert server.last.limits == MLFLOW_LIMITS | {"MLFLOW_HTTP_REQUEST_TIMEOUT": "77"}


def test_a_server_that_hangs_is_given_up(monkeypatch):
    pytest.importorskip("mlflow")
    for name in MLFLOW_LIMITS:
        monkeypatch.setenv(name, "1")
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ConfigError, match="MLflow at http"):
        began = time.monotonic()
        MlflowLogger(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert time.monotonic() - began < 30


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


@pytest.mark.parametrize("logger, library", [(WandbLogger, "wandb"), (MlflowLogger, "mlflow")])
def test_a_missing_library_is_named_with_the_command_that_installs_it(logger, library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf'the library {library} is not installed: pip install "grsgd\[trackers\]"$'):
        logger("demo")


@pytest.mark.parametrize("uri, is_folder", [("mlruns", True), ("file:x", True), ("http://a", False), ("uc", False)])
def test_a_folder_of_mlflow_needs_no_prefix(uri, is_folder, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    MlflowLogger(uri)
    assert ("MLFLOW_ALLOW_FILE_STORE" in os.environ) == is_folder


def test_a_server_of_wandb_that_does_not_answer_is_one_line(wandb, monkeypatch):
    for name in WANDB_LIMITS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def fail(**named):
        assert {name: os.environ[name] for name in WANDB_LIMITS} == WANDB_LIMITS
        raise wandb.errors.CommError("deadline exceeded\nwhile retrying")

    wandb.init = fail
    with pytest.raises(ConfigError, match="^W&B: deadline exceeded: without network set WANDB_MODE=offline$"):
        WandbLogger("demo")
