"""Random runs, drawn from their seeds: ``drawn``."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from experiments.options import allowed, choices
from grsgd.algorithms import ALGORITHMS
from grsgd.config import ConfigError, parse

RANKS = 2, 3, 4, 5
WAIT_SECONDS = 60
"""After so long a wait of one rank is an error."""
SETTLED_BY_MEASUREMENT = {"r": "auto"}
"""Values of options that a measurement before the training replaces; these runs have none."""
OPTIMIZERS = [
    {"name": "sgd"},
    {"name": "sgd", "momentum": 0.9},
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    {"name": "adamw", "weight_decay": 0.1},
]
"""All element-wise: several parameter servers take no others."""


class Stop(NamedTuple):
    """The early end of a training, on one rank: a "signal" after seconds, or "nan" as learning rate after steps."""

    cause: str
    rank: int
    when: float


@dataclass(frozen=True)
class Training:
    """A run as of ``grsgd train``: its configuration, and what ends it early, if anything does."""

    seed: int
    ranks: int
    config: dict
    stop: Stop | None

    @property
    def algorithms(self) -> list[str]:
        return [self.config["algorithm"]["name"]]


@dataclass(frozen=True)
class Learner:
    """A model in an own loop, and who trains it."""

    algorithm: str
    options: dict
    optimizer: str
    """A class of torch.optim."""
    optimizer_options: dict
    dtype: str
    progress_mode: str
    width: int
    """Width of the hidden layers."""
    batch_norm: bool
    mask: bool
    """Whether it has a float buffer with infinities."""
    frozen: bool
    """Whether one layer is not trained."""
    tied: bool
    """Whether two layers share one Parameter."""
    rare: str
    """When one layer is used: "always", at "some steps", on "some ranks" in turn, or "never"."""
    parts: int
    """Backward passes in a step, whose gradients add up."""
    clip: float | None
    """Largest norm of the gradient."""
    zeros: bool
    """Whether ``zero_grad`` keeps the gradients' memory."""


