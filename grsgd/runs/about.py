"""Descriptions of the attributes of a run file's root, for those who open it without grsgd: the group ``about``."""

GROUP = "about"
"""Its attributes are called as those of the root, and say what these mean, with the unit."""

_CODE = {
    "algorithm": "the algorithm, of a file outside of the package",
    "model_code": "the model, of a file outside of the package",
    "data_code": "the data set, of a file outside of the package",
    "task_code": "the task, of a file outside of the package",
    "schedule_code": "the schedule of the learning rate, of a file outside of the package",
    "optimizer_code": "the optimizer, of a file outside of the package",
    "topology_code": "the topology, of a file outside of the package",
}
_PARTS = {"file": "path", "source": "content", "sha256": "SHA-256 of the content"}

ABOUT = {
    "format": "version of this layout",
    "algorithm": "what trained: name of the algorithm",
    "ranks": "how many ranks there were",
    "seed": "seed of all random streams",
    "config": "the whole configuration, as TOML; of a recorded loop the algorithm, and what the script gave",
    "version": "of grsgd",
    "commit": "of the source code of grsgd; ends in -dirty if it was changed since",
    "started": "date and time, UTC, ISO 8601",
    "wall_seconds": "s, from the start of training to its end, without evaluation; of a simulation its real time",
    "ended": "how the run ended: completed, diverged, interrupted or failed",
    "reason": "why the run ended",
    "resumed": "samples of all ranks where the run has gone on from",
    "label": "name of the run in reports",
    "synchronous": "whether no rank could run ahead of the others without bound",
    "exact_gradient": "whether every step applied the mean gradient of all ranks at one common model",
    "bound_gradients": "gradients whose least possible time reports compare with",
    "depends_on_values": "whether the models' values decided when messages were sent",
    "comparison": "what runs must share for their bytes to be compared",
    "replication": "on how many ranks each shard of the data lay",
    "hosts": "host of each rank",
    "processors": "of each rank: processor of its host, cores on which it may run, threads of torch",
    "gpus": "GPU of each rank, with its number on the host",
    "clock": "wall: times are real ones; virtual: times of the curve and the ranks are simulated",
    "virtual_seconds": "s of simulated time, from the start of training to its end",
    "network": "the simulated network",
    "compute": "how long a simulated step computes",
    "timing_only": "whether gradients were left out of a simulation",
    "mpi": "name and version of the MPI library",
    "torch": "version of torch",
    "python": "version of Python",
    "device": "kind of device that trained: cpu, cuda, or meta without gradients",
    "transfer": "how arrays travelled between ranks",
    "transfers": "what was measured of each way for arrays to travel",
    "progress_mode": "what moved messages in the background",
    "dataset": "name of the data set",
    "model": "name of the model",
    "script": "program of a recorded loop",
    "arguments": "arguments of the program of a recorded loop",
    "batch_size": "samples of a rank in a step",
    "input_shape": "shape of a sample; of an image channels, height, width",
    "classes": "number of classes",
    "train_samples": "size of the training set: samples divided by it are epochs",
    "parameters": "number of trained parameters",
    "model_bytes": "bytes of the trained parameters",
    "target_accuracy": "test accuracy that was to be reached, a fraction",
    "metric": "what models were tested by, if not by accuracy",
    "metric_unit": "unit of the metric",
    "metric_higher_is_better": "whether greater values of the metric are better",
    "target": "value of the metric that was to be reached",
    "warnings": "lines to read before the result is trusted",
    "lost": "ranks that were left behind",
    "redundancy": "which redundancy was chosen, and why",
    "transport": "which transport was chosen, and why",
    "allreduce": "which all-reduce was chosen, and why",
    "final_test_accuracy": "test accuracy of the averaged final model, a fraction; NaN if not measured",
    "model_file": "path of the saved final model",
    "model_sha256": "SHA-256 of that file",
    "best_model_file": "path of the saved best model",
    "best_model_sha256": "SHA-256 of that file",
    "best_test_accuracy": "test accuracy of the saved best model, a fraction",
} | {f"{name}_{part}": f"{text} of {what}" for name, what in _CODE.items() for part, text in _PARTS.items()}
"""Description of each attribute."""


def described(attributes: dict) -> dict[str, str]:
    """Return the descriptions of those attributes of a run that are known, in their order."""
    return {name: ABOUT[name] for name, value in attributes.items() if value is not None and name in ABOUT}
