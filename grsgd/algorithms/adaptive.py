"""Triggers (objects that decide when a rank exchanges models): after a fixed period, or when a rank's own model has
changed enough.

The adaptive trigger, `AdaptiveTrigger`, is from Ho, Wu, Liu 2018, "Adaptive communication for distributed deep learning
on commodity GPU cluster". The module `adaptive` is based on the abstract of the paper by Ho, Wu and Liu, because the
full text was not available. According to the abstract of Ho, Wu and Liu, a worker exchanges models when its own model
has changed enough. The measure of the model's change, the threshold and everything else in the module `adaptive` are
inferred. The triggers send no messages: they only decide when the algorithm sends messages.
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
"""Factors by which an automatic threshold is multiplied: `RAISE` after each exchange that the trigger causes, `LOWER`
after every 1/target_rate steps without an exchange."""
MIN_NORM = 1e-30
"""Smallest norm, or product of norms, by which the change of a model is divided. Norms below `MIN_NORM`, such as 0, are
replaced by `MIN_NORM`."""


class AdaptiveOptions(BaseModel):
    """Options of the adaptive trigger, which exchanges models when a rank's model has changed enough. All options of
    the adaptive trigger are inferred, because only the abstract of the paper by Ho, Wu and Liu was available
    (docs/reference/algorithms/gossip.md)."""

    renamed: ClassVar[dict[str, str]] = {
        "theta": "threshold",
        "target": "target_rate",
        "scale_theta_with_lr": "scale_threshold_with_lr",
        "kmin": "min_interval",
        "kmax": "max_interval",
    }
    renamed_values: ClassVar[dict[str, dict[str, str]]] = {"metric": {"l2rel": "relative", "normdiff": "norm"}}

    adaptive: bool = Field(
        False, description="exchange models when this rank's model has changed enough, not every period steps"
    )
    metric: Literal["relative", "norm", "layerwise", "cosine"] = Field(
        "relative",
        description="change from the model r after the last exchange to the model x: |x - r|/|r|, | |x| - |r| |/|r|, "
        "|x - r|/|r| per layer (layers are exchanged separately), or 1 - cos(x, r)",
    )
    threshold: Literal["auto"] | Annotated[float, Field(ge=0)] = Field(
        "auto", description="change that triggers an exchange; auto: adapted until exchanges occur at target_rate"
    )
    target_rate: float = Field(
        0.08,
        gt=0,
        le=1,
        description="with threshold auto: wanted number of exchanges per step; an exchange of a part of the model "
        "counts as the exchanged fraction of the model",
    )
    scale_threshold_with_lr: bool = Field(True, description="lower the threshold in proportion with the learning rate")
    min_interval: int = Field(1, ge=1, description="fewest steps between two exchanges that this rank begins")
    max_interval: int = Field(200, ge=1, description="most steps between two exchanges, even if no model changes")

    @model_validator(mode="after")
    def minimum_below_maximum(self):
        if self.min_interval > self.max_interval:
            raise ValueError(
                f"min_interval = {self.min_interval}: must not be more than max_interval = {self.max_interval}"
            )
        return self


class Slices:
    """Division of a vector into consecutive slices of the given ``sizes``. A mask, bool of shape [slices], selects some
    of the slices."""

    def __init__(self, sizes: list[int]):
        self.sizes = np.array(sizes, np.int64)
        ends = np.cumsum(self.sizes).tolist()
        self.slices = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def __len__(self):
        return len(self.slices)

    def size(self, mask: np.ndarray) -> int:
        """Return the number of elements in the slices that ``mask`` selects."""
        return int(self.sizes[mask].sum())

    def fraction(self, mask: np.ndarray) -> float:
        """Return the number of elements in the slices that ``mask`` selects, as a fraction of the vector's elements: 0
        to 1."""
        return self.size(mask) / int(self.sizes.sum())

    def selected(self, mask: np.ndarray) -> Iterator[tuple[slice, slice]]:
        """Yield two slice objects for each slice that ``mask`` selects: the slice's position in a message that contains
        only the selected slices, and the slice's position in the vector."""
        begin = 0
        for index in np.flatnonzero(mask):
            part = self.slices[index]
            size = part.stop - part.start
            yield slice(begin, begin + size), part
            begin += size

    def pack(self, mask: np.ndarray, x: torch.Tensor, message: torch.Tensor):
        """Copy the slices of the vector ``x`` that ``mask`` selects to the beginning of ``message``."""
        for packed, part in self.selected(mask):
            message[packed].copy_(x[part])


