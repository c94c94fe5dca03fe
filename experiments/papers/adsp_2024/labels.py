"""The comparison of two facts: which workers adsp labels as stragglers, and which workers have injected delays."""

import tomllib
from dataclasses import dataclass

import numpy as np

from experiments.papers.adsp_2024 import compared
from experiments.papers.adsp_2024.compared import BOTH, CONSTANT, DELAYED, NONE, OURS, RANDOM, SLOW, Delays
from experiments.runner import decide
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Trainings
from experiments.runner.outcome import Case
from experiments.runner.run_spec import MEASURED, SIMULATED, TIMING_ONLY
from experiments.runner.sample import Sample
from experiments.tables.draw import Panel
from experiments.tables.section import Section
from experiments.tables.targets import Found
from grsgd.algorithms.parameter_server.strategy import STATES
from grsgd.config.sections import Stragglers
from grsgd.runs.run_file import Run
from grsgd.training.stragglers import DelayModel

RULES = {
    "as reconstructed": (),
    "slow by the last delay alone": ("algorithm.slow_streak=1", "algorithm.delay_ema=1.0"),
}
"""Rules by which adsp decides that a worker is slow, as overrides of the configuration."""
DEFAULT_RULE = next(iter(RULES))
SOON = 5
WITHIN = {1: "at the delayed push", SOON: f"within {SOON} pushes"}
"""Numbers of pushes within which a straggler label counts as right after a delayed push, with their texts."""
MAX_WRONG_PERCENT, MIN_RIGHT_PERCENT = 1.0, 50.0
"""Limits in per cent: the most labelled pushes if no worker is delayed, and the least right labels and found delays."""
Key = tuple[Delays, str, str]
"""Key of a group of runs: the delays, the source of times (simulated or measured), and the name of the rule."""


@dataclass(frozen=True)
class Labelled:
    """The workers' pushes of gradients in a run, as boolean arrays of shape [workers, pushes].

    known: True if the worker made the push. label: True if the worker was labelled a straggler at the push. delayed:
    True if the computation before the push was prolonged by a delay.
    """

    known: np.ndarray
    label: np.ndarray
    delayed: np.ndarray

    def precision(self, within: int) -> float | None:
        """Return the per cent of straggler labels at a delayed push or at one of the ``within`` - 1 pushes after it.

        Returns None if no push of the run has a label.
        """
        return percent(self.label & lasting(self.delayed, within), self.label)

    def recall(self, within: int) -> float | None:
        """Return the per cent of delayed pushes that got a label within ``within`` pushes; None without delays."""
        return percent(self.delayed & lasting(self.label[:, ::-1], within)[:, ::-1], self.delayed)

    def share(self) -> float | None:
        """Return the per cent of all pushes at which the worker had the label "straggler"."""
        return percent(self.label, self.known)


MEASURES = {"right labels": Labelled.precision, "delays found": Labelled.recall}


def percent(part: np.ndarray, whole: np.ndarray) -> float | None:
    return 100 * float(part.sum() / whole.sum()) if whole.any() else None


def lasting(at: np.ndarray, pushes: int) -> np.ndarray:
    """Return, for each push, whether ``at`` is true at this push or at one of the ``pushes`` - 1 pushes before it."""
    found = at.copy()
    for k in range(1, pushes):
        found[:, k:] |= at[:, :-k]
    return found


def labelled(run: Run, delays: Delays) -> Labelled:
    """Return the straggler labels of a run, and the delays that the run's configuration injects.

    If a worker is slow because its host has a slow processor, the configuration injects no delay. In runs with a slow
    processor, ``delays`` tells which worker is slow.
    """
    states = run.extra["states"]
    stragglers = Stragglers(**tomllib.loads(run.attributes["config"]).get("stragglers", {}))
    workers, pushes = states.shape
    injected = [DelayModel(stragglers, worker, run.attributes["seed"]) for worker in range(workers)]
    delayed = np.array([[model.delay(push, 1.0) > 0 for push in range(pushes)] for model in injected])
    delayed[SLOW] |= delays.factor > 1
    known = states >= 0
    return Labelled(known, states == STATES.index("straggler"), delayed & known)


