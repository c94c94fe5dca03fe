"""When to exchange models: after a fixed period, or when the own model has changed enough.

The second is from Ho, Wu, Liu 2018, "Adaptive communication for gossiping SGD", of which only the abstract could be
had: a worker exchanges models according to the change of its own one. How change is measured, the threshold and all
else here is inferred. Nothing here communicates.
"""

import statistics
from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field, model_validator

RAISE, LOWER = 1.05, 0.95
"""Factors of an automatic threshold: after each trigger, and after every 1/target steps without one."""
TINY = 1e-30


class TriggerOptions(BaseModel):
    """The paper could not be had beyond its abstract: all of these are inferred (docs/algorithms.md)."""

    adaptive: bool = Field(False, description="exchange when the model has changed enough, not every period steps")
    metric: Literal["l2rel", "normdiff", "layerwise", "cosine"] = Field(
        "l2rel",
        description="change since the last exchange: |x - r|/|r|, | |x| - |r| |/|r|, |x - r|/|r| of each layer, which "
        "then is exchanged alone, or 1 - cos(x, r)",
    )
    theta: Literal["auto"] | Annotated[float, Field(ge=0)] = Field(
        "auto", description="change from which on to exchange; auto: the one that leads to target"
    )
    target: float = Field(0.08, gt=0, le=1, description="theta auto: exchanges a step, or parts of the model a step")
    scale_theta_with_lr: bool = Field(True, description="lower theta in proportion with the learning rate")
    kmin: int = Field(1, ge=1, description="steps between two exchanges that this rank begins, at least")
    kmax: int = Field(200, ge=1, description="steps after an exchange from which on not to wait for any change")

    @model_validator(mode="after")
    def minimum_below_maximum(self):
        if self.kmin > self.kmax:
            raise ValueError(f"kmin = {self.kmin}: must not be more than kmax = {self.kmax}")
        return self


class Parts:
    """A vector in consecutive parts of the given ``sizes``. A mask, bool of shape [parts], chooses some of them."""

    def __init__(self, sizes: list[int]):
        self.sizes = np.array(sizes, np.int64)
        ends = np.cumsum(self.sizes).tolist()
        self.slices = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def __len__(self):
        return len(self.slices)

    def size(self, mask: np.ndarray) -> int:
        """Elements in the chosen parts."""
        return int(self.sizes[mask].sum())

    def fraction(self, mask: np.ndarray) -> float:
        """Share of the vector in the chosen parts."""
        return self.size(mask) / int(self.sizes.sum())

    def chosen(self, mask: np.ndarray) -> Iterator[tuple[slice, slice]]:
        """Each chosen part: its place in a message, where the chosen parts lie one after another, and in the vector."""
        begin = 0
        for index in np.flatnonzero(mask):
            part = self.slices[index]
            size = part.stop - part.start
            yield slice(begin, begin + size), part
            begin += size


class Period:
    """Due every ``period`` steps, whatever the model; has the interface of `Trigger`."""

    def __init__(self, period: int, x: torch.Tensor):
        self.period = period
        self.parts = Parts([x.numel()])

    def due(self, x: torch.Tensor, k: int, eta: float) -> np.ndarray:
        return np.array([k % self.period == 0])

    def begun(self, x: torch.Tensor, k: int, eta: float, mask: np.ndarray):
        pass

    def exchanged(self, x: torch.Tensor, k: int, mask: np.ndarray):
        pass


