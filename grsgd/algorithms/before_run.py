"""Classes of the objects that a trial before a run needs. In a trial before a run the ranks measure the times of
computing and sending. The measured times decide the options that the configuration leaves open, for example with the
value ``"auto"``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from grsgd.algorithms.context import RankContext
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat
from grsgd.models.replica import Replica

torch = LazyModule("torch")


class Load(NamedTuple):
    """Work of each rank in a step, for the trials that choose options before a run.

    Parameters
    ----------
    batch
        Number of samples in the batch that all ranks share in a step.
    gradient
        ``gradient(samples)`` returns a function that computes the gradient of up to ``samples`` samples of each of this
        rank's blocks.
    slowdown
        Factor by which the configuration slows down each rank's computation, shape [ranks].
    delays
        Seconds by which the configuration prolongs each step, in addition to ``slowdown``: shape [steps, ranks].
    """

    batch: int
    gradient: Callable[[int], Callable[[], object]]
    slowdown: np.ndarray
    delays: np.ndarray


@dataclass
class Trial:
    """Objects that one rank needs for a trial; the argument of `Algorithm.choose_options`.

    Parameters
    ----------
    context
        Connections and seed of the trial. During a trial, ``context.comm`` carries only the trial's messages.
    model
        Model of the run; trials leave this model unchanged.
    dtype
        dtype of the model's parameters in the run.
    load_of
        ``load_of(algorithm)`` returns the `Load` of a `CommonBatchAlgorithm`; None in a user's own loop.
    """

    context: RankContext
    model: torch.nn.Module
    dtype: torch.dtype
    load_of: Callable[[object], Load] | None = None

    @property
    def on_gpu(self) -> bool:
        return next(self.model.parameters()).device.type == "cuda"

    def like_parameters(self) -> Flat:
        """Return a vector of zeros with the size, dtype and device of all trained parameters together."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return Flat.zeros(sum(p.numel() for p in trained), self.dtype, trained[0].device)

    def make(self, algorithm: type, options):
        """Return an object of the class ``algorithm`` with ``options``, a copy of the model, and no optimizer."""
        return algorithm(options, Replica(copy.deepcopy(self.model), self.dtype), None, self.context)
