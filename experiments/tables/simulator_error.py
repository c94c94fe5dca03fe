"""The simulator's error, which is stated with simulated results: the difference of simulated from measured times.

If the error of one of the compared algorithms is more than `MAX_ERROR`, only measured times decide a claim. A
simulated comparison with an error of more than `MAX_ERROR` is shown, but does not count. A verdict that would change
with another calibration, or after the error is subtracted, counts as undecided.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from experiments.runner import sample
from experiments.runner.needs import Need, SamplesToTarget, Steps, TimeToTarget
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
from experiments.tables.compare import condition
from experiments.tables.show import QUANTITIES
from grsgd.config import Config

MAX_ERROR = 0.1
"""Greatest error that counts as small, as a fraction of the measured time.

Most runs that were repeated on the testbed differ by less than `MAX_ERROR`.
"""
MAX_ERRORS = 8
"""Greatest number of algorithms whose simulator errors are listed individually."""


class Error(NamedTuple):
    """The difference of simulated from measured times of one training, as a fraction of the measured times.

    name: the training's configuration, with its redundancy. share: the difference as a fraction. algorithm: the label
    of the training's algorithm, as from `sample.label_of`. condition: the training's condition, in the words of
    comparisons. model: name of the trained model.
    """

    name: str
    share: float
    algorithm: str
    condition: str
    model: str = ""


def with_simulator_errors(outcomes: dict[str, Outcome], plans: Mapping[str, Plan]) -> list[Outcome]:
    """Return the outcomes with the simulator's error in the captions of figures and in the simulated comparisons.

    The simulator's error is found from the target's own trainings if they were also measured, or else from all
    trainings of the paper's targets with the same models. plans: plans by target.
    """
    own = {what: {name: simulator_errors(plans[name], name, what) for name in outcomes} for what in QUANTITIES}
    shown = []

    def of_paper(name: str, what: str) -> list[Error]:
        alike, models = (other for other in outcomes if outcomes[other].paper == outcomes[name].paper), models_of(name)
        return [error for other in alike for error in own[what][other] if error.model in models]

    def models_of(name: str) -> set[str]:
        return {configuration(plans[name], need.setting).model.name for need in plans[name].needs[name].values()}

    def note_of(name: str, what: str) -> str:
        mine = own[what][name]
        return error_note(mine or of_paper(name, what), "the same" if mine else "other", what)

    for name, found in outcomes.items():
        mine, all_of_paper = own["times"][name], of_paper(name, "times")

        def judged(case: Case, mine=mine, all_of_paper=all_of_paper) -> Case:
            return robust(case_with_error(case, mine, all_of_paper))

        shown.append(
            replace(
                found,
                figures=[with_error(figure, note_of(name, figure.shows), found.runs) for figure in found.figures],
                findings=[replace(finding, cases=list(map(judged, finding.cases))) for finding in found.findings],
                simulator_errors=[(error.name, error.share) for error in mine],
            )
        )
    return shown


# ---- functions that state errors in captions


def error_note(errors: Iterable[tuple], which: str, what: str = "times", unmeasured: Sequence[str] = ()) -> str:
    """Return a text on the difference of simulated from measured times, or of another quantity ``what``.

    The text has the difference for each algorithm, as a range if several trainings of the algorithm were measured. For
    more than `MAX_ERRORS` algorithms, the text has only the median and the extremes of the differences. errors: tuples
    that begin with the name of an algorithm and its difference. unmeasured: names of algorithms without a measured
    training.
    """
    ordered = sorted(errors, key=lambda error: error[1])
    if not ordered:
        return "not compared with measured times here"
    shares: dict[str, list[float]] = {}
    for name, share, *_ in ordered:
        shares.setdefault(name, []).append(share)
    words = [f"{name} {in_percent(some)}" for name, some in shares.items()]
    if len(words) > MAX_ERRORS:
        middle = median(error[1] for error in ordered)
        least, most = (f"{name} {in_percent([share])}" for name, share, *_ in (ordered[0], ordered[-1]))
        words = [f"median {in_percent([middle])}, from {least} to {most}, of {len(ordered)}"]
    if unmeasured:
        words += [f"{', '.join(unmeasured) if len(unmeasured) <= MAX_ERRORS else len(unmeasured)} not measured"]
    return f"against measured {what} of {which} trainings: {', '.join(words)}"


def in_percent(shares: Sequence[float]) -> str:
    """Return signed differences in per cent as text: one number, or a range from the least to the greatest."""
    low, high = (f"{100 * share:+.0f}" for share in (min(shares), max(shares)))
    return f"{low} %" if low == high else f"{low} to {high} %"


def with_error(figure: Figure, note: str, runs: list[dict]) -> Figure:
    """Return a figure with the simulator's error in its caption.

    A figure that shows no simulated quantity is returned unchanged.
    """
    if not figure.times or not any(run["source"] in (SIMULATED, TIMING_ONLY) for run in runs):
        return figure
    return replace(figure, caption=f"{figure.caption} Simulated {figure.shows}, {note}.")


# ---- functions for the error of a comparison


def case_with_error(case: Case, own: Sequence[Error], of_paper: Sequence[Error]) -> Case:
    """Return a simulated comparison (case) with the simulator's error for the compared algorithms.

    A comparison that is not simulated is returned unchanged. A comparison with an error of more than `MAX_ERROR` gets
    the kind `OFF`, so that it does not count. own: errors of the target's trainings. of_paper: errors of all trainings
    of the paper's targets.
    """
    if case.source not in (SIMULATED, TIMING_ONLY):
        return case
    algorithms = [list(filter(None, side.split(", "))) for side in (case.ours, case.theirs)]
    of_sides = [errors_of(side, case.condition, own, of_paper) for side in algorithms]
    errors = list(dict.fromkeys(error for side in of_sides for error in side))
    measured = {error.algorithm for error in errors}
    unmeasured = [name.replace("_", " ") for name in dict.fromkeys(sum(algorithms, [])) if name not in measured]
    if not errors:  # no run of the compared algorithms was measured
        which = "the same" if own else "other"
        return replace(case, simulator_error=error_note(own or of_paper, which, unmeasured=unmeasured))
    which = "the same" if set(errors) <= set(own) else "other"
    case = replace(with_correction(case, *of_sides), simulator_error=error_note(errors, which, unmeasured=unmeasured))
    worst = max(errors, key=lambda error: abs(error.share))
    if case.kind != EVIDENCE or abs(worst.share) <= MAX_ERROR:
        return case
    return noted(replace(case, kind=OFF), f"simulated times of {worst.name} are off by {in_percent([worst.share])}")


def errors_of(side: Sequence[str], where: str, own: Sequence[Error], of_paper: Sequence[Error]) -> list[Error]:
    """Return the most relevant errors of each algorithm in ``side``, one side of a comparison.

    An algorithm has its errors under the condition ``where``, or else its errors in the target, or else in the paper.
    The list is empty if nothing was measured.
    """
    alike = [error for error in own if error.condition == where]
    found = []
    for algorithm in side:
        by_relevance = ([one for one in errors if one.algorithm == algorithm] for errors in (alike, own, of_paper))
        found += next(filter(None, by_relevance), [])
    return found


def with_correction(case: Case, ours: Sequence[Error], theirs: Sequence[Error]) -> Case:
    """Return a comparison of times whose spread includes the effect after the simulator's errors are subtracted."""
    ends = [end for end in (case.spread_low, case.spread_high, case.estimate) if end is not None]
    if not ends or not ours or not theirs or not case.unit.startswith("% less time"):
        return case
    factors = [1.0, (1 + median(e.share for e in theirs)) / (1 + median(e.share for e in ours))]
    corrected = [100 - (100 - end) * factor for end in ends for factor in factors]
    return replace(case, spread_low=min(corrected), spread_high=max(corrected))


