"""Descriptions of a run file's root attributes, stored in the group ``about`` of each run file for readers without
grsgd."""

GROUP = "about"
"""HDF5 group that describes the attributes of a run file's root. For each attribute of the root, the group has an
attribute of the same name. Each attribute of the group ``about`` is a text on the meaning and unit of the root's
attribute with the same name."""

_CODE = {
    "algorithm": "the algorithm, if its file is outside of the package",
    "model_code": "the model, if its file is outside of the package",
    "data_code": "the data set, if its file is outside of the package",
    "task_code": "the task, if its file is outside of the package",
    "schedule_code": "the schedule of the learning rate, if its file is outside of the package",
    "optimizer_code": "the optimizer, if its file is outside of the package",
    "topology_code": "the topology, if its file is outside of the package",
}
_PARTS = {"file": "path", "source": "content", "sha256": "SHA-256 of the content"}

ABOUT = {
    "format": "version of the layout of run files",
    "algorithm": "name of the algorithm of the run",
    "ranks": "number of ranks",
    "seed": "seed of all random streams",
    "config": "the whole configuration, as TOML; of a recorded loop the algorithm, and the values from the script",
    "version": "version of grsgd",
    "commit": "commit of the source code of grsgd; ends in -dirty if the code was changed since",
    "started": "date and time, UTC, ISO 8601",
    "wall_seconds": "s, from the start of training to its end, without evaluation; for a simulation its real time",
    "processor_seconds": "processor time of a simulation in s, including evaluation",
    "ended": "how the run ended: completed, diverged, interrupted or failed",
    "reason": "why the run ended",
    "restarts": "losses of hosts after which `grsgd run --restarts` has started the job again",
    "restart_seconds": "s, from the loss of the last of these hosts to the beginning of training",
    "resumed": "number of samples of all ranks at the checkpoint from which this run has gone on",
    "label": "name of the run in reports",
    "synchronous": "whether the number of steps by which a rank may lead other ranks was bounded",
    "exact_gradient": "whether every step applied the mean gradient of all ranks at one common model",
    "bound_gradients": "number of gradients for which reports compare the run's time with the least possible time",
    "depends_on_values": "whether the models' values decided when messages were sent",
    "comparison": "options that runs must share before their bytes can be compared",
    "replication": "number of ranks that held each shard of the data",
    "hosts": "host of each rank",
    "processors": "for each rank: processor of its host, cores on which it may run, threads of torch",
    "bindings": "cores and NUMA nodes of each rank, and the reason for this choice",
    "gpus": "GPU of each rank, with its number on the host",
    "clock": "wall: times are real times; virtual: times of the curve and the ranks are simulated",
    "virtual_seconds": "s of simulated time, from the start of training to its end",
    "network": "the simulated network",
    "compute": "model of the computing time of a simulated step",
    "timing_only": "whether gradients were left out of a simulation",
    "mpi": "name and version of the MPI library",
    "torch": "version of torch",
    "python": "version of Python",
    "device": "kind of device on which the run trained: cpu, cuda, or meta without gradients",
    "transfer": "way in which arrays are sent between ranks",
    "transfers": "measured times of each way of sending arrays between ranks",
    "progress_mode": "what moved messages in the background: a thread, or the training loop",
    "dataset": "name of the data set",
    "model": "name of the model",
    "script": "program of a recorded loop",
    "arguments": "arguments of the program of a recorded loop",
    "batch_size": "samples per rank and step",
    "input_shape": "shape of a sample; for an image: channels, height, width",
    "classes": "number of classes",
    "train_samples": "number of training samples; samples divided by this number are epochs",
    "parameters": "number of trained parameters",
    "model_bytes": "bytes of the trained parameters",
    "target_accuracy": "test accuracy that was to be reached, a fraction",
    "metric": "metric by which models were tested, if not accuracy",
    "metric_unit": "unit of the metric",
    "metric_higher_is_better": "whether greater values of the metric are better",
    "target": "value of the metric that was to be reached",
    "warnings": "warnings that users should read before they trust the result",
    "lost": "ranks that died or were excluded, and without which the run went on",
    "participation": "share of the steps of living ranks that entered the model, a fraction",
    "redundancy": "chosen redundancy, and the reason",
    "transport": "chosen transport, and the reason",
    "allreduce": "chosen all-reduce, and the reason",
    "final_test_accuracy": "test accuracy of the averaged final model, a fraction; NaN if not measured",
    "model_file": "path of the saved final model",
    "model_sha256": "SHA-256 of the file of the saved final model",
    "best_model_file": "path of the saved best model",
    "best_model_sha256": "SHA-256 of the file of the saved best model",
    "best_test_accuracy": "test accuracy of the saved best model, a fraction",
} | {f"{name}_{part}": f"{text} of {what}" for name, what in _CODE.items() for part, text in _PARTS.items()}
"""Description of each attribute that the root of a run file may have."""


def described(attributes: dict) -> dict[str, str]:
    """Return the descriptions of a run's ``attributes``, in the order of the attributes. Attributes without a
    description are left out."""
    return {name: ABOUT[name] for name, value in attributes.items() if value is not None and name in ABOUT}
