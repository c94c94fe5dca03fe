"""Invented runs, for the tests of the run file, the report and the figures."""

import numpy as np

from grsgd.runs.ending import how_ended
from grsgd.runs.run_file import Run

CONFIG = """\
[algorithm]
name = "{algorithm}"

[train]
seed = {seed}
"""


def fake_run(algorithm="gossip", ranks=4, seed=1, snapshots=5, accuracy=True, **attributes) -> Run:
    """Return an invented run with ``snapshots`` rows in its curve, 10 s and 1000 samples apart. The averaged model has
    the accuracies 0, 0.2, 0.4 ..."""
    row = np.arange(snapshots)
    measured = np.minimum(0.2 * row, 1.0) if accuracy else np.full(snapshots, np.nan)
    apart = 1 - np.eye(ranks, dtype=np.int64)
    return Run(
        attributes={
            "algorithm": algorithm,
            "ranks": ranks,
            "seed": seed,
            "config": CONFIG.format(algorithm=algorithm, seed=seed),
            "version": "0.1.0",
            "started": "2024-05-01T12:00:00+00:00",
            "wall_seconds": 50.0,
            "label": algorithm,
            "reason": "epochs",
            "hosts": [f"node{i}" for i in range(ranks)],
            "dataset": "mnist",
            "model": "mlp",
            "train_samples": 2000,
            "batch_size": 32,
            "target_accuracy": 0.6,
            "clock": "wall",
            "final_test_accuracy": measured[-1] if snapshots else np.nan,
            **attributes,
            "ended": how_ended(attributes.get("reason", "epochs")).value,
        },
        curve={
            "time": 10.0 * row,
            "step": 5 * row,
            "samples": 1000 * row,
            "train_loss": 2.0 / (1 + row),
            "test_accuracy": measured,
            "test_accuracy_min": measured - 0.05,
            "test_accuracy_max": measured + 0.05,
            "consensus_distance": 0.5 / (1 + row),
        },
        ranks={
            "steps": np.full(ranks, 20),
            "samples": np.full(ranks, 1000 * max(snapshots - 1, 0) // ranks),
            "compute_seconds": np.full(ranks, 30.0),
            "communicate_seconds": np.full(ranks, 6.0),
            "wait_seconds": np.arange(ranks, dtype=float),
        },
        traffic={
            "sent": 1024**2 * apart,
            "sent_once": np.full(ranks, 1024**2 * (ranks - 1)),
            "messages": 20 * apart,
            "headers": 20 * 32 * apart,
            "repaired": np.full(ranks, 1024.0),
            "lost": np.full(ranks, 3.0),
            "interface": np.full((ranks, 2), 1.1 * 1024**2 * (ranks - 1)),
        },
        staleness={"value": np.array([0, 1, 3]), "count": np.tile([1, 2, 1], (ranks, 1))},
    )
