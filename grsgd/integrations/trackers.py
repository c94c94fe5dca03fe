"""Loggers that send the numbers of a run to the trackers W&B and MLflow, as `grsgd.CsvLogger` writes numbers to a
file."""

import math
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from grsgd.errors import ConfigError, RunFileError
from grsgd.runs.run_file import Run
from grsgd.runs.settings import flattened, settings
from grsgd.text import printable

INSTALL = 'pip install "grsgd[trackers]"'
"""Command that installs the libraries wandb and mlflow."""
MLFLOW_SERVERS = ("databricks", "databricks-uc", "uc")
"""URIs that MLflow accepts and that, although they have no colon, name no folder."""
STEP = "step"
"""Name under which a tracker stores the number of steps of rank 0."""
MLFLOW_LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""Environment variables that limit a request to an MLflow server: seconds, and number of further attempts. These
variables are only set if the user has not set them.

With MLflow's own limits of 120 seconds and 7 further attempts, a server that hangs would stop rank 0 for many minutes.
"""
WANDB_LIMITS = {"WANDB_INIT_TIMEOUT": "30"}
"""Environment variable that limits the wait for a W&B server at the start of a run, in seconds; set if the user has
not."""
BATCH = 100
"""Largest number of settings that MLflow accepts in one request."""


@contextmanager
def told_in_a_line(name: str):
    """Turn any error of the tracker called ``name`` into a RunFileError. After a RunFileError, the run goes on without
    the tracker."""
    try:
        yield
    except Exception as error:  # a tracker's server may cause any error
        raise RunFileError(f"{name}: {printable(str(error).partition(chr(10))[0], 300)}") from None


class KeptId:
    """Id of a tracker's run. The id is stored in a file in a folder that outlives the job, such as the folder of
    checkpoints.

    folder: the folder; None if no later job continues the run. goes_on: whether this job continues the run of an
    earlier job. name: name of the tracker. `keep` writes the file after the folder has been checked. So a folder that
    is refused keeps the id of its own run.
    """

    def __init__(self, folder: Path | None, goes_on: bool, name: str):
        self.path = None if folder is None else folder / f"{name}-run"
        self.known = self.path.read_text().strip() if goes_on and self.path and self.path.exists() else None
        """Id of the run which this job continues; None for a new run."""

    def keep(self, identity: str):
        """Store the id of a new run for later jobs. Has no effect if this id is stored already."""
        if self.path is not None and identity != self.known:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(identity)
            self.known = identity


class WandbLogger:
    """Run in a project of W&B. Without network, set ``WANDB_MODE=offline``, and later call ``wandb sync``.

    Parameters
    ----------
    project
        Name of the project.
    config
        Settings of the run, as a dictionary that may contain dictionaries.
    folder, goes_on
        Arguments of `KeptId`. A job that goes on from a checkpoint also continues the run of W&B.
    artifact
        Whether the saved final model is stored in W&B as an artifact.

    Sets the environment variable in `WANDB_LIMITS` if the user has not set it. Raises ConfigError if the package wandb
    is not installed, or if wandb refuses the project.
    """

    def __init__(
        self,
        project: str,
        config: Mapping | None = None,
        folder: Path | None = None,
        goes_on: bool = False,
        artifact: bool = False,
    ):
        for name, value in WANDB_LIMITS.items():
            os.environ.setdefault(name, value)
        try:
            import wandb
        except ImportError:
            raise ConfigError(f"W&B: the library wandb is not installed: {INSTALL}") from None
        kept = KeptId(folder, goes_on, "wandb")
        identity = kept.known or secrets.token_hex(4)
        try:
            self._run = wandb.init(project=project, id=identity, resume="allow", config=dict(config or {}))
        except wandb.errors.Error as error:
            line = printable(str(error).partition("\n")[0], 300)
            remedy = ": without network set WANDB_MODE=offline" if isinstance(error, wandb.errors.CommError) else ""
            raise ConfigError(f"W&B: {line}{remedy}") from None
        self._kept = kept
        self._run.define_metric("*", step_metric=STEP)
        self._artifact, self._exit_code = wandb.Artifact if artifact else None, 1

    def begin(self):
        """Store the id of the run for later jobs, because training begins."""
        with told_in_a_line("W&B"):
            self._kept.keep(self._run.id)

    def log(self, step: int, values: dict[str, float]):
        self.begin()
        with told_in_a_line("W&B"):
            self._run.log({STEP: step, **values})

    def conclude(self, run: Run):
        """Send the results of the finished run to W&B, and the final model if ``artifact`` was set."""
        with told_in_a_line("W&B"):
            self._run.config.update(settings(run), allow_val_change=True)
            self._run.summary.update(results(run))
            if self._artifact and "model_file" in run.attributes:
                artifact = self._artifact(f"model-{self._run.id}", type="model")
                artifact.add_file(run.attributes["model_file"])
                self._run.log_artifact(artifact)
        self._exit_code = int(run.attributes["ended"] != "completed")

    def close(self):
        """End the run of W&B: as finished if `conclude` was called with a completed run, else as failed."""
        with told_in_a_line("W&B"):
            self._run.finish(exit_code=self._exit_code)


class MlflowLogger:
    """Run of MLflow on the server or in the folder that ``uri`` names. Examples of folders are ``file:mlruns`` and
    ``mlruns``.

    ``experiment`` is the name of the experiment. The other parameters have the same meaning as in `WandbLogger`. Sets
    the environment variables in `MLFLOW_LIMITS` that are not set. Raises ConfigError if the package mlflow is not
    installed, or cannot use the URI.
    """

    def __init__(
        self,
        uri: str,
        experiment: str = "grsgd",
        config: Mapping | None = None,
        folder: Path | None = None,
        goes_on: bool = False,
        artifact: bool = False,
    ):
        for name, value in MLFLOW_LIMITS.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow import MlflowClient, entities
            from mlflow.exceptions import MlflowException
        except ImportError:
            raise ConfigError(f"MLflow: the library mlflow is not installed: {INSTALL}") from None
        if uri.startswith("file:") or not (":" in uri or uri in MLFLOW_SERVERS):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # without this, MLflow 3 requires a database
        self._kept, self._entities = KeptId(folder, goes_on, "mlflow"), entities
        try:
            self._client = MlflowClient(uri)
            found = self._client.get_experiment_by_name(experiment)
            number = found.experiment_id if found else self._client.create_experiment(experiment)
            self._id = self._kept.known or self._client.create_run(number).info.run_id
            self._client.update_run(self._id, "RUNNING")
            self._note(dict(flattened(config or {})))
        except MlflowException as error:
            raise ConfigError(f"MLflow at {uri}: {printable(str(error), 300)}") from None
        self._artifact, self._status = artifact, "KILLED"

    def begin(self):
        """Store the id of the run for later jobs, because training begins."""
        with told_in_a_line("MLflow"):
            self._kept.keep(self._id)

    def log(self, step: int, values: dict[str, float]):
        self.begin()
        with told_in_a_line("MLflow"):
            self._client.log_batch(self._id, metrics=self._metrics(step, values))

    def conclude(self, run: Run):
        """Send the results of the finished run to MLflow, and the final model if ``artifact`` was set."""
        with told_in_a_line("MLflow"):
            self._note(settings(run))
            found = results(run)
            numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
            words = [self._entities.RunTag(name, found[name]) for name in found.keys() - numbers.keys()]
            self._client.log_batch(self._id, metrics=self._metrics(0, numbers), tags=words)
            if self._artifact and "model_file" in run.attributes:
                self._client.log_artifact(self._id, run.attributes["model_file"])
        self._status = "FINISHED" if run.attributes["ended"] == "completed" else "FAILED"

    def close(self):
        with told_in_a_line("MLflow"):
            self._client.set_terminated(self._id, self._status)

    def _note(self, values: Mapping):
        """Send the settings in ``values`` that MLflow does not have yet. MLflow allows no change of a setting."""
        known = self._client.get_run(self._id).data.params
        new = [self._entities.Param(name, str(values[name])) for name in sorted(values.keys() - known.keys())]
        for first in range(0, len(new), BATCH):
            self._client.log_batch(self._id, params=new[first : first + BATCH])

    def _metrics(self, step: int, values: Mapping) -> list:
        """Return ``values`` as MLflow's metrics at the step ``step``, with the present time in milliseconds."""
        now = int(1000 * time.time())
        return [self._entities.Metric(name, float(value), now, step) for name, value in values.items()]