def needs(conditions: Conditions) -> dict[Key, Trainings]:
    """Return the specifications of the runs that the target needs, by delays, source of times and rule.

    Simulated runs compute no gradients, because no label depends on a gradient.
    """
    wanted = {
        (delays, TIMING_ONLY, rule): compared.training(conditions, OURS, delays, TIMING_ONLY, overrides)
        for delays in (NONE, CONSTANT, RANDOM, BOTH)
        for rule, overrides in RULES.items()
    }
    return wanted | {
        (delays, MEASURED, DEFAULT_RULE): compared.training(conditions, OURS, delays, MEASURED)
        for delays, name in compared.measured(conditions)
        if name == OURS
    }


def show(found: Found, section: Section) -> None:
    pushes = {key: {run.attributes["seed"]: labelled(run, key[0]) for run in runs} for key, runs in found.items()}
    section.figure(
        f"Labels that are right, and delayed pushes that are found, within {SOON} pushes.",
        [Panel(what, "delays", f"{what} [%]", bars=bars(pushes, measure)) for what, measure in MEASURES.items()],
        times=False,
    )
    section.table(
        "Labels: share of all pushes at which a worker was labelled a straggler. Right labels: share of these labels "
        "that are right. Delays found: share of delayed pushes with a label. The label comes at the delayed push "
        f"itself, or within {SOON} pushes.",
        ["delays", "time", "rule", "labels [%]", *(f"{what}, {words} [%]" for what, _, words, _ in measures())],
        [
            [
                delays.name,
                compared.where(found.conditions, source),
                rule,
                each(Labelled.share, of).text(".1f"),
                *(each(measure, of, within).text(".0f") for _, measure, _, within in measures()),
            ]
            for (delays, source, rule), of in pushes.items()
        ],
    )
    section.finding(
        "adsp-labels",
        "labels STRAGGLER of workers at their pushes, compared with the injected delays. At least "
        f"{MIN_RIGHT_PERCENT:g} % of the labels must be right, and at least {MIN_RIGHT_PERCENT:g} % of the delayed "
        f"pushes must be found; without delays, at most {MAX_WRONG_PERCENT:g} % of the pushes may have a label",
        [case for key, of in pushes.items() if key[2] == DEFAULT_RULE for case in cases(key, of)],
        "A worker counts as slow after several slow pushes in a row, and by a moving average. So a single delay is "
        "over before its label comes, and the label stays for a while. A worker that is always slow is found.",
    )
    section.note(compared.DELAYS_NOTE)
    section.note("The rule and its thresholds are inferred, so the verdict is on the reconstruction.")


def measures():
    """Yield each measure of labels with each number of pushes in ``WITHIN``: name, function, text, and number."""
    for within, words in WITHIN.items():
        for what, measure in MEASURES.items():
            yield what, measure, words, within


def each(measure, pushes: dict[int, Labelled], *arguments) -> Sample:
    """Return the values of a measure of labels by seed, computed from the pushes of each seed."""
    return Sample({seed: measure(one, *arguments) for seed, one in pushes.items()})


def bars(pushes: dict[Key, dict[int, Labelled]], measure) -> dict[str, dict[str, Sample]]:
    """Return the bars of a panel, from simulated runs: a measure of labels by rule and delays."""
    return {
        rule: {delays.name: each(measure, pushes[delays, TIMING_ONLY, rule], SOON) for delays in DELAYED}
        for rule in RULES
    }


def cases(key: Key, pushes: dict[int, Labelled]) -> list[Case]:
    """Return the comparisons (cases) on the labels of runs with the delays and the source of times in ``key``."""
    delays, source = key[0], MEASURED if key[1] == MEASURED else SIMULATED
    if delays == NONE:
        share = each(Labelled.share, pushes)
        return [decide.at_most(share, MAX_WRONG_PERCENT, delays.name, "% of the pushes", "false alarms", source)]
    return [
        decide.at_least(
            each(measure, pushes, within), MIN_RIGHT_PERCENT, f"{delays.name}, {words}", "%", what, source
        )
        for what, measure, words, within in measures()
    ]
