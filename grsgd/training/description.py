"""Attributes of a run file that are known before the first training step, such as the names of algorithm and data."""

import platform
import subprocess
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from grsgd import __version__
from grsgd.algorithms import Algorithm
from grsgd.algorithms.central import CentralAlgorithm
from grsgd.config import Config
from grsgd.config.sources import sources_of
from grsgd.outside import attributes_of
from grsgd.runs import metric
from grsgd.training.trainer import Trainer


def describe(trainer: Trainer) -> dict:
    """Return the root attributes of the run file, except the attributes about hosts and about the end of the run.

    The attribute ``commit`` has a value on rank 0 only.
    """
    config = trainer.config
    return (
        describe_algorithm(trainer.algorithm)
        | sources_of(config)
        | {
            "replication": config.data.replication,
            "seed": config.seed,
            "config": config.toml(),
            "dataset": config.data.name,
            "model": config.model.name,
            "batch_size": config.data.batch_size,
            "input_shape": list(trainer.data.shape),
            "classes": trainer.data.classes,
            "train_samples": len(trainer.data.train),
        }
        | metric.attributes_of(trainer.task.metric, config.target)
    )


def describe_algorithm(algorithm: Algorithm) -> dict:
    """Return the attributes that describe the algorithm, the size of its model, and the software. The result is stored
    in the run files of ``grsgd train`` and of users' own training loops."""
    traits, replica = algorithm.traits, algorithm.replica
    return attributes_of("algorithm", type(algorithm)) | {
        "algorithm": algorithm.name,
        "label": traits.label,
        "synchronous": traits.synchronous,
        "exact_gradient": traits.exact_gradient,
        "comparison": traits.comparison,
        "depends_on_values": traits.depends_on_values,
        "bound_gradients": algorithm.bound_gradients if isinstance(algorithm, CentralAlgorithm) else None,
        "ranks": algorithm.comm.size,
        "version": __version__,
        "commit": commit() if algorithm.comm.rank == 0 else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": replica.device.type,
        "progress_mode": algorithm.driver.progress_mode,
        "parameters": replica.params.array.size,
        "model_bytes": replica.nbytes,
    }


def expected_bytes(config: Config, ranks: int) -> int:
    """Return the approximate size in bytes of the run file of a run on ``ranks`` ranks."""
    return 2**17 + 8 * (3 * ranks**2 + 32 * ranks + 8 * config.train.snapshots)


def commit() -> str | None:
    """Return the git commit of this package's source code, with "-dirty" if files have changed since this commit.
    Return None if the source code is in no git repository."""
    file = Path(__file__)
    git = partial(subprocess.run, cwd=file.parent, capture_output=True, text=True, timeout=10, check=True)
    try:
        git(["git", "ls-files", "--error-unmatch", file.name])  # fails for an installed copy inside a user's repository
        return git(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
