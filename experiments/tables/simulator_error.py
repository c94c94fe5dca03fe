"""The simulator's error, beside what rests on simulated times: how far they are from measured ones.

Where it is more than `MOST_ERROR` for an algorithm of a case, the clock decides: the simulated case is shown and not
counted. A verdict that holds with one calibration or once the error is taken off, and not with another, is none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from experiments.runner import sample
from experiments.runner.needs import SamplesToTarget
from experiments.runner.outcome import (
    EVIDENCE,
    INCONCLUSIVE,
    LESS,
    MORE,
    OFF,
    REFUTED,
    SUPPORTED,
    Case,
    Figure,
    Outcome,
)
from experiments.runner.plan import Plan
from experiments.runner.run_spec import MEASURED, SIMULATED, TIMING_ONLY
from experiments.runner.setting import Setting
from experiments.runner.store import BEFORE
from experiments.tables.compare import condition
from experiments.tables.show import QUANTITIES

MOST_ERROR = 0.1
"""As a share of the measured time; most runs that were made twice on the testbed differ by less."""
MOST_ERRORS = 8
"""Of the simulator, that are told one by one."""


class Error(NamedTuple):
    """How far simulated times of a training are from measured ones, as a share of those.

    name: of its configuration. algorithm: the label of its runs. condition: where it was made, as cases have it.
    """

    name: str
    share: float
    algorithm: str
    condition: str


def with_simulator_errors(outcomes: dict[str, Outcome], plans: Mapping[str, Plan]) -> list[Outcome]:
    """Return the outcomes with the simulator's error in their captions and beside their simulated cases: that of the
    target's own trainings, or else of all targets of the paper. plans: by target."""
    own = {what: {name: simulator_errors(plans[name], name, what) for name in outcomes} for what in QUANTITIES}
    shown = []

    def of_paper(name: str, what: str) -> list[Error]:
        return [
            error for other in outcomes if outcomes[other].paper == outcomes[name].paper for error in own[what][other]
        ]

    def note_of(name: str, what: str) -> str:
        mine = own[what][name]
        return error_note(mine or of_paper(name, what), "the same" if mine else "other", what)

    for name, found in outcomes.items():
        mine, all_of_paper, is_before = own["times"][name], of_paper(name, "times"), plans[name].store.code == BEFORE

        def judged(case: Case, mine=mine, all_of_paper=all_of_paper, is_before=is_before) -> Case:
            return robust(case_with_error(without_spread(case) if is_before else case, mine, all_of_paper))

        shown.append(
            replace(
                found,
                figures=[with_error(figure, note_of(name, figure.shows), found.runs) for figure in found.figures],
                findings=[replace(finding, cases=list(map(judged, finding.cases))) for finding in found.findings],
                simulator_errors=[(error.name, error.share) for error in mine],
            )
        )
    return shown


# ---- in words


def error_note(errors: Iterable[tuple], which: str, what: str = "times") -> str:
    """Return how far simulated times, or what else, are from measured ones, in words: for each algorithm, or of many,
    in the middle and at both ends. errors: begin with name and share."""
    ordered = sorted(errors, key=lambda error: error[1])
    if not ordered:
        return "not held against the clock here"
    words = [f"{name} {share:+.0%}" for name, share, *_ in ordered]
    if len(words) > MOST_ERRORS:
        middle = median(error[1] for error in ordered)
        words = [f"median {middle:+.0%}, from {words[0]} to {words[-1]}, of {len(words)}"]
    return f"against measured {what} of {which} trainings: {', '.join(words)}"


def with_error(figure: Figure, note: str, runs: list[dict]) -> Figure:
    """Return a figure with the simulator's error in its caption, if it shows simulated times or waiting."""
    if not figure.times or not any(run["source"] in (SIMULATED, TIMING_ONLY) for run in runs):
        return figure
    return replace(figure, caption=f"{figure.caption} Simulated {figure.shows}, {note}.")


# ---- of a case