class PeriodicTrigger:
    """Trigger for an exchange of models every ``period`` steps, independent of the model. `PeriodicTrigger` has all
    methods of `AdaptiveTrigger` that algorithms call, so algorithms can use either class."""

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
    """Trigger that is due when the model x has changed enough from r, the model just after the last exchange::

        delta = |x - r| / |r|
        due = (delta >= threshold eta/eta_0 and k - k_begun >= min_interval) or k - k_last >= max_interval

    In the formulas, x is the model, k the number of the step, eta the learning rate, and eta_0 the reference learning
    rate. The last exchange of this rank's model was after step k_last. The last exchange that this rank itself began
    was after step k_begun. With metric ``layerwise``, each layer of the model has its own delta, k_last and r (the
    layer after its last exchange).

    With threshold = "auto" the threshold is adjusted so that a rank begins about ``target_rate`` exchanges per step.
    The automatic threshold is multiplied by 1.05 after each exchange that this rank begins, and by 0.95 after every
    1/target_rate steps without an exchange. The longer no exchange has been due, the faster the automatic threshold is
    lowered. The model changes fast at the start of training, so the first threshold is high and must fall later. With a
    constant factor 0.95, thousands of steps would pass before the automatic threshold is low enough. The first
    automatic threshold is measured, so that even a short run has about ``target_rate`` exchanges per step. With an
    automatic threshold, a rank's first exchange comes after 1/target_rate steps. The change of the model at this rank's
    first exchange (the median over layers) becomes the first automatic threshold. Until this rank has begun its first
    exchange, r is the model at the beginning of training, even after exchanges that other ranks began.

    Parameters
    ----------
    options
        Options that choose the metric of change and the threshold.
    x
        Model at the beginning of training, shape [size].
    layers
        Sizes of the model's layers in elements, in order.
    eta_0
        Learning rate at which the threshold is used unscaled.

    Raises
    ------
    ValueError
        If ``x`` is a tensor without content, as in a timing-only run.
    """

    remembers = ("r", "r_norms", "threshold", "k_last", "k_begun", "quiet_steps")
    """Names of the trigger's attributes that a checkpoint stores."""

    def __init__(self, options: AdaptiveOptions, x: torch.Tensor, layers: list[int], eta_0: float):
        if x.device.type == "meta":
            raise ValueError("adaptive = true: needs the models' content (parameters), which a timing-only run lacks")
        self.options = options
        self.slices = Slices(layers if options.metric == "layerwise" else [x.numel()])
        self.eta_0 = eta_0
        self.r = x.clone()
        self.r_norms = [norm_of(self.r[part]) for part in self.slices.slices]
        self.threshold: float | None = None if options.threshold == "auto" else options.threshold
        """Least change of the model at which an exchange is due, or None while an automatic threshold has not been
        measured yet."""
        self.k_last = np.zeros(len(self.slices), np.int64)
        self.k_begun = 0
        self.quiet_steps = 0.0
        """Number of steps without an exchange since an automatic threshold was last lowered. A step in which only some
        slices of the model are exchanged counts as a fraction of a step: the fraction of the model that is not
        exchanged."""

    def due(self, x: torch.Tensor, k: int, eta: float) -> np.ndarray:
        """Return the mask of the model's slices that this rank must exchange after step ``k``. The caller must call
        `due` once per step.

        If the caller makes the exchange, the caller must call `begun`. ``eta`` is the learning rate. If the caller
        makes no exchange, the trigger stays unchanged, and the exchange is due again after the next step.
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
        """Record that this rank begins the exchange of the slices in ``mask``, which `due` has returned; ``x``, ``k``
        and ``eta`` are the arguments of `due`."""
        if self.threshold is None:
            self.threshold = statistics.median(self.change(x)) / (self.scale(eta) or 1.0)
        self.k_begun = k
        self.adapt(self.slices.fraction(mask), 0)

    def scale(self, eta: float) -> float:
        """Return the factor by which the threshold is multiplied at the learning rate ``eta``."""
        return eta / self.eta_0 if self.options.scale_threshold_with_lr and self.eta_0 else 1.0

    def adapt(self, fraction: float, silence: int):
        """Adjust an automatic threshold after a step in which ``fraction`` of the model was exchanged, ``silence``
        steps after the last exchange that this rank began."""
        if self.options.threshold != "auto":
            return
        self.threshold *= RAISE**fraction
        self.quiet_steps += 1 - fraction
        if self.quiet_steps >= 1 / self.options.target_rate:
            periods = int(silence * self.options.target_rate)
            self.threshold *= LOWER ** max(1, periods - 1)
            self.quiet_steps -= 1 / self.options.target_rate

    def exchanged(self, x: torch.Tensor, k: int, mask: np.ndarray):
        """Record that ``x`` is the model after an exchange of the slices in ``mask``, whichever rank began the
        exchange."""
        self.k_last[mask] = k
        if self.threshold is None:
            return
        for index in np.flatnonzero(mask):
            part = self.slices.slices[index]
            self.r[part].copy_(x[part])
            self.r_norms[index] = norm_of(self.r[part])

    def change(self, x: torch.Tensor) -> list[float]:
        """Return the change of each slice of the model since its last exchange: the distance of ``x`` from r, in the
        metric that the options name."""
        return [
            self.delta(x[part], self.r[part], norm) for part, norm in zip(self.slices.slices, self.r_norms, strict=True)
        ]

    def delta(self, x: torch.Tensor, r: torch.Tensor, r_norm: float) -> float:
        """Return the distance of ``x`` from ``r``, whose norm is ``r_norm``, in the metric that the options name."""
        metric = self.options.metric
        if metric == "norm":
            return abs(norm_of(x) - r_norm) / max(r_norm, MIN_NORM)
        x, r = not_rounded(x), not_rounded(r)
        if metric == "cosine":
            cosine = float(x @ r) / max(norm_of(x) * r_norm, MIN_NORM)
            return max(1 - cosine, 0.0)  # rounding may make 1 - cosine negative
        return float(torch.dist(x, r)) / max(r_norm, MIN_NORM)


def norm_of(x: torch.Tensor) -> float:
    """Return the Euclidean norm of a vector."""
    return float(torch.linalg.vector_norm(not_rounded(x)))


def not_rounded(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` as float32 if ``x`` is of bfloat16, so that norms and products are not rounded to 16 bits; else
    return ``x`` itself."""
    return x.float() if x.dtype is torch.bfloat16 else x


def make_trigger(options: AdaptiveOptions, replica: Replica, eta_0: float) -> PeriodicTrigger | AdaptiveTrigger:
    """Return the trigger that ``options`` describe; ``options`` must have the field ``period``. Call `make_trigger`
    before the first step.

    ``eta_0`` is the learning rate at which the threshold is used unscaled.
    """
    x = replica.params.tensor
    if not options.adaptive:
        return PeriodicTrigger(options.period, x)
    layers = [p.numel() for p in replica.model.parameters() if p.requires_grad]
    return AdaptiveTrigger(options, x, layers, eta_0)