def results(run: Run) -> dict[str, float | str]:
    """Return the results of a run by name: reason of its end, metric, participation, traffic, waiting time and
    staleness."""
    found = {name: run.attributes[name] for name in ("ended", "reason")}
    for name, value in run.attributes.items():
        if name.startswith(("final_", "best_test_")) and isinstance(value, float) and not math.isnan(value):
            found[name] = value
    if "participation" in run.attributes:
        found["participation"] = run.attributes["participation"]
    found["sent_bytes"] = int(run.traffic["sent"].sum())
    found["wait_seconds"] = float(run.ranks["wait_seconds"].mean())
    if run.staleness and run.staleness["count"].any():
        found["staleness"] = float(np.average(run.staleness["value"], weights=run.staleness["count"].sum(0)))
    return found


def trackers(
    wandb: str | None, mlflow: str | None, config: Mapping, folder: str | os.PathLike | None, goes_on: bool
) -> list:
    """Return a logger for the W&B project ``wandb`` and a logger for the MLflow URI ``mlflow``, except for arguments
    that are None."""
    more = {"config": config, "folder": None if folder is None else Path(folder), "goes_on": goes_on, "artifact": True}
    return [*([WandbLogger(wandb, **more)] if wandb else []), *([MlflowLogger(mlflow, **more)] if mlflow else [])]