class Trigger:
    """Due when the model x has changed by theta since it was exchanged; r is the model after that exchange::

        delta = |x - r| / |r|
        due = (delta >= theta eta/eta_0 and k - k_begun >= kmin) or k - k_last >= kmax

    k_last is the step of the last exchange, k_begun that of the last one that this rank itself began. With metric
    ``layerwise``, each layer has an r, a delta and a k_last of its own.

    theta = "auto" keeps the rate of triggers near ``target``: times 1.05 after each one, times 0.95 after every
    1/target steps without one, and by more in a long silence, since theta would otherwise take thousands of steps to
    come down where a model moves fast at first. The start is inferred, too: the first trigger comes after 1/target
    steps, and theta begins as the change measured then (the median of the layers'), so that short runs keep the rate as
    well. Until then r is the model at the beginning, whoever else has exchanged with this rank.

    ``x``: the model at the beginning, shape [size]; ``layers``: sizes of its layers, in order; ``eta_0``: the learning
    rate at which theta is not scaled. Raises ValueError if x has no content.
    """

    def __init__(self, options: TriggerOptions, x: torch.Tensor, layers: list[int], eta_0: float):
        if x.device.type == "meta":
            raise ValueError("adaptive = true: needs the models' content, which a run of timing only does not have")
        self.options = options
        self.parts = Parts(layers if options.metric == "layerwise" else [x.numel()])
        self.eta_0 = eta_0
        self.r = x.clone()
        self.r_norms = [float(torch.linalg.vector_norm(self.r[part])) for part in self.parts.slices]
        self.theta: float | None = None if options.theta == "auto" else options.theta
        self.k_last = np.zeros(len(self.parts), np.int64)
        self.k_begun = 0
        self.quiet = 0.0
        """Steps without a trigger since theta was last lowered."""

    def due(self, x: torch.Tensor, k: int, eta: float) -> np.ndarray:
        """The parts to exchange after step ``k``, a mask; to be called once a step. ``eta``: the learning rate.

        If the exchange is made, tell `begun`. One that is left out changes nothing, and is due again after the next
        step.
        """
        options = self.options
        late = k - self.k_last >= options.kmax
        if k - self.k_begun < options.kmin:
            mask = late
        elif self.theta is None:
            mask = late | (k >= 1 / options.target)
        else:
            mask = late | (np.array(self.change(x)) >= self.theta * self.scale(eta))
        if not mask.any() and self.theta is not None:
            self.adapt(0.0, k - self.k_begun)
        return mask

    def begun(self, x: torch.Tensor, k: int, eta: float, mask: np.ndarray):
        """Note that this rank begins the exchange that is `due`; all arguments as there."""
        if self.theta is None:
            self.theta = statistics.median(self.change(x)) / (self.scale(eta) or 1.0)
        self.k_begun = k
        self.adapt(self.parts.fraction(mask), 0)

    def scale(self, eta: float) -> float:
        """What theta is multiplied by at the learning rate ``eta``."""
        return eta / self.eta_0 if self.options.scale_theta_with_lr and self.eta_0 else 1.0

    def adapt(self, fraction: float, silence: int):
        """Move an automatic theta after a step in which ``fraction`` of the model was exchanged, ``silence`` steps
        after a trigger."""
        if self.options.theta != "auto":
            return
        self.theta *= RAISE**fraction
        self.quiet += 1 - fraction
        if self.quiet >= 1 / self.options.target:
            periods = int(silence * self.options.target)
            self.theta *= LOWER ** max(1, periods - 1)
            self.quiet -= 1 / self.options.target

    def exchanged(self, x: torch.Tensor, k: int, mask: np.ndarray):
        """Note that x is what an exchange of the parts in ``mask`` has left, whoever began it."""
        self.k_last[mask] = k
        if self.theta is None:
            return
        for index in np.flatnonzero(mask):
            part = self.parts.slices[index]
            self.r[part].copy_(x[part])
            self.r_norms[index] = float(torch.linalg.vector_norm(self.r[part]))

    def change(self, x: torch.Tensor) -> list[float]:
        """delta of each part: how far x is from r, in the chosen metric."""
        return [
            self.delta(x[part], self.r[part], norm) for part, norm in zip(self.parts.slices, self.r_norms, strict=True)
        ]

    def delta(self, x: torch.Tensor, r: torch.Tensor, r_norm: float) -> float:
        metric = self.options.metric
        if metric == "normdiff":
            return abs(float(torch.linalg.vector_norm(x)) - r_norm) / max(r_norm, TINY)
        if metric == "cosine":
            cosine = float(x @ r) / max(float(torch.linalg.vector_norm(x)) * r_norm, TINY)
            return max(1 - cosine, 0.0)  # rounding
        return float(torch.dist(x, r)) / max(r_norm, TINY)


def trigger(options, replica, eta_0: float) -> Period | Trigger:
    """What ``options`` ask for, `TriggerOptions` with a ``period``. To be called before the first step.

    ``eta_0``: the learning rate at which theta is not scaled.
    """
    x = replica.params.tensor
    if not options.adaptive:
        return Period(options.period, x)
    layers = [p.numel() for p in replica.model.parameters() if p.requires_grad]
    return Trigger(options, x, layers, eta_0)
