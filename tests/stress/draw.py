"""What a run is, drawn from its seed: `drawn`."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from grsgd.algorithms import ALGORITHMS

RANKS = 2, 3, 4, 5
WAIT_SECONDS = 60
"""After so long a wait of one rank is an error."""
VARIANTS = ["ring", "halving-doubling", "tree", "mpi"]
TRIGGER = {
    "adaptive": [False, True],
    "metric": ["l2rel", "normdiff", "layerwise", "cosine"],
    "theta": ["auto", "auto", 0.0, 0.01],
    "target": [0.08, 0.5],
    "scale_theta_with_lr": [True, False],
    "kmin": [1, 3],
    "kmax": [3, 200],
}
SUMMING = {"r": [1, 2, 3, 4, 5], "transport": ["multicast", "unicast"], "range": [10.0, 1.0]}
SERVER = {
    "server": ["dedicated", "shared"],
    "servers": [1, 1, 2, 3],
    "staleness_aware": [False, True],
    "compensation": [None, None, 0.04],
    "on_lost_worker": ["stop", "evict"],
}
OPTIONS = {
    "ring_allreduce": {"variant": VARIANTS},
    "dpsgd": {"topology": ["ring", "exponential", "full"]},
    "grsgd": {
        "policy": ["succ", "alt", "rand2"],
        "H": [1, 2, 3],
        "merge": ["sumweight", "half"],
        "inbox_capacity": [1, 2],
        "inbox_full": ["hold", "merge"],
    },
    "local_sgd": {"H": [1, 3, 8], "post_local": [0, 4], "beta": [0.0, 0.7], "variant": VARIANTS},
    "lasgd": {
        "merge": ["delta", "overwrite", "cocod", "anchor"],
        "Hmin": [1, 2, 3],
        "Hmax": [None, 3, 5],
        "warmup": [0, 0, 3],
        "resync": [0, 1, 4, 1000],
        "variant": VARIANTS,
    },
    "sgp": {"tau": [0, 1, 3]},
    "gosgd": {"p": [0.0, 0.1, 0.5, 1.0], "inbox_capacity": [1, 2]},
    "adpsgd": {"graph": ["ring", "full"], "period": [1, 3], "merge": ["average", "delta"]},
    "gossip": {"mode": ["pair", "push", "pull"], "period": [1, 3]} | TRIGGER,
    "easgd": {"period": [1, 3], "centre": ["server", "allreduce"], "final": ["centre", "average"]} | TRIGGER,
    "cssgd": SUMMING
    | {"scheme": ["coded", "uncoded", "grouped-direct", "grouped-rs"], "enumeration": ["groups", "paper"]},
    "ssgd": SUMMING | {"accounting": ["local-sum", "per-block"]},
    "asgd": SERVER,
    "parameter_server": SERVER
    | {
        "strategy": ["bsp", "asp", "ssp", "dssp", "adsp"],
        "s": [0, 1, 3],
        "r_max": [0, 2, 12],
        "smax": [3, 15],
        "kappa": [1.1, 1.5],
        "m": [1, 3],
        "phi": ["inverse", "one", "compensated"],
        "ahead_mode": ["buffer", "apply"],
    },
}
"""What to choose from; an algorithm that is not named here runs with its defaults."""
OPTIMIZERS = [
    {"name": "sgd"},
    {"name": "sgd", "momentum": 0.9},
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    {"name": "adamw", "weight_decay": 0.1},
]
"""All element-wise: several parameter servers take no others."""


class Stop(NamedTuple):
    """What ends a training early, on one rank: a "signal" after seconds, or "nan" as learning rate after steps."""

    cause: str
    rank: int
    when: float


@dataclass(frozen=True)
class Training:
    """A run as of `grsgd train`: its configuration, and what ends it early, if anything does."""

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
    progress: str
    width: int
    """Of the hidden layers."""
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
    """Whether `zero_grad` keeps the gradients' memory."""


@dataclass(frozen=True)
class OwnLoop:
    """A training loop of the user's with `grsgd.distribute`."""

    seed: int
    ranks: int
    learners: list[Learner]
    steps: list[int]
    """In an epoch, by rank."""
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
    """The run of a seed."""
    random = np.random.default_rng(seed)
    ranks = choose(random, RANKS)
    return own_loop(seed, ranks, random) if random.random() < 0.4 else training(seed, ranks, random)


def choose(random, values):
    return values[random.integers(len(values))]


def algorithm(random, ranks: int, names: list[str]) -> tuple[str, dict]:
    """A name and options that go together with so many ranks."""
    name = choose(random, names)
    options = {key: choose(random, values) for key, values in OPTIONS.get(name, {}).items()}
    if name == "easgd" and options["adaptive"]:
        options["centre"] = "server"
    if "r" in options:
        options["r"] = min(options["r"], ranks)
        if options.get("scheme", "").startswith("grouped"):
            while ranks % options["r"]:
                options["r"] -= 1
    if options.get("scheme", "coded") != "coded":
        options["enumeration"] = "groups"
    if "servers" in options:
        options["servers"] = min(options["servers"], ranks - (options["server"] == "dedicated"))
        if options["servers"] > 1:
            options["on_lost_worker"] = "stop"
    return name, {key: value for key, value in options.items() if value is not None}


def training(seed: int, ranks: int, random) -> Training:
    name, options = algorithm(random, ranks, sorted(ALGORITHMS))
    rho = choose(random, [1, 1, 2]) if ALGORITHMS[name].for_any_loop else 1
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
    optimizer = choose(random, OPTIMIZERS) | {"lr": 0.01, "decay_norms": choose(random, [True, False])}
    clip = choose(random, [None, 0.1, 1.0])
    if clip is not None and options.get("servers", 1) == 1:
        optimizer["clip"] = clip
    config = {
        "seed": seed,
        "device": "cpu",
        "dtype": choose(random, ["float32", "float64"]),
        "algorithm": {"name": name, "rho": rho} | options,
        # With the larger one a message is too long for the library to store it.
        "model": {"name": "mlp", "hidden": choose(random, [[], [], [5000]])},
        "data": {"name": "synthetic", "samples": 60, "shape": [1, 4, 4], "classes": 2, "batch_size": 4},
        "optimizer": optimizer,
        "train": end | {"snapshots": int(random.integers(1, 6))},
        "stragglers": stragglers,
        "comm": {"progress": choose(random, ["inline", "thread"]), "timeout": WAIT_SECONDS},
    }
    rank = int(random.integers(ranks))
    stops = [
        Stop("signal", rank, float(random.uniform(0, 0.01 * steps))),
        Stop("nan", rank, int(random.integers(steps))),
    ]
    return Training(seed, ranks, config, choose(random, [None, None, None, None, *stops]))


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
    name, options = algorithm(random, ranks, [name for name, cls in sorted(ALGORITHMS.items()) if cls.for_any_loop])
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
        progress=choose(random, ["inline", "thread"]),
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
    """Whether all ranks must take the same number of steps."""
    if one.algorithm == "easgd":
        return one.options["centre"] == "allreduce"
    return ALGORITHMS[one.algorithm].synchronous
