"""When to exchange models: after a fixed period, or when the own model has changed enough.

The second is from Ho, Wu, Liu 2018, "Adaptive communication for distributed deep learning on commodity GPU cluster", of
which only the abstract could be had: a worker exchanges models according to the change of its own one. How change is
measured, the threshold and all else here is inferred. Nothing here communicates.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field, model_validator

from grsgd.lazy import LazyModule
from grsgd.models.replica import Replica

torch = LazyModule("torch")

RAISE, LOWER = 1.05, 0.95
"""Factors of an automatic threshold: after each trigger, and after every 1/target_rate steps without one."""
MIN_NORM = 1e-30
"""Stands for a norm of zero where it divides."""


class AdaptiveOptions(BaseModel):
    """The options of the adaptive form, all inferred: only the abstract of the paper was available.

    docs/reference/algorithms/gossip.md lists the inferred parts.
    """

    renamed: ClassVar[dict[str, str]] = {
        "theta": "threshold",
        "target": "target_rate",
        "scale_theta_with_lr": "scale_threshold_with_lr",
        "kmin": "min_interval",
        "kmax": "max_interval",
    }
    renamed_values: ClassVar[dict[str, dict[str, str]]] = {"metric": {"l2rel": "relative", "normdiff": "norm"}}

    adaptive: bool = Field(False, description="exchange when the model has changed enough, not every period steps")
    metric: Literal["relative", "norm", "layerwise", "cosine"] = Field(
        "relative",
        description="change since the last exchange: |x - r|/|r|, | |x| - |r| |/|r|, |x - r|/|r| of each layer, which "
        "then is exchanged alone, or 1 - cos(x, r)",
    )
    threshold: Literal["auto"] | Annotated[float, Field(ge=0)] = Field(
        "auto", description="change from which on to exchange; auto: the one that leads to target_rate"
    )
    target_rate: float = Field(
        0.08, gt=0, le=1, description="threshold auto: exchanges per step, or parts of the model per step"
    )
    scale_threshold_with_lr: bool = Field(True, description="lower the threshold in proportion with the learning rate")
    min_interval: int = Field(1, ge=1, description="steps between two exchanges that this rank begins, at least")
    max_interval: int = Field(200, ge=1, description="steps after an exchange from which on not to wait for any change")

    @model_validator(mode="after")
    def minimum_below_maximum(self):
        if self.min_interval > self.max_interval:
            raise ValueError(
                f"min_interval = {self.min_interval}: must not be more than max_interval = {self.max_interval}"
            )
        return self


class Slices:
    """Consecutive slices of a vector, of the given ``sizes``. A mask, bool of shape [slices], selects some of them."""

    def __init__(self, sizes: list[int]):
        self.sizes = np.array(sizes, np.int64)
        ends = np.cumsum(self.sizes).tolist()
        self.slices = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def __len__(self):
        return len(self.slices)

    def size(self, mask: np.ndarray) -> int:
        """Return the number of elements in the selected slices."""
        return int(self.sizes[mask].sum())

    def fraction(self, mask: np.ndarray) -> float:
        """Return the share of the vector in the selected slices."""
        return self.size(mask) / int(self.sizes.sum())

    def selected(self, mask: np.ndarray) -> Iterator[tuple[slice, slice]]:
        """Yield, for each selected slice, where it lies in a message, which has only these, and where in the vector."""
        begin = 0
        for index in np.flatnonzero(mask):
            part = self.slices[index]
            size = part.stop - part.start
            yield slice(begin, begin + size), part
            begin += size

    def pack(self, mask: np.ndarray, x: torch.Tensor, message: torch.Tensor):
        """Copy the selected slices of the vector x to the beginning of ``message``."""
        for packed, part in self.selected(mask):
            message[packed].copy_(x[part])


class PeriodicTrigger:
    """Due every ``period`` steps, whatever the model; has the interface of `AdaptiveTrigger`."""

    remembers = ()

    def __init__(self, period: int, x: torch.Tensor):
        self.period = period
        self.slices = Slices([x.numel()])

    def due(self, x: torch.Tensor, k: int, eta: float) -> np.ndarray:
        return np.array([k % self.period == 0])

    def begun(self, x: torch.Tensor, k: int, eta: float, mask: np.ndarray):
        pass

    def exchanged(self, x: torch.Tensor, k: int, mask: np.ndarray):
        pass


class AdaptiveTrigger:
    """Due when the model x has changed by the threshold since it was exchanged; r is the model after that exchange::

        delta = |x - r| / |r|
        due = (delta >= threshold eta/eta_0 and k - k_begun >= min_interval) or k - k_last >= max_interval

    k_last is the step of the last exchange, k_begun that of the last one that this rank itself began. With metric
    ``layerwise``, each layer has an r, a delta and a k_last of its own.

    threshold = "auto" keeps the rate of triggers near ``target_rate``: times 1.05 after each one, times 0.95 after
    every 1/target_rate steps without one, and by more in a long silence, since it would otherwise take thousands of
    steps to come down where a model moves fast at first. The start is inferred, too: the first trigger comes after
    1/target_rate steps, and the threshold begins as the change measured then (the median of the layers'), so that short
    runs keep the rate as well. Until then r is the model at the beginning, whichever rank else has exchanged with this
    one.

    Parameters
    ----------
    options
        how to measure change, and the threshold.
    x
        the model at the beginning, shape [size].
    layers
        sizes of its layers, in order.
    eta_0
        the learning rate at which the threshold is not scaled.

    Raises
    ------
    ValueError
        if x has no content.
    """

    remembers = ("r", "r_norms", "threshold", "k_last", "k_begun", "quiet_steps")
    """The attributes that a checkpoint keeps."""

    def __init__(self, options: AdaptiveOptions, x: torch.Tensor, layers: list[int], eta_0: float):
        if x.device.type == "meta":
            raise ValueError("adaptive = true: needs the models' content, which a run of timing only does not have")
        self.options = options
        self.slices = Slices(layers if options.metric == "layerwise" else [x.numel()])
        self.eta_0 = eta_0
        self.r = x.clone()
        self.r_norms = [float(torch.linalg.vector_norm(self.r[part])) for part in self.slices.slices]
        self.threshold: float | None = None if options.threshold == "auto" else options.threshold
        """None until an automatic one has been measured."""
        self.k_last = np.zeros(len(self.slices), np.int64)
        self.k_begun = 0
        self.quiet_steps = 0.0
        """Steps without a trigger since the threshold was last lowered; a trigger of some slices is a part of one."""

    def due(self, x: torch.Tensor, k: int, eta: float) -> np.ndarray:
        """Return which slices to exchange after step ``k``, a mask; to be called once per step.

        ``eta`` is the learning rate. If the exchange is made, tell `begun`. One that is left out changes nothing, and
        is due again after the next step.
        """
        options = self.options
        late = k - self.k_last >= options.max_interval
        if k - self.k_begun < options.min_interval:
            mask = late
        elif self.threshold is None:
            mask = late | (k >= 1 / options.target_rate)
        else:
            mask = late | (np.array(self.change(x)) >= self.threshold * self.scale(eta))
        if not mask.any() and self.threshold is not None:
            self.adapt(0.0, k - self.k_begun)
        return mask

    def begun(self, x: torch.Tensor, k: int, eta: float, mask: np.ndarray):
        """Note that this rank begins the exchange that is `due`; all arguments as there."""
        if self.threshold is None:
            self.threshold = statistics.median(self.change(x)) / (self.scale(eta) or 1.0)
        self.k_begun = k
        self.adapt(self.slices.fraction(mask), 0)

    def scale(self, eta: float) -> float:
        """Return what the threshold is multiplied by at the learning rate ``eta``."""
        return eta / self.eta_0 if self.options.scale_threshold_with_lr and self.eta_0 else 1.0

    def adapt(self, fraction: float, silence: int):
        """Move an automatic threshold after a step in which ``fraction`` of the model was exchanged, ``silence``
        steps after a trigger."""
        if self.options.threshold != "auto":
            return
        self.threshold *= RAISE**fraction
        self.quiet_steps += 1 - fraction
        if self.quiet_steps >= 1 / self.options.target_rate:
            periods = int(silence * self.options.target_rate)
            self.threshold *= LOWER ** max(1, periods - 1)
            self.quiet_steps -= 1 / self.options.target_rate

    def exchanged(self, x: torch.Tensor, k: int, mask: np.ndarray):
        """Note that x is what an exchange of the slices in ``mask`` has left, whichever rank began it."""
        self.k_last[mask] = k
        if self.threshold is None:
            return
        for index in np.flatnonzero(mask):
            part = self.slices.slices[index]
            self.r[part].copy_(x[part])
            self.r_norms[index] = float(torch.linalg.vector_norm(self.r[part]))

    def change(self, x: torch.Tensor) -> list[float]:
        """Return delta of each slice: how far x is from r, in the chosen metric."""
        return [
            self.delta(x[part], self.r[part], norm) for part, norm in zip(self.slices.slices, self.r_norms, strict=True)
        ]

    def delta(self, x: torch.Tensor, r: torch.Tensor, r_norm: float) -> float:
        """Return how far x is from r, of which ``r_norm`` is the norm."""
        metric = self.options.metric
        if metric == "norm":
            return abs(float(torch.linalg.vector_norm(x)) - r_norm) / max(r_norm, MIN_NORM)
        if metric == "cosine":
            cosine = float(x @ r) / max(float(torch.linalg.vector_norm(x)) * r_norm, MIN_NORM)
            return max(1 - cosine, 0.0)  # rounding
        return float(torch.dist(x, r)) / max(r_norm, MIN_NORM)


def make_trigger(options: AdaptiveOptions, replica: Replica, eta_0: float) -> PeriodicTrigger | AdaptiveTrigger:
    """Return the trigger that ``options``, which have a ``period``, ask for; to be called before the first step.

    ``eta_0`` is the learning rate at which the threshold is not scaled.
    """
    x = replica.params.tensor
    if not options.adaptive:
        return PeriodicTrigger(options.period, x)
    layers = [p.numel() for p in replica.model.parameters() if p.requires_grad]
    return AdaptiveTrigger(options, x, layers, eta_0)
