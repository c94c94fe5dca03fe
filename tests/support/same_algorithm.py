"""Targets of experiments with runs in which all algorithms are equal, so that a target must find no difference."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from experiments.runner.conditions import Conditions
from experiments.runner.outcome import DIFFERENCE, REFUTED, SUPPORTED, Case
from experiments.runner.plan import Plan
from experiments.runner.run_spec import MEASURED, RunSpec
from experiments.runner.scale import SMOKE
from experiments.tables.section import Section
from experiments.tables.targets import Found, Target
from grsgd.config import Config
from grsgd.runs.run_file import Run
from tests.support.runs import fake_run
from tests.support.store import FakeStore

STEPS, SNAPSHOTS = 600, 31
SECONDS, BYTES, MODEL_BYTES = 0.1, 1000, 1_000_000
"""Seconds per step of a rank, bytes that a rank sends to each other rank, and bytes of the model."""
SPLIT = {"compute": 0.6, "communicate": 0.3, "wait": 0.1}


class Undrawn(Section):
    """A section of a page whose figures are not drawn."""

    def figure(self, *_, **__):
        pass


def one_algorithm(spec: RunSpec) -> Run:
    """Return an invented run that does not depend on the algorithm.

    Times and accuracies of the run depend on the seed. The run's samples and bytes depend on the number of ranks that
    train. Synchronous and asynchronous algorithms take equally long.
    """
    loaded = spec.load()
    random = np.random.default_rng(loaded.seed)
    share = np.linspace(0, 1, SNAPSHOTS)
    step = (share * STEPS).astype(int)
    trains = np.arange(spec.ranks) >= servers(loaded)
    batches = trains.sum() * loaded.data.batch_size
    seconds = SECONDS * np.exp(0.08 * random.normal())
    plateau = (loaded.train.target_accuracy or 0.8) + 0.05 + 0.008 * random.normal()
    accuracy = np.minimum(plateau, 0.999) * (1 - np.exp(-share / (0.15 + 0.02 * random.normal())))
    run = fake_run(
        ranks=spec.ranks,
        snapshots=SNAPSHOTS,
        algorithm=loaded.algorithm_class.name,
        seed=loaded.seed,
        config=loaded.toml(),
        clock="wall" if spec.source == MEASURED else "virtual",
        wall_seconds=seconds * STEPS,
        model_bytes=MODEL_BYTES,
        target_accuracy=loaded.train.target_accuracy,
        batch_size=loaded.data.batch_size,
        train_samples=int(STEPS * batches / (loaded.train.epochs or 1)),
    )
    run.curve |= {"time": seconds * step, "step": step, "samples": step * batches}
    run.curve |= {"test_accuracy": accuracy, "test_accuracy_min": accuracy - 0.01, "test_accuracy_max": accuracy + 0.01}
    run.ranks |= {"steps": STEPS * trains, "samples": STEPS * loaded.data.batch_size * trains}
    run.ranks |= {f"{part}_seconds": share * seconds * STEPS * trains for part, share in SPLIT.items()}
    apart = STEPS * (1 - np.eye(spec.ranks, dtype=np.int64))
    run.traffic |= {"sent": BYTES * apart, "messages": apart, "sent_once": BYTES * apart.sum(axis=1)}
    run.extra["states"] = np.zeros((trains.sum(), STEPS), np.int64)  # state 0: no push is the push of a straggler
    return run


def servers(loaded: Config) -> int:
    """Return the number of ranks that only serve the training ranks."""
    options = loaded.algorithm_options
    return options.servers if getattr(options, "server", None) == "dedicated" else 0


def shown(target: Target, make: Callable[[RunSpec], Run] = one_algorithm) -> Section:
    """Return the section that ``target`` shows for the runs from ``make``, in the size smoke on a testbed."""
    conditions = Conditions(SMOKE, emulated=True)
    results = Plan(conditions, FakeStore(make), {target.name: target.needs(conditions)}).results(target.name)
    section = Undrawn(target.name, Path())
    target.show(Found(conditions, results), section)
    return section


def differences(section: Section) -> list[Case]:
    """Return the comparisons among the section's evidence that support or refute a claim of a difference."""
    evidence = [case for finding in section.findings for case in finding.evidence]
    return [case for case in evidence if case.test == DIFFERENCE and case.verdict in (SUPPORTED, REFUTED)]


def assert_no_difference(target: Target):
    """Fail if ``target`` finds a difference between algorithms that are all equal."""
    found = differences(shown(target))
    assert not found, "\n".join(f"{case.condition}, {case.baseline}: {case.text()}, {case.verdict}" for case in found)
