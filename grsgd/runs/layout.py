"""Layout of a run file: the attributes of its root, and its datasets with their units."""

from typing import NamedTuple

import numpy as np

FORMAT = 2
"""Version of the layout of run files, stored in the root attribute ``format``. ``load_run`` refuses a run file with a
higher version."""


class Layout(NamedTuple):
    """Layout of one dataset of a run file. In all datasets of a run file, axes with the same name have the same
    length."""

    dtype: type
    axes: tuple[str, ...]
    unit: str
    description: str
    optional: bool = False


ATTRIBUTES = {
    "algorithm": str,
    "ranks": int,
    "seed": int,
    "config": str,
    "version": str,
    "started": str,
    "wall_seconds": float,
    "label": str,
    "ended": str,
    "reason": str,
    "hosts": list,
}
"""Names and types of the attributes that every run must have."""
KNOWN = {
    "final_test_accuracy": float,
    "target_accuracy": float,
    "metric": str,
    "metric_unit": str,
    "metric_higher_is_better": bool,
    "target": float,
    "train_samples": int,
    "batch_size": int,
    "dataset": str,
    "model": str,
    "clock": str,
    "virtual_seconds": float,
    "processor_seconds": float,
    "network": str,
    "compute": str,
    "transport": str,
    "redundancy": str,
    "allreduce": str,
    "comparison": str,
    "synchronous": bool,
    "exact_gradient": bool,
    "depends_on_values": bool,
    "replication": int,
    "bound_gradients": int,
    "participation": float,
    "algorithm_sha256": str,
    "model_code_sha256": str,
    "data_code_sha256": str,
    "optimizer_code_sha256": str,
    "schedule_code_sha256": str,
    "task_code_sha256": str,
    "topology_code_sha256": str,
    "model_file": str,
    "model_sha256": str,
    "best_model_file": str,
    "best_model_sha256": str,
    "best_test_accuracy": float,
    "warnings": list,
}
"""Names and types of further attributes, which reports read if a run has them. Attributes that are in neither
``ATTRIBUTES`` nor ``KNOWN`` are read and saved unchanged."""


def _measured(unit: str, description: str) -> Layout:
    return Layout(np.float64, ("snapshot",), unit, description + "; NaN where not measured", optional=True)


LAYOUT: dict[str, dict[str, Layout]] = {
    "curve": {
        "time": Layout(np.float64, ("snapshot",), "s", "training time of the snapshot"),
        "step": Layout(np.int64, ("snapshot",), "steps", "steps of a rank at the snapshot"),
        "samples": Layout(np.int64, ("snapshot",), "samples", "samples trained on, all ranks together"),
        "train_loss": _measured("1", "training loss, mean over the ranks"),
        "test_accuracy": _measured("1", "test accuracy of the averaged model, a fraction"),
        "test_accuracy_min": _measured("1", "least test accuracy of a single replica, a fraction"),
        "test_accuracy_max": _measured("1", "greatest test accuracy of a single replica, a fraction"),
        "consensus_distance": _measured("1", "distance of the replicas from their average"),
    },
    "ranks": {
        "steps": Layout(np.int64, ("rank",), "steps", "steps done by the rank"),
        "samples": Layout(np.int64, ("rank",), "samples", "samples on which the rank trained"),
        "compute_seconds": Layout(
            np.float64,
            ("rank",),
            "s",
            "gradients, updates and injected delays; the rest of the steps is communicating and waiting",
        ),
        "communicate_seconds": Layout(np.float64, ("rank",), "s", "time spent on sending, receiving and merging"),
        "wait_seconds": Layout(np.float64, ("rank",), "s", "time spent waiting for other ranks"),
    },
    "traffic": {
        "sent": Layout(np.int64, ("rank", "rank"), "bytes", "payload from rank i (row) to rank j (column)"),
        "sent_once": Layout(np.int64, ("rank",), "bytes", "payload sent by the rank, a multicast counted once"),
        "messages": Layout(np.int64, ("rank", "rank"), "messages", "messages from rank i (row) to rank j (column)"),
        "headers": Layout(np.int64, ("rank", "rank"), "bytes", "headers from rank i (row) to rank j (column)"),
        "repaired": Layout(
            np.float64, ("rank",), "bytes", "sent again by MPI after datagrams of IP multicast were lost", optional=True
        ),
        "lost": Layout(
            np.float64, ("rank",), "datagrams", "datagrams of IP multicast that the rank did not get", optional=True
        ),
        "interface": Layout(
            np.float64,
            ("rank", "way"),
            "bytes",
            "sent (column 0) and received (1) by the network interfaces of the rank's host, by all programs",
            optional=True,
        ),
    },
    "staleness": {
        "value": Layout(np.int64, ("value",), "steps", "ages of merged models, ascending", optional=True),
        "count": Layout(np.int64, ("rank", "value"), "1", "merged models of each age at each rank", optional=True),
    },
}
"""Datasets of a run file, by group. If an optional dataset is missing in a file, `load_run` returns a run with an array
of NaN or 0, or with an empty array."""

UNITS = {f"{group}/{name}": (c.unit, c.description) for group in LAYOUT for name, c in LAYOUT[group].items()}
"""Dictionary from the path of each dataset to (unit, description)."""
