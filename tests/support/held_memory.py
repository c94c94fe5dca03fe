"""Measurement of the bytes per parameter that simulated ranks hold in flat arrays."""

import gc
import tracemalloc

import numpy as np

from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.testing.simulated import network_of
from grsgd.training.trainer import Trainer
from tests.support.training import CONSTANT, simulation

FILTERS = [
    tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain),
    tracemalloc.Filter(False, "*/grsgd/simulator/*"),  # leave out copies of messages, which only the simulator makes
]
SIZES = 100_000, 200_000
"""Widths of the hidden layer of two models. With each width, the messages of an all-reduce have their largest size."""


def held_bytes() -> int:
    """Return the bytes of all NumPy arrays. Flat tensors share the memory of NumPy arrays."""
    gc.collect()
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(FILTERS).traces)


def held_per_parameter(algorithm: dict, ranks: int, monkeypatch, **sections) -> float:
    """Return the mean over ranks of the bytes per parameter that a rank holds in flat arrays after its last step."""
    sizes, found = [], []
    for width in SIZES:
        tracemalloc.start(1)
        try:
            before = held_bytes()
            model = {"name": "mlp", "hidden": [width]}
            job = simulation(algorithm, ranks, network_of(), CONSTANT, model=model, **sections)
            held = note_before_average(monkeypatch)
            job.train()
            found.append(held[0] - before)
            sizes.append(sum(p.numel() for p in job.trainers[0].replica.trained))
            del job
        finally:
            tracemalloc.stop()
            monkeypatch.undo()
    return (found[1] - found[0]) / (sizes[1] - sizes[0]) / ranks


def note_before_average(monkeypatch) -> list[int]:
    """Return a list to which `held_bytes` is added once, when all ranks have taken their last step."""
    held, average = [], Trainer.average

    def noting(trainer):
        yield from halving_doubling_allreduce(trainer.context.uncounted_comm, np.zeros(1))  # serves as a barrier
        if not held:
            held.append(held_bytes())
        yield from average(trainer)

    monkeypatch.setattr(Trainer, "average", noting)
    return held
