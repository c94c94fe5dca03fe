"""Start of worker processes that load data for a training process that has started MPI."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from functools import partial


def worker_options(workers: int, begin: Callable[[int], None] | None = None) -> dict:
    """Return the options for a torch DataLoader with ``workers`` worker processes; an empty dict if ``workers`` is 0.

    Worker processes are forked from Python's fork server, not from the training process. A fork of the training process
    itself may crash, because the training process has started MPI. Python's start method "spawn" is not used, because
    torch's threads abort some spawned workers when the workers exit. A worker process receives its arguments by pickle,
    and imports the main module of the program again. MPI is never initialised in a worker process. If ``begin`` is
    given, each worker process calls ``begin(number of the worker)`` before it loads data.
    """
    if not workers:
        return {}
    context = multiprocessing.get_context("forkserver")
    # The fork server imports torch once, so that no worker process need import torch.
    context.set_forkserver_preload(["grsgd.data.without_mpi", "torch"])
    beginning = partial(begin_worker, begin)
    return {"num_workers": workers, "multiprocessing_context": context, "worker_init_fn": beginning}


def begin_worker(begin: Callable[[int], None] | None, worker: int):
    """Start to watch the training process, so that worker number ``worker`` ends when the training process is killed.

    torch's own check watches only the parent of the worker, the fork server, which stays alive as long as the worker.
    """

    def watch():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if begin is not None:
        begin(worker)
