"""The comparison of the staleness of gradients under each strategy, and of the workers that computed them."""

import math

from experiments.papers.adsp_2024 import compared
from experiments.papers.adsp_2024.compared import CONFIGS, OURS, SLOW
from experiments.runner import decide, sample
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Trainings
from experiments.runner.outcome import BY_CONSTRUCTION
from experiments.runner.sample import Sample
from experiments.tables.draw import Panel
from experiments.tables.numbers import ages, mean_staleness
from experiments.tables.section import Section
from experiments.tables.targets import Found
from grsgd.runs.run_file import Run

BUCKETS = {"0": (0, 0), "1-2": (1, 2), "3-5": (3, 5), "6+": (6, math.inf)}
"""Classes (buckets) of the staleness of gradients, each with its least and greatest number of updates of the model."""


def needs(conditions: Conditions) -> dict[tuple[str, str], Trainings]:
    return {
        (delays.name, name): compared.training(conditions, name, delays)
        for delays in compared.deciding(conditions)
        for name in CONFIGS
    }


def show(found: Found, section: Section) -> None:
    mean = {key: sample.of(runs, mean_staleness) for key, runs in found.items()}
    conditions = list(dict.fromkeys(delays for delays, _ in found))
    section.figure(
        "Shares of gradients by their staleness, in updates of the model.",
        [
            Panel(
                delays,
                "staleness [updates]",
                "share of gradients [%]",
                bars={name: shares(found[delays, name]) for name in CONFIGS},
            )
            for delays in conditions
        ],
        times=False,
    )
    section.table(
        "Staleness of gradients in updates of the model: mean, and per cent of the gradients; "
        f"{compared.where(found.conditions)}.",
        ["delays", "strategy", "mean", *(f"{bucket} [%]" for bucket in BUCKETS), f"from worker {SLOW} [%]"],
        [
            [*key, mean[key].text(), *(share.text(".0f") for share in shares(runs).values()), from_slow(runs).text()]
            for key, runs in found.items()
        ],
    )
    section.finding(
        "adsp-staleness",
        "number of updates of the model between a worker's pull of the model and the push of its gradient; "
        f"{compared.where(found.conditions)}",
        [
            decide.less(mean[delays, OURS], mean[delays, "ASP"], delays, "ASP", "% less stale", source="")
            for delays in conditions
        ]
        + [
            decide.fact(not any(mean[delays, "BSP"].known), f"BSP without staleness, {delays}", kind=BY_CONSTRUCTION)
            for delays in conditions
        ],
        "A bound that is seldom reached changes little: ASP's staleness is n - 1 on average, whatever the delays.",
    )
    section.note(compared.DELAYS_NOTE)
    section.note("BSP takes the n gradients of a round in one update; the others take one gradient or a few in each.")


def shares(runs: list[Run]) -> dict[str, Sample]:
    """Return the per cent of gradients in each class of staleness, each as a sample (values by seed)."""

    def share(run: Run, least: int, most: float) -> float:
        values, gradients = ages(run)
        return 100 * float(gradients[(values >= least) & (values <= most)].sum() / gradients.sum())

    return {name: sample.of(runs, lambda run, ends=ends: share(run, *ends)) for name, ends in BUCKETS.items()}


def from_slow(runs: list[Run]) -> Sample:
    """Return the per cent of gradients that come from worker ``SLOW``, as a sample (values by seed)."""
    return sample.of(runs, lambda run: 100 * run.ranks["steps"][SLOW] / run.ranks["steps"].sum())
