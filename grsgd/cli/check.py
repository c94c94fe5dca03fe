"""Check of a run for the option ``--check``: all inputs that could make the run fail are checked, and the run is
described. The option ``--check`` starts no job and trains no model."""

import math
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from tabulate import tabulate

from grsgd import memory, outside
from grsgd.algorithms.central import workers_of
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.config import Config
from grsgd.data.shards import held_by, shards
from grsgd.errors import ConfigError
from grsgd.mpi_environment import rank
from grsgd.runs.numbers import human_bytes
from grsgd.runs.run_file import check_writable
from grsgd.simulator.driver import Deadlock
from grsgd.simulator.network import network
from grsgd.simulator.rank_memory import check_memory
from grsgd.simulator.simulation import Simulation
from grsgd.training import device as gpu
from grsgd.training.automatic_options import with_options
from grsgd.training.batch_gradient import check_compiler
from grsgd.training.description import expected_bytes
from grsgd.training.inputs import build_model, in_own_code, load_data
from grsgd.training.memory import blueprint, check_fits, rank_bytes
from grsgd.training.optimizer import build_optimizer
from grsgd.training.snapshots import MEMORY
from grsgd.training.trial_batch import try_a_step

TRIAL_STEPS = 400
"""Number of steps (all ranks together) of the short simulation in which ``--check`` counts the bytes sent."""
MAX_TRIED = 64
"""Largest number of ranks for which ``--check`` counts the bytes sent in a short simulation. With more than `MAX_TRIED`
ranks, simulating takes too long for a check."""
FAST = "100gbit,1us", "constant:0.01"
"""Network, and computing time of a step, with which ``--check`` simulates a run that will train in real time. The
simulated network is so fast that no message waits for another message."""


class RunLength(NamedTuple):
    """Length of a run: the number of training ranks, and their samples and steps. ``workers`` ranks train on
    ``samples`` samples altogether, and each of these ranks takes ``steps`` steps. ``samples`` and ``steps`` are None if
    they are not known before the run."""

    workers: int
    samples: int | None
    steps: int | None


def check(config: Config, ranks: int, out: str | None, simulated=None):
    """Check a run of ``config`` on ``ranks`` ranks, and print a description of the run. Raises ConfigError, DataError
    or RunFileError if the run would fail.

    ``simulated`` has the options of ``grsgd simulate``; it is None for a run in real time. The function `check` trains
    no model and does not start MPI. In a job of several ranks only rank 0 prints the description.
    """
    if simulated is None:
        config.check_measured()
    config.check_ranks(ranks)
    if out is not None:
        check_writable(Path(out), expected_bytes(config, ranks))
    data = load_data(config)
    model = blueprint(config, data)
    build_optimizer(config.optimizer, model.parameters())
    device = gpu.pick_device(config.device)
    each = rank_bytes(model, config, ranks, on_gpu=device.type == "cuda")
    timing_only = simulated is not None and simulated.timing_only
    if simulated is None:
        # assume one rank on this host, because the other ranks may be on other hosts
        check_fits(config, data, ranks, 1, device)
        check_compiler(config.gradient, device)
    else:
        config.check_simulated(timing_only)
        check_memory(ranks, 0 if timing_only else each)
    try_a_step(config, data, build_model(config, data, torch.device("cpu")))
    trial = try_out(config, ranks, simulated)
    plan = plan_of(config, ranks, len(data.train))
    if rank() not in (None, "0"):
        return
    rows = [
        ("algorithm", f"{kind(config)} on {counted(ranks, 'rank')}{trained_by(plan, ranks)}, device {device.type}"),
        ("model", model_line(config, model)),
        *gradient_rows(config),
        ("data", data_line(config, data, plan)),
        ("end", end_line(config, plan, len(data.train))),
        ("snapshots", snapshots_line(config, model, plan)),
        ("sent", sent_line(config, ranks, trial, plan, simulated)),
        ("memory", memory_line(each, ranks, timing_only)),
    ]
    print(tabulate(rows, tablefmt="plain", disable_numparse=True))


@contextmanager
def one_line(config: Config):
    """Turn an exception that a user's own code raises in the block into a ConfigError that names the file and the
    line."""
    try:
        with in_own_code(config):
            yield
    except Deadlock as error:
        if outside.place_of(config.algorithm.name, "algorithms"):
            raise ConfigError(f"algorithm.name = {config.algorithm.name!r}: {error}") from error
        raise


