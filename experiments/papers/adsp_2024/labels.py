"""The workers that adsp labels as stragglers, compared with the injected delays."""

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
"""Rules by which a worker counts as slow, as overrides of the options."""
DEFAULT_RULE = next(iter(RULES))
SOON = 5
WITHIN = {1: "at the delayed push", SOON: f"within {SOON} pushes"}
"""Numbers of pushes, from a delayed one on, within which a label counts as right, with their texts."""
MAX_WRONG_PERCENT, MIN_RIGHT_PERCENT = 1.0, 50.0
"""Greatest share of labelled pushes without delays; least share of right labels and of found delays, in per cent."""
Key = tuple[Delays, str, str]
"""Delays, source of times, and rule."""


@dataclass(frozen=True)
class Labelled:
    """Pushes of a run, as arrays [workers, pushes].

    known: whether the push exists. label: whether its worker was labelled a straggler. delayed: whether its computation
    was prolonged.
    """

    known: np.ndarray
    label: np.ndarray
    delayed: np.ndarray

    def precision(self, within: int) -> float | None:
        """Return the share of labels, in per cent, at a delayed push or one of the next ``within`` - 1 pushes.

        Returns None if there are no labels.
        """
        return percent(self.label & lasting(self.delayed, within), self.label)

    def recall(self, within: int) -> float | None:
        """Return the share of delayed pushes, in per cent, that got a label within ``within`` pushes; None if none."""
        return percent(self.delayed & lasting(self.label[:, ::-1], within)[:, ::-1], self.delayed)

    def share(self) -> float | None:
        """Return the share of pushes with a label, in per cent."""
        return percent(self.label, self.known)


MEASURES = {"right labels": Labelled.precision, "delays found": Labelled.recall}


def percent(part: np.ndarray, whole: np.ndarray) -> float | None:
    return 100 * float(part.sum() / whole.sum()) if whole.any() else None


def lasting(at: np.ndarray, pushes: int) -> np.ndarray:
    """Return whether ``at`` was true at each push or at one of the ``pushes`` - 1 before."""
    found = at.copy()
    for k in range(1, pushes):
        found[:, k:] |= at[:, :-k]
    return found


def labelled(run: Run, delays: Delays) -> Labelled:
    """Return the labels of a run, and the delays that its configuration injects.

    On a host with a slow processor no delay is injected: the slow worker is then known from ``delays``.
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
    """Return the needs; simulated trainings run without gradients, because no label depends on a gradient."""
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
    """Yield every measure with its number of pushes: name, function, the number in words, and the number."""
    for within, words in WITHIN.items():
        for what, measure in MEASURES.items():
            yield what, measure, words, within


def each(measure, pushes: dict[int, Labelled], *arguments) -> Sample:
    """Return a measure of the pushes of each seed."""
    return Sample({seed: measure(one, *arguments) for seed, one in pushes.items()})


def bars(pushes: dict[Key, dict[int, Labelled]], measure) -> dict[str, dict[str, Sample]]:
    """Return the bars of a panel, in simulated time, by rule and delays."""
    return {
        rule: {delays.name: each(measure, pushes[delays, TIMING_ONLY, rule], SOON) for delays in DELAYED}
        for rule in RULES
    }


def cases(key: Key, pushes: dict[int, Labelled]) -> list[Case]:
    """Return the cases on the labels of the runs with these delays."""
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