@dataclass(frozen=True)
class OwnLoop:
    """A training loop of the user's with ``grsgd.distribute``."""

    seed: int
    ranks: int
    learners: list[Learner]
    steps: list[int]
    """Steps in an epoch, by rank."""
    epochs: int
    between: list[str]
    """What happens after each epoch: a "barrier", an all-reduce of "metrics", an "evaluation" on rank 0 alone."""
    taking_turns: bool
    """Whether the learners take their steps in another order on every other rank."""
    sleeps: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By rank, with which probability and for how many seconds on average it sleeps within a step."""

    @property
    def algorithms(self) -> list[str]:
        return [learner.algorithm for learner in self.learners]


def drawn(seed: int) -> Training | OwnLoop:
    """Return the run of a seed."""
    random = np.random.default_rng(seed)
    ranks = choose(random, RANKS)
    return own_loop(seed, ranks, random) if random.random() < 0.4 else training(seed, ranks, random)


def choose(random, values):
    return values[random.integers(len(values))]


def algorithm(random, ranks: int, names: list[str]) -> tuple[str, dict]:
    """Draw the name of an algorithm, and options that go together on so many ranks; a third of them are defaults."""
    name = choose(random, [name for name in names if allowed(ALGORITHMS[name], {}, ranks)])
    values = choices(ALGORITHMS[name].Options)
    options = {}
    for key in random.permutation(sorted(values)):
        if random.random() < 1 / 3:
            continue
        usable = [value for value in values[key] if value != SETTLED_BY_MEASUREMENT.get(key)]
        usable = [value for value in usable if allowed(ALGORITHMS[name], options | {str(key): value}, ranks)]
        options |= {str(key): choose(random, usable)} if usable else {}
    return name, {key: value for key, value in options.items() if value is not None}


def training(seed: int, ranks: int, random) -> Training:
    name, options = algorithm(random, ranks, sorted(ALGORITHMS))
    replication = choose(random, [1, 1, 2]) if not ALGORITHMS[name].traits.decides_who_computes else 1
    stragglers = {"slowdown": {}, "tail": {}, "pause": {}}
    for rank in range(ranks):
        if random.random() < 0.4:
            stragglers["slowdown"][rank] = float(1 + random.exponential(5))
        if random.random() < 0.2:
            stragglers["tail"][rank] = {"probability": float(random.uniform(0.05, 0.5)), "seconds": 3e-3}
        if random.random() < 0.2:
            stragglers["pause"][rank] = {"every": int(random.integers(1, 10)), "seconds": 1e-2}
    steps = int(random.integers(1, 40))
    end = choose(random, [{"steps": steps}, {"samples": 4 * ranks * steps + 1}, {"seconds": 0.01 * steps}])
    if ALGORITHMS[name].traits_of(ALGORITHMS[name].Options(**options)).tolerates_silent_ranks:
        options.pop("lag", None)  # or a slow rank would be left behind
        end = {"steps": steps} if "seconds" in end else end  # not all ranks could agree on the time
    optimizer = choose(random, OPTIMIZERS) | {"lr": 0.01, "decay_norms": choose(random, [True, False])}
    clip = choose(random, [None, 0.1, 1.0])
    config = {
        "seed": seed,
        "device": "cpu",
        "dtype": choose(random, ["float32", "float64"]),
        "algorithm": {"name": name} | options,
        # With the larger one a message is too long for the library to store it.
        "model": {"name": "mlp", "hidden": choose(random, [[], [], [5000]])},
        "data": {"name": "synthetic", "samples": 60, "shape": [1, 4, 4], "classes": 2, "batch_size": 4}
        | {"replication": replication},
        "optimizer": optimizer,
        "train": end | {"snapshots": int(random.integers(1, 6))},
        "stragglers": stragglers,
        "comm": {"progress_mode": choose(random, ["inline", "thread"]), "timeout": WAIT_SECONDS},
    }
    if clip is not None and is_allowed(config | {"optimizer": optimizer | {"clip": clip}}):
        config["optimizer"] = optimizer | {"clip": clip}
    rank = int(random.integers(ranks))
    stops = [
        Stop("signal", rank, float(random.uniform(0, 0.01 * steps))),
        Stop("nan", rank, int(random.integers(steps))),
    ]
    return Training(seed, ranks, config, choose(random, [None, None, None, None, *stops]))


def is_allowed(config: dict) -> bool:
    try:
        parse(config)
    except ConfigError:
        return False
    return True


def own_loop(seed: int, ranks: int, random) -> OwnLoop:
    learners = [learner(random, ranks) for _ in range(choose(random, [1, 1, 2]))]
    between = [what for what in ("barrier", "metrics", "evaluation") if random.random() < 0.4]
    free = not any(is_synchronous(one) for one in learners)
    steps = [int(random.integers(1, 12))] * ranks
    if free:
        steps = [count + int(random.integers(0, 12)) for count in steps]
    sleeps = {
        rank: (float(random.uniform(0.02, 0.5)), float(random.uniform(1e-3, 2e-2)))
        for rank in range(ranks)
        if random.random() < 0.5
    }
    taking_turns = bool(free and random.random() < 0.5)
    return OwnLoop(seed, ranks, learners, steps, choose(random, [1, 2, 3]), between, taking_turns, sleeps)


def learner(random, ranks: int) -> Learner:
    names = [name for name, cls in sorted(ALGORITHMS.items()) if not cls.traits.decides_who_computes]
    name, options = algorithm(random, ranks, names)
    optimizer, optimizer_options = choose(
        random,
        [
            ("SGD", {"lr": 0.02, "weight_decay": 0.01}),
            ("SGD", {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01, "nesterov": choose(random, [True, False])}),
            ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
            ("RMSprop", {"lr": 1e-3, "weight_decay": 0.01}),
        ],
    )
    yes_or_no = [True, False]
    return Learner(
        name,
        options,
        optimizer,
        optimizer_options,
        dtype=choose(random, ["float32", "float64"]),
        progress_mode=choose(random, ["inline", "thread"]),
        width=choose(random, [4, 8, 300]),
        batch_norm=choose(random, yes_or_no),
        mask=choose(random, yes_or_no),
        frozen=choose(random, yes_or_no),
        tied=choose(random, yes_or_no),
        rare=choose(random, ["always", "some steps", "some ranks", "never"]),
        parts=choose(random, [1, 1, 3]),
        clip=choose(random, [None, 0.1, 1.0]),
        zeros=choose(random, yes_or_no),
    )


def is_synchronous(one: Learner) -> bool:
    """Return whether all ranks must take the same number of steps."""
    cls = ALGORITHMS[one.algorithm]
    return cls.traits_of(cls.Options(**one.options)).synchronous