def robust(case: Case) -> Case:
    """Return the comparison, made inconclusive if its spread contradicts its verdict."""
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


# ---- functions for the errors of a target


def simulator_errors(plan: Plan, target: str, what: str = "times") -> list[Error]:
    """Return the differences of simulated from measured times for the trainings of a target that have both.

    In simulated runs, a slow host of the testbed is a rank that computes more slowly. what: a key of `QUANTITIES`.
    Needs whose result is a sample are skipped unless ``what`` is "times". A measured value of 0, which the waiting
    time may have, gives no relative difference.
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
            specs = as_simulated(need).specs(plan.conditions, plan.rates.rate)
            # the runs with seed 0 identify the training: one for the steps, and possibly one for the trajectory
            first = tuple(spec for spec in specs if "seed=0" in spec.overrides)
            if need.setting.source == MEASURED:
                measured[type(need), first] = middle, need.setting
            else:
                simulated[type(need), first] = middle
    return [
        error_of(plan, setting, simulated[run] / seconds - 1)
        for run, (seconds, setting) in measured.items()
        if run in simulated and seconds
    ]


def as_simulated(need: Need) -> Need:
    """Return the need with simulated times, and with the scale's number of timed steps."""
    timed = {"steps": None} if isinstance(need, Steps | TimeToTarget) else {}
    return replace(need, setting=need.setting.but(source=SIMULATED), **timed)


def error_of(plan: Plan, setting: Setting, share: float) -> Error:
    loaded = configuration(plan, setting)
    redundancy = getattr(loaded.algorithm_options, "r", None)
    name = name_of(setting) if redundancy is None else f"{name_of(setting)} r={redundancy}"
    return Error(name, share, sample.label_of(loaded, setting.ranks), condition(setting), loaded.model.name)


def configuration(plan: Plan, setting: Setting) -> Config:
    return plan.conditions.load(setting.config, setting.overrides)


def name_of(setting: Setting) -> str:
    """Return the name of a training, which is the name of its configuration file in words."""
    return setting.config.rpartition("/")[2].replace("_", " ")