def case_with_error(case: Case, own: Sequence[Error], of_paper: Sequence[Error]) -> Case:
    """Return a case with the simulator's error for its two algorithms, if it rests on simulated times; one that is too
    far off is not counted. own: of the target's trainings; of_paper: of all trainings of the paper's targets."""
    if case.source not in (SIMULATED, TIMING_ONLY) or "time" not in case.unit:
        return case
    of_sides = [errors_of(algorithm, case.condition, own, of_paper) for algorithm in (case.ours, case.theirs)]
    errors = list(dict.fromkeys(error for side in of_sides for error in side))
    if not errors:  # of its algorithms nothing was measured
        return replace(case, simulator_error=error_note(own or of_paper, "the same" if own else "other"))
    which = "the same" if set(errors) <= set(own) else "other"
    case = replace(with_correction(case, *of_sides), simulator_error=error_note(errors, which))
    worst = max(errors, key=lambda error: abs(error.share))
    if case.kind != EVIDENCE or abs(worst.share) <= MOST_ERROR:
        return case
    return noted(replace(case, kind=OFF), f"simulated times of {worst.name} are {worst.share:+.0%} off")


def errors_of(algorithm: str, where: str, own: Sequence[Error], of_paper: Sequence[Error]) -> list[Error]:
    """Return the errors that tell most of an algorithm in a case: those under its condition, or else of its target, or
    else of the paper; none if nothing of it was measured."""
    alike = [error for error in own if error.condition == where]
    for errors in (alike, own, of_paper):
        if found := [error for error in errors if error.algorithm == algorithm]:
            return found
    return []


def with_correction(case: Case, ours: Sequence[Error], theirs: Sequence[Error]) -> Case:
    """Return a case whose spread reaches to the effect that is left once the simulator's errors are taken off."""
    ends = [end for end in (case.spread_low, case.spread_high, case.estimate) if end is not None]
    if not ends or not ours or not theirs:
        return case
    factors = [1.0, (1 + median(e.share for e in theirs)) / (1 + median(e.share for e in ours))]
    corrected = [100 - (100 - end) * factor for end in ends for factor in factors]
    return replace(case, spread_low=min(corrected), spread_high=max(corrected))


def robust(case: Case) -> Case:
    """Return a case that decides only what it decides in all of its spread."""
    if case.spread_low is None:
        return case
    told = f"over calibrations and the simulator's error {case.spread_low:.1f} to {case.spread_high:.1f}"
    if case.on_number in (LESS, MORE) and case.spread_low <= case.number <= case.spread_high:
        case = noted(replace(case, on_number=""), told)
    if case.verdict in (SUPPORTED, REFUTED) and case.spread_low < 0 < case.spread_high:
        case = replace(case if case.note.endswith(told) else noted(case, told), verdict=INCONCLUSIVE)
    return case


def noted(case: Case, note: str) -> Case:
    return replace(case, note="; ".join(filter(None, [case.note, note])))


def without_spread(case: Case) -> Case:
    """Return a case of runs that all rest on one calibration."""
    return replace(case, spread_low=None, spread_high=None)


# ---- of a target


def simulator_errors(plan: Plan, target: str, what: str = "times") -> list[Error]:
    """Return how far simulated times of a target are from measured ones of the same trainings. A host that is really
    slow is simulated as a rank that computes more slowly.

    what: of `QUANTITIES`. Samples are of times; where nothing was measured, as of waiting that there is none, there is
    no share.
    """
    measured, simulated = {}, {}
    results = plan.results(target)
    for key, need in plan.needs[target].items():
        result = results[key]
        if isinstance(need, SamplesToTarget) or isinstance(result, sample.Sample) and what != "times":
            continue
        if not isinstance(result, sample.Sample):
            result = sample.of(result, QUANTITIES[what])
        if (middle := result.median()) is not None:
            alike = replace(need, setting=need.setting.but(source=SIMULATED))
            specs = alike.specs(plan.conditions, plan.rates.rate)
            first = tuple(spec for spec in specs if "seed=0" in spec.overrides)  # of steps and trajectories one each
            if need.setting.source == MEASURED:
                measured[type(need), first] = middle, need.setting
            else:
                simulated[type(need), first] = middle
    return [
        error_of(plan, setting, simulated[run] / seconds - 1)
        for run, (seconds, setting) in measured.items()
        if run in simulated and seconds
    ]


def error_of(plan: Plan, setting: Setting, share: float) -> Error:
    algorithm = plan.conditions.load(setting.config, setting.overrides).traits.label
    return Error(name_of(setting), share, algorithm, condition(setting))


def name_of(setting: Setting) -> str:
    """Return the name of what is trained: that of its file."""
    return setting.config.rpartition("/")[2].replace("_", " ")
