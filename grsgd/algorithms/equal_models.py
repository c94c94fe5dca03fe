"""Comparison of the models of all ranks, for algorithms that keep all models equal: every `EVERY` steps, and after
training.

A schedule is a generator that yields each object it waits for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from grsgd.algorithms.averaging import exact_average
from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.equal_tensors import differing
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.lazy import LazyModule
from grsgd.models.digests import digests
from grsgd.text import ranks_in_words

torch = LazyModule("torch")

EVERY = 100
"""Number of steps from one comparison of a sample of the model's parameters to the next comparison. A comparison takes
0.1 to 0.3 ms, which is 1 to 3 microseconds per step on average."""
SAMPLE = 1024
"""Largest number of elements of a model that one comparison in training reads. Successive comparisons in training read
different elements of the model."""
CAUSES = (
    "did the learning rate differ (ReduceLROnPlateau on each rank's own loss), was a model or an optimizer's state "
    "loaded on one rank alone, did another optimizer step, or a layer write its own weights (Embedding(max_norm=...))?"
)


def warn(line: str):
    """Issue the text ``line`` as a RuntimeWarning through Python's module ``warnings``."""
    warnings.warn(line, RuntimeWarning, stacklevel=2)


class EqualModels:
    """Comparison of all ranks' models with the model of rank 0, for an algorithm that keeps all ranks' models equal bit
    for bit.

    If models differ, rank 0 issues one warning, training goes on, and `at_end` replaces the models by their mean. The
    messages of the comparisons of models do not count as the algorithm's traffic. If ``is_looked_at`` is False, models
    are never compared, for example in simulated time, where the messages of comparisons would change the simulated
    times. Rank 0 calls ``say`` with the text of the warning as soon as models differ.
    """

    def __init__(self, algorithm: Algorithm, is_looked_at: bool = True, say: Callable[[str], None] = warn):
        traits, self.replica = algorithm.traits, algorithm.replica
        self.say = say
        self.name, self.comm = algorithm.name, algorithm.uncounted_comm
        all_come = not (traits.tolerates_lost_ranks or traits.tolerates_silent_ranks)
        self.is_looked_at = is_looked_at and traits.equal_models and all_come and self.comm.size > 1
        self.warnings: list[str] = []
        """Warnings for users about models that differ, one line each. Only rank 0 has warnings about models that
        differ."""
        self._looks = 0

    def is_due(self, steps: int) -> bool:
        """Return whether all ranks must call `look` after step number ``steps``."""
        return self.is_looked_at and steps % EVERY == 0

    def look(self, steps: int):
        """Generator, called on all ranks after ``steps`` steps, that compares a sample of the parameters with the
        parameters of rank 0."""
        if not self.is_looked_at:
            return
        x = self.replica.params.tensor
        stride = -(-x.numel() // SAMPLE)
        # 7919 is a prime, so successive samples read different elements, and the samples together read every element
        first = 7919 * self._looks % stride
        self._looks += 1
        sample = x[first::stride].cpu().contiguous()
        numbers = sample.view(getattr(torch, f"int{8 * sample.element_size()}")).numpy().astype(np.int64)
        begins = np.cumsum([0, *(p.numel() for p in self.replica.trained)])
        places = first + stride * np.arange(numbers.size)
        yield from self._compare(numbers, np.searchsorted(begins, places, "right") - 1, f"after {steps} steps")

    def at_end(self):
        """Generator, called on all ranks after training, that compares all parameters, and replaces the parameters of
        all ranks by their mean if any differ."""
        if not self.is_looked_at:
            return
        numbers = digests(p.data for p in self.replica.trained)
        if (yield from self._compare(numbers, np.arange(numbers.size), "after training")):
            yield from exact_average(self.comm, self.replica.params)

    def _compare(self, numbers: np.ndarray, parameters: np.ndarray, when: str):
        """Generator that returns whether any element of ``numbers`` differs between ranks. ``parameters[i]`` is the
        index of the parameter to which ``numbers[i]`` belongs."""
        counts, mine = yield from differing(self.comm, numbers)
        if not counts.any():
            return False
        ranks = np.zeros(self.comm.size)
        ranks[self.comm.rank] = mine.any()
        yield from halving_doubling_allreduce(self.comm, ranks)
        if self.comm.rank == 0 and not self.warnings:
            first = self.replica.name_of(self.replica.trained[parameters[np.flatnonzero(counts)[0]]])
            others = ranks_in_words(np.flatnonzero(ranks))
            self.warnings.append(
                f"{self.name} keeps all models equal, but {when} the models of {others} differ from rank 0's, first in "
                f"{first!r}: {CAUSES} The models are made their mean at the end"
            )
            self.say(self.warnings[0])
        return True
