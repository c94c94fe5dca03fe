"""Comparisons that several papers make: time to accuracy under scenarios, over the rate of the links, and over options;
accuracy after equally many samples.

Each is an object whose methods are the two functions of a target, ``needs`` and ``show``. A *place* is a setting
without a configuration: where several algorithms are compared.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import exp, inf, log, log1p

from experiments.tables import decide, sample
from experiments.tables.conditions import Conditions
from experiments.tables.draw import Panel
from experiments.tables.needs import Need, Steps, TimeToTarget, Trajectories
from experiments.tables.numbers import final_accuracy
from experiments.tables.outcome import CONTROL, EVIDENCE, SUPPORTED, Case
from experiments.tables.run_spec import MEASURED, SIMULATED, Link
from experiments.tables.sample import Sample
from experiments.tables.scale import DESK
from experiments.tables.section import Section
from experiments.tables.setting import EQUAL, Scenario, Setting
from experiments.tables.targets import Found
from experiments.tables.wording import SOURCES
from grsgd.runs.measures import bytes_sent, seconds_per_step
from grsgd.runs.run_file import Run
from grsgd.units import rate

ALONE, NEVER = "one rank alone", "ranks that never communicate"
CONTROLS = (ALONE, NEVER)
"""What an algorithm is held against besides others, to see whether it is the communication that helps."""
MOST_BARS = 4
"""Groups of bars of a panel, beyond which there are lines over the number of ranks."""
CLOCK_SEEDS = DESK_SEEDS = 3
"""Of steps by the clock; of the main comparison at SCALE=desk, whose trainings are long."""
RATES = "5gbit", "50mbit"
"""Of links, beside the two of the scale."""
SECONDS = "Seconds to the target accuracy."
TIMES = "time to the target accuracy, in pairs of runs with the same seed"
ACCURACIES = "test accuracy of the averaged model after equally many samples, mean of the last snapshots"
SHARED_TRAJECTORY_NOTE = (
    "Synchronous algorithms do the same in a step whatever time it takes, so their time to the target accuracy is "
    "computed: steps to it, of trainings in simulated time, times the time of a step, measured or simulated. Those "
    "that apply the same gradient (ring all-reduce, SSGD, CSSGD) share the trainings of a single rank with a batch n "
    "times as large, or, with batch normalisation, of n ranks; they differ from it in the order of the samples and in "
    "rounding. The steps of overlapped SGP are those of messages that come in time, which favours it. Gossip is tested "
    "by the average of all models, which its training never forms."
)

Settings = dict[Setting, dict[str, Setting]]
"""By place and name."""

# ---- where algorithms are compared


def places(conditions: Conditions, scenarios: Iterable[Scenario], measured: Iterable[Scenario] = ()) -> list[Setting]:
    """Return where they are compared: simulated in all scenarios but those of really slow processors, by the clock in
    those of ``measured`` that can be had."""
    found = []
    for scenario in scenarios:
        if not scenario.slow_hosts:
            found += [Setting("", n, SIMULATED, scenario) for n in conditions.ranks(SIMULATED, scenario)]
        if scenario in measured:
            found += [Setting("", n, MEASURED, scenario) for n in conditions.ranks(MEASURED, scenario)]
    return found


def at(where: Iterable[Setting], configs: Mapping[str, str]) -> Settings:
    """Return the settings of all configurations at all places."""
    return {place: {name: place.but(config=config) for name, config in configs.items()} for place in where}


def each(need: Callable[[Setting], Need], settings: Settings) -> dict[Setting, Need]:
    """Return a need for each of the settings."""
    return {setting: need(setting) for some in settings.values() for setting in some.values()}


def settled(conditions: Conditions, setting: Setting) -> int | None:
    """Return how many steps are timed; None for the scale's number. What a slow rank does to others spreads by a rank
    per step on a ring: the time until then is to be a small part."""
    slow = setting.scenario.overrides or setting.scenario.slow_hosts
    return max(conditions.scale.steps, 4 * setting.ranks) if slow else None


def timed_steps(conditions: Conditions, settings: Settings) -> dict[Setting, Need]:
    """Return short runs of each of the settings; few by the clock, where each takes some seconds to begin."""

    def need(setting: Setting) -> Steps:
        few = min(CLOCK_SEEDS, conditions.scale.clock_seeds)
        return Steps(setting, few if setting.source == MEASURED else None, settled(conditions, setting))

    return each(need, settings)


def samples(found: Found, settings: Settings, value: Callable[[Run], float | None]) -> dict[Setting, dict[str, Sample]]:
    """Return a number of each run, by place and name."""
    return {
        place: {name: sample.of(found[one], value) for name, one in some.items()} for place, some in settings.items()
    }


def where(place: Setting) -> str:
    """Return the scenario, and the links if they are not those of the scale."""
    links = f"links of {place.link.rate}" if place.link else ""
    return ", ".join(filter(None, [links, place.scenario.name if place.scenario != EQUAL or not links else ""]))


def condition(place: Setting) -> str:
    return f"{where(place)}, n = {place.ranks}"


def show_values(section: Section, caption: str, values: Mapping[Setting, Mapping[str, Sample]], **figure):
    """Draw and tabulate numbers by place and name. figure: further arguments of ``Section.figure``."""
    names = list(dict.fromkeys(name for some in values.values() for name in some))
    titles = dict.fromkeys(map(where, values))
    panels = [
        panel(title, {place: some for place, some in values.items() if where(place) == title}) for title in titles
    ]
    section.figure(caption, panels, **figure)
    section.table(
        caption,
        ["ranks and links", "time", *names],
        [
            [where(place), source(place)] + [some[name].text() if name in some else "" for name in names]
            for place, some in values.items()
        ],
    )


def source(place: Setting) -> str:
    return f"{SOURCES[place.source]}, n = {place.ranks}"


def panel(title: str, values: Mapping[Setting, Mapping[str, Sample]]) -> Panel:
    """Return bars where there are few places, else lines over the number of ranks. At a single place, controls are
    horizontal lines, if their median is known."""
    drawn: dict[str, dict] = {}
    levels: dict[str, Sample] = {}
    for place, some in values.items():
        for name, one in some.items():
            if name in CONTROLS and len(values) == 1 and one.median() is not None:
                levels[name] = one
            elif len(values) <= MOST_BARS:
                drawn.setdefault(name, {})[source(place)] = one
            else:
                drawn.setdefault(f"{name}, {SOURCES[place.source]}", {})[place.ranks] = one
    grey = [label for label in drawn if label.startswith(CONTROLS)]
    if len(values) <= MOST_BARS:
        return Panel(title, "", "", bars=drawn, controls=grey, levels=levels)
    return Panel(title, "ranks n", "", lines=drawn, controls=grey, logx=True)


def is_desk(conditions: Conditions) -> bool:
    return conditions.scale.name == DESK.name


# ---- time to accuracy under scenarios


@dataclass(frozen=True)
class TimeToAccuracy:
    """One algorithm against others, in time to the target accuracy.

    Parameters
    ----------
    claims
        The claim that a comparison decides, by the name of the other algorithm.
    configs
        By name; the first is ours.
    alone
        The configuration of ranks that never communicate.
    scenarios
        With why a claim does not hold there, if it does not.
    measured
        Those of the scenarios that are made by the clock, too.
    by_clock, at_desk
        The names of what is compared by the clock, and at SCALE=desk, controls among them. Steps of the networks at
        SCALE=desk take so long that slow links make no difference, and trainings by the clock too long.
    """

    claims: Mapping[str, str]
    configs: Mapping[str, str]
    alone: str
    scenarios: Mapping[Scenario, str]
    measured: tuple[Scenario, ...]
    by_clock: tuple[str, ...]
    at_desk: tuple[str, ...]

    def settings(self, conditions: Conditions) -> Settings:
        if is_desk(conditions):
            fast = [scenario for scenario in self.scenarios if not scenario.slow_links]
            return self.of(places(conditions, fast), self.at_desk)
        there = places(conditions, self.scenarios, self.measured)
        by_clock = [place for place in there if place.source == MEASURED]
        simulated = [place for place in there if place.source != MEASURED]
        return self.of(simulated, (*self.configs, *CONTROLS)) | self.of(by_clock, self.by_clock)

    def of(self, there: Iterable[Setting], names: tuple[str, ...]) -> Settings:
        found = at(there, self.configs | dict.fromkeys(CONTROLS, self.alone))
        for some in found.values():
            some[ALONE] = some[ALONE].but(ranks=1, scenario=EQUAL)
        return {place: {name: some[name] for name in names} for place, some in found.items()}

    def needs(self, conditions: Conditions) -> dict[Setting, Need]:
        seeds = DESK_SEEDS if is_desk(conditions) else None
        return each(
            lambda setting: TimeToTarget(setting, seeds, settled(conditions, setting)), self.settings(conditions)
        )

    def show(self, found: Found, section: Section):
        times = {
            place: {name: found[one] for name, one in some.items()}
            for place, some in self.settings(found.conditions).items()
        }
        show_values(section, SECONDS, times)
        for claim in dict.fromkeys(self.claims.values()):
            cases = {place: self.cases(claim, place, some) for place, some in times.items()}
            reasons = dict.fromkeys(
                self.scenarios[place.scenario]
                for place, some in cases.items()
                if any(case.kind == EVIDENCE and case.verdict != SUPPORTED for case in some)
            )
            section.finding(claim, TIMES, [case for some in cases.values() for case in some], " ".join(reasons))
        section.note(SHARED_TRAJECTORY_NOTE)

    def cases(self, claim: str, place: Setting, times: Mapping[str, Sample]) -> list[Case]:
        """Return ours against the others that decide the claim, and against the controls, at one place."""
        ours, *_ = self.configs
        kinds = {other: EVIDENCE for other, decides in self.claims.items() if decides == claim}
        return [
            decide.less(times[ours], times[other], condition(place), other, source=place.source, kind=kind)
            for other, kind in (kinds | dict.fromkeys(CONTROLS, CONTROL)).items()
            if other in times
        ]


# ---- over the rate of the links


@dataclass(frozen=True)
class LinkRates:
    """One algorithm against others over the rate of the links, in simulated time, with the break-even: the ratio of
    communication to computation from which on it saves time.

    claim: what it decides. configs: by name; the first is ours. allreduce: the name of the ring all-reduce among them.
    alone: the configuration of ranks that never communicate. rates: of the links, beside those of the scale.
    """

    claim: str
    configs: Mapping[str, str]
    allreduce: str
    alone: str
    rates: tuple[str, ...] = RATES

    def settings(self, conditions: Conditions) -> Settings:
        scale = conditions.scale
        links = [Link(scale.rate), Link(scale.slow_rate), *(Link(links, nominal=True) for links in self.rates)]
        links.sort(key=lambda link: rate(link.rate), reverse=True)
        return at([Setting("", scale.tuning_ranks, link=link) for link in links], self.configs)

    def needs(self, conditions: Conditions) -> dict[tuple, Need]:
        settings = self.settings(conditions)
        return {("time", one): TimeToTarget(one) for some in settings.values() for one in some.values()} | {
            ("steps", one): Steps(one) for place in settings for one in self.steps(place)
        }

    def steps(self, place: Setting) -> tuple[Setting, Setting]:
        """Return the settings that tell communication from computation: steps with an all-reduce, and without."""
        return place.but(config=self.configs[self.allreduce]), place.but(config=self.alone, link=None)

    def show(self, found: Found, section: Section):
        ours, *others = self.configs
        times = {
            place: {name: found["time", one] for name, one in some.items()}
            for place, some in self.settings(found.conditions).items()
        }
        ratios = {place: self.ratio(found, place) for place in times}
        cases = {
            other: {
                ratios[place]: decide.less(some[ours], some[other], f"T_comm / T_calc = {ratios[place]:.2g}", other)
                for place, some in times.items()
            }
            for other in others
        }
        even = {other: BreakEven.of(over_ratios) for other, over_ratios in cases.items()}
        section.figure(
            f"Time to the target accuracy that {ours} saves, by the cost of communication. T_comm: how long the bytes "
            "of a ring all-reduce, 2(n-1)/n of the model, take on a link. T_calc: a step of ranks that never "
            "communicate. Vertical lines: the break-even.",
            [
                Panel(
                    f"n = {found.conditions.scale.tuning_ranks}, simulated",
                    "T_comm / T_calc",
                    "time saved [%]",
                    estimates=cases,
                    levels={"as much time": 0.0},
                    marks={other: one.at for other, one in even.items() if one.at is not None},
                    logx=True,
                )
            ],
        )
        section.table(
            f"From which T_comm / T_calc on {ours} saves time, with its 95 % interval: where the estimates, and the "
            "ends of their intervals, cross 0 between two rates of the links, interpolated on logarithmic scales.",
            ["against", "break-even"],
            [[other, one.text()] for other, one in even.items()],
        )
        section.table(
            SECONDS,
            ["links", "T_comm / T_calc", *self.configs],
            [
                [place.link.rate, f"{ratios[place]:.2g}", *(one.text() for one in some.values())]
                for place, some in times.items()
            ],
        )
        section.finding(self.claim, TIMES, [case for over_ratios in cases.values() for case in over_ratios.values()])
        section.note(SHARED_TRAJECTORY_NOTE)

    def ratio(self, found: Found, place: Setting) -> float:
        """Return T_comm / T_calc: seconds that an all-reduce's bytes take on a rank's link, by those of computing."""
        allreduce, alone = self.steps(place)
        sent = sample.of(found["steps", allreduce], bytes_of_a_step).median()
        computing = sample.of(found["steps", alone], seconds_per_step).median()
        return sent / rate(place.link.rate) / computing


def bytes_of_a_step(run: Run) -> float:
    return bytes_sent(run) / float(run.ranks["steps"].sum())


@dataclass(frozen=True)
class BreakEven:
    """Where a curve of savings over ratios crosses 0 for good: ``at``, and its interval from ``low`` to ``high``. None:
    nowhere up to the greatest ratio, ``last``. The smallest, ``first``, stands for there or anywhere below."""

    at: float | None
    low: float | None
    high: float | None
    first: float
    last: float

    @classmethod
    def of(cls, savings: Mapping[float, Case]) -> "BreakEven":
        at, low, high = (
            crossing({ratio: speed_up(getattr(case, limit)) for ratio, case in savings.items()})
            for limit in ("estimate", "high", "low")  # the most that may be saved comes first
        )
        return cls(at, low, high, min(savings), max(savings))

    def text(self) -> str:
        if self.low is None:
            return f"none up to {self.last:.2g}"
        at, low, high = (
            f"more than {self.last:.2g}" if ratio is None else f"{ratio:.2g}" + " or less" * (ratio == self.first)
            for ratio in (self.at, self.low, self.high)
        )
        return f"{at} ({low} to {high})"


def speed_up(saving: float | None) -> float | None:
    """Return the logarithm of the ratio of times that a saving in per cent is."""
    return None if saving is None else inf if saving >= 100 else -log1p(-saving / 100)


def crossing(curve: Mapping[float, float | None]) -> float | None:
    """Return the x from which on a curve is above 0, interpolated over the logarithm of x; the first x if it is above
    everywhere, None if it is not at its end."""
    points = sorted((x, y) for x, y in curve.items() if y is not None)
    if not points or points[-1][1] <= 0:
        return None
    below = [number for number, (_, y) in enumerate(points) if y <= 0]
    if not below:
        return points[0][0]
    (a, low), (b, high) = points[below[-1] : below[-1] + 2]
    return exp(log(a) + (log(b) - log(a)) * low / (low - high))


# ---- over options that are inferred


@dataclass(frozen=True)
class Robustness:
    """The verdict on one algorithm's time over the options that a paper leaves open, in simulated time.

    claim: what it decides. config: ours. other: name and configuration. options: overrides by name. scenario: where.
    """

    claim: str
    config: str
    other: tuple[str, str]
    options: Mapping[str, tuple[str, ...]]
    scenario: Scenario

    def settings(self, conditions: Conditions) -> Settings:
        place = Setting("", conditions.scale.tuning_ranks, scenario=self.scenario)
        ours = {option: place.but(config=self.config, overrides=some) for option, some in self.options.items()}
        name, config = self.other
        return {place: ours | {name: place.but(config=config)}}

    def needs(self, conditions: Conditions) -> dict[Setting, Need]:
        return each(
            lambda setting: TimeToTarget(setting, steps=settled(conditions, setting)), self.settings(conditions)
        )

    def show(self, found: Found, section: Section):
        ((place, settings),) = self.settings(found.conditions).items()
        times = {name: found[one] for name, one in settings.items()}
        other, _ = self.other
        show_values(section, SECONDS, {place: times})
        cases = [decide.less(times[option], times[other], option, other) for option in self.options]
        section.finding(self.claim, f"{TIMES}; {condition(place)}", cases)
        section.note("The learning rate is tuned with the defaults, and used with all options.")


# ---- accuracy after equally many samples


@dataclass(frozen=True)
class FinalAccuracy:
    """One algorithm's accuracy beside that of others after equally many samples, equal ranks and fast links, simulated.

    claim: that it is no worse. configs: by name; the first is ours, the second the one that it is held against. alone:
    the configuration of ranks that never communicate. reason: why it is worse, if it is.
    """

    claim: str
    configs: Mapping[str, str]
    alone: str
    reason: str

    def settings(self, conditions: Conditions) -> Settings:
        return at(places(conditions, [EQUAL]), self.configs | {NEVER: self.alone})

    def needs(self, conditions: Conditions) -> dict[Setting, Need]:
        return each(Trajectories, self.settings(conditions))

    def show(self, found: Found, section: Section) -> dict[Setting, dict[str, Sample]]:
        """Return the accuracies in per cent, by place and name."""
        settings = self.settings(found.conditions)
        section.figure(
            "Accuracy of the averaged model over epochs.",
            [
                Panel(
                    condition(place),
                    "epochs",
                    "test accuracy [%]",
                    curves={name: over_epochs(found[one]) for name, one in some.items()},
                    controls=CONTROLS,
                )
                for place, some in settings.items()
            ],
            times=False,
        )
        last = samples(found, settings, final_accuracy)
        show_values(section, "Accuracy at the end [%].", last, times=False)
        ours, other, *_ = self.configs
        cases = [
            decide.no_worse(some[ours], some[other], condition(place), other, source="") for place, some in last.items()
        ]
        section.finding(self.claim, ACCURACIES, cases, self.reason)
        return last


def over_epochs(runs: Iterable[Run]) -> dict[int, tuple]:
    """Return the accuracy in per cent over epochs, by seed."""
    return {
        int(run.attributes["seed"]): (
            run.curve["samples"] / run.attributes["train_samples"],
            100 * run.curve["test_accuracy"],
        )
        for run in runs
    }


def quotient(ours: Sample, theirs: Sample) -> Sample:
    """Return ours by theirs, of the seeds that both have."""
    pairs = {seed: (value, theirs.values.get(seed)) for seed, value in ours.values.items()}
    return Sample({seed: a / b for seed, (a, b) in pairs.items() if a is not None and b})