def try_out(config: Config, ranks: int, simulated) -> Simulation | None:
    """Simulate the times and messages of a few training steps, and return the `Simulation`, which has counted the bytes
    sent. Return None, without a simulation, for more than `MAX_TRIED` ranks, or if the bytes sent depend on the models'
    values."""
    (*links, compute) = (simulated.network, simulated.topology, simulated.compute) if simulated else FAST
    spec = network(*links)
    spec.check_ranks(ranks)
    timing_only = simulated is not None and simulated.timing_only
    if ranks > MAX_TRIED or (config.traits.depends_on_values and not timing_only):
        return None
    steps = max(4, TRIAL_STEPS // ranks)
    if config.train.steps is not None:
        steps = min(steps, config.train.steps)
    ends = {"epochs": None, "samples": None, "seconds": None, "steps": steps, "snapshots": 1, "stop_at_target": False}
    short = config.model_copy(update={"train": config.train.model_copy(update=ends)})
    if simulated is None and issubclass(config.algorithm_class, CommonBatchAlgorithm):
        short = with_options(short, config.algorithm_class.options_by_mpi(config.algorithm_options))
    with one_line(config):
        trial = Simulation(short, ranks, spec, compute, timing_only=True)
        trial.train()
    return trial


def plan_of(config: Config, ranks: int, samples: int) -> RunLength:
    """Return the numbers of training ranks, samples and steps of a run of ``config`` on ``ranks`` ranks. ``samples`` is
    the number of training samples."""
    workers = workers_of(config.algorithm_class, config.algorithm_options, ranks)
    train, batch = config.train, config.data.batch_size
    if train.seconds is not None:
        return RunLength(workers, None, None)
    if train.steps is not None:
        return RunLength(workers, train.steps * workers * batch, train.steps)
    end = train.samples if train.samples is not None else math.ceil(train.epochs * samples)
    return RunLength(workers, end, math.ceil(end / (workers * batch)))


def kind(config: Config) -> str:
    return f"{config.traits.label} ({'synchronous' if config.traits.synchronous else 'asynchronous'})"


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def trained_by(plan: RunLength, ranks: int) -> str:
    return "" if plan.workers == ranks else f", of which {plan.workers} train"


def model_line(config: Config, model) -> str:
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    size = trained * getattr(torch, config.dtype).itemsize
    return f"{config.model.name}: {trained:,} parameters, {human_bytes(size)} in {config.dtype}"


def gradient_rows(config: Config) -> list[tuple[str, str]]:
    """Return a list with one row of text about the keys in ``[gradient]`` that differ from their defaults; an empty
    list if no key differs."""
    wanted = config.gradient.model_dump(exclude_defaults=True)
    return [("gradient", ", ".join(f"{key} = {value}" for key, value in wanted.items()))] if wanted else []


def data_line(config: Config, data, plan: RunLength) -> str:
    shape = "x".join(map(str, data.shape))
    line = f"{config.data.name}: {len(data.train):,} training and {len(data.test):,} test samples of {shape}"
    if issubclass(config.algorithm_class, CommonBatchAlgorithm):
        return f"{line}; all ranks share each batch of {plan.workers * config.data.batch_size:,}"
    n, replication = plan.workers, config.data.replication
    parts = shards(data.train.labels, n, alpha=config.data.alpha, seed=config.seed)
    held = sorted(sum(len(parts[k]) for k in held_by(number, n, replication)) for number in range(n))
    span = f"{held[0]:,}" if held[0] == held[-1] else f"{held[0]:,} to {held[-1]:,}"
    return f"{line}; {span} training samples per rank, batches of {config.data.batch_size:,}"


def end_line(config: Config, plan: RunLength, samples: int) -> str:
    if plan.samples is None:
        return f"after {config.train.seconds:g} s"
    steps = counted(plan.steps, "step") + (" per rank" if config.traits.synchronous else " per rank on average")
    return f"after {plan.samples / samples:.4g} epochs: {plan.samples:,} samples of all ranks, {steps}"


def snapshots_line(config: Config, model, plan: RunLength) -> str:
    size = sum(t.numel() for t in [*model.parameters(), *model.buffers()]) * getattr(torch, config.dtype).itemsize
    count = config.train.snapshots
    where = "in memory" if count * size <= MEMORY else "in a temporary file"
    every = "" if plan.steps is None else f", one every {plan.steps / count:.4g} steps"
    return f"{count:,}{every}; {human_bytes(count * size)} per rank, {where}"


def sent_line(config: Config, ranks: int, trial: Simulation | None, plan: RunLength, simulated) -> str:
    if trial is None:
        why = "the models' values decide" if config.traits.depends_on_values else f"not tried on {ranks} ranks"
        return f"not known before the run: {why}"
    sent = sum(int(trainer.comm.traffic.sent.sum()) for trainer in trial.trainers)
    steps = sum(trainer.totals.steps for trainer in trial.trainers)
    total = "" if plan.steps is None else f", {human_bytes(sent / steps * plan.steps * plan.workers)} in the run"
    tried = f"{counted(steps // plan.workers, 'simulated step')} per rank"
    if simulated is None and not config.traits.synchronous:
        tried += ", on a network that keeps up; less on a slower one"
    return f"{human_bytes(sent / steps)} per rank that trains and step{total} (counted in {tried})"


def memory_line(each: int, ranks: int, timing_only: bool) -> str:
    if timing_only:
        return "none for models: --timing-only"
    free, needed = memory.available(), each * ranks
    line = (
        f"about {human_bytes(each)} per rank besides Python and data, "
        f"{human_bytes(needed)} on {counted(ranks, 'rank')}"
    )
    return f"{line}; {'' if needed <= free else 'only '}{human_bytes(free)} are free on this host"
