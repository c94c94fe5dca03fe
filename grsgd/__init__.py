"""Decentralised, asynchronous and coded distributed SGD over MPI.

A standard PyTorch script needs three more lines to train on all ranks of an MPI job (``mpiexec -n 4 python
script.py``)::

    import grsgd

    train = grsgd.shard(train)                                # this rank's part of the data
    optimizer = grsgd.distribute(model, optimizer, "grsgd")   # mixes the ranks' models in every step
    ...                                                       # the training loop as it was
    optimizer.finish()                                        # all ranks now hold the same model
    if grsgd.is_main():
        print("trained on", grsgd.size(), "ranks")

The run file of a recorded script, or of ``grsgd train``, holds the measurements of all ranks::

    run = grsgd.load_run("results/demo-grsgd.h5")
    run.curve["test_accuracy"], run.ranks["wait_seconds"], run.traffic["sent"]

``python -m grsgd --help`` lists the commands.
"""

import importlib as _importlib
import os as _os

__version__ = "0.2.0"

# With colorama numba would write a control sequence to stdout, into the path that a shell reads from the last line.
_os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

_PLACES = {
    "CsvLogger": "grsgd.runs.loggers",
    "Metric": "grsgd.runs.metric",
    "Run": "grsgd.runs.run_file",
    "RunFailed": "grsgd.cli.from_python",
    "Task": "grsgd.tasks",
    "TensorBoardLogger": "grsgd.runs.loggers",
    "distribute": "grsgd.own_loop.distribute",
    "even": "grsgd.own_loop.even",
    "is_main": "grsgd.own_loop.ranks",
    "load_model": "grsgd.training.loading",
    "load_run": "grsgd.runs.run_file",
    "loader": "grsgd.own_loop.loader",
    "local_rank": "grsgd.own_loop.ranks",
    "plot": "grsgd.runs.plot",
    "rank": "grsgd.own_loop.ranks",
    "recording": "grsgd.own_loop.recording",
    "restarts": "grsgd.job.restarts",
    "shard": "grsgd.own_loop.ranks",
    "simulate": "grsgd.cli.from_python",
    "size": "grsgd.own_loop.ranks",
    "surviving": "grsgd.own_loop.surviving",
    "train": "grsgd.cli.from_python",
}
"""Module of each public name of this package. The module is imported when a program first uses the name, so that
reading a run file imports neither torch nor MPI."""

__all__ = sorted(_PLACES)


def __getattr__(name: str):
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
