"""Base class of algorithms in which a trigger (an object that watches the rank's steps) decides when a rank asks
another rank to exchange models."""

from dataclasses import replace

import numpy as np

from grsgd.algorithms.adaptive import make_trigger
from grsgd.algorithms.base import Algorithm
from grsgd.comm import tags
from grsgd.models.values import set_value

FINISHED = -1
"""Value of the field ``step`` in a rank's last request, which says that the rank has ended its training."""


class TriggeredAlgorithm(Algorithm, name=None):
    """Base class of algorithms whose options include the fields of `AdaptiveOptions` and a ``period``."""

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.eta_0 = self.learning_rate

    @classmethod
    def traits_of(cls, options):
        return replace(super().traits_of(options), depends_on_values=options.adaptive)

    def state(self):
        trigger = getattr(self, "trigger", None)  # in a run with one rank there is no trigger
        names = trigger.remembers if trigger else ()
        return super().state() | {f"trigger.{name}": getattr(trigger, name) for name in names}

    def restore(self, state):
        of_trigger = {name: value for name, value in state.items() if name.startswith("trigger.")}
        super().restore({name: value for name, value in state.items() if name not in of_trigger})
        for name, value in of_trigger.items():
            set_value(self.trigger, name.removeprefix("trigger."), value)

    def make_trigger(self):
        """Make the trigger, which decides when this rank exchanges models. All ranks must hold the model at the
        beginning of the run when `make_trigger` is called."""
        self.trigger = make_trigger(self.options, self.replica, self.eta_0)
        self.slices = self.trigger.slices

    @property
    def learning_rate(self) -> float:
        return self.optimizer.param_groups[0]["lr"]

    def request(self, *fields: int, mask: np.ndarray | None = None) -> np.ndarray:
        """Return a request for an exchange as an int64 array: the numbers ``fields``, followed by the mask of the
        model's slices to exchange (by default no slices)."""
        return np.array([*fields, *(np.zeros(len(self.slices)) if mask is None else mask)], np.int64)

    def mask_of(self, request: np.ndarray) -> np.ndarray:
        """Return the mask of the model's slices to exchange that ``request`` contains: bool of shape [slices]."""
        return request[-len(self.slices) :].astype(bool)

    def send_request(self, request: np.ndarray, rank: int):
        """Start to send ``request`` to ``rank``. Return a pollable that is true when the request has been sent."""
        return self.comm.Isend(request, rank, tags.EXCHANGE_REQUEST, header=request.nbytes)
