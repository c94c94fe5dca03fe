"""The comparison of times to the target accuracy at several rates of the links.

The break-even is the cost of communication from which on an algorithm saves time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, inf, log, log1p

from experiments.runner import decide, sample
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Need, Steps, TimeToTarget
from experiments.runner.outcome import BreakEven, Case
from experiments.runner.run_spec import Link
from experiments.runner.setting import Setting
from experiments.tables.compare import SECONDS, SHARED_TRAJECTORY_NOTE, TIMES, Settings, settings_at
from experiments.tables.draw import Panel
from experiments.tables.section import Section
from experiments.tables.targets import Found
from grsgd.runs.measures import bytes_sent, seconds_per_step
from grsgd.runs.run_file import Run
from grsgd.units import rate

RATES = "5gbit", "50mbit"
"""Rates of links at which times are compared, in addition to the two rates of the scale."""


@dataclass(frozen=True)
class LinkRates:
    """The comparison of one algorithm's time with other algorithms', over the rate of the links, in simulated time.

    The break-even is the ratio of communication to computing time from which on the algorithm saves time.

    claim: the id of the claim for which the comparison is evidence. configs: configurations by name; the first is the
    algorithm of the claim. allreduce: name of the ring all-reduce in ``configs``. alone: the configuration of ranks
    that never communicate. rates: rates of links in addition to the rates of the scale.
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
        return settings_at([Setting("", scale.tuning_ranks, link=link) for link in links], self.configs)

    def needs(self, conditions: Conditions) -> dict[tuple, Need]:
        settings = self.settings(conditions)
        return {("time", one): TimeToTarget(one) for some in settings.values() for one in some.values()} | {
            ("steps", one): Steps(one) for place in settings for one in self.steps(place)
        }

    def steps(self, place: Setting) -> tuple[Setting, Setting]:
        """Return the settings of two runs, with an all-reduce and without messages.

        The two runs give the time of communication and the time of computing in a step.
        """
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
        links = found.conditions.scale.rate, found.conditions.scale.slow_rate
        here = [ratio for place, ratio in ratios.items() if place.link.rate in links]
        even = {other: break_even(ours, other, over_ratios, here) for other, over_ratios in cases.items()}
        section.break_even(*even.values())
        section.figure(
            f"Time to the target accuracy that {ours} saves, over the cost of communication. T_comm is the time of the "
            "bytes of a ring all-reduce, 2(n-1)/n of the model, on a link. T_calc is the time of a step of ranks that "
            "never communicate. Vertical lines mark the break-even.",
            [
                Panel(
                    f"n = {found.conditions.scale.tuning_ranks}, simulated",
                    "T_comm / T_calc",
                    "time saved [%]",
                    estimates=cases,
                    levels={"equal times": 0.0},
                    marks={other: one.at for other, one in even.items() if one.at is not None},
                    logx=True,
                )
            ],
        )
        section.table(
            f"The break-even: the T_comm / T_calc from which on {ours} saves time, with its 95 % interval. The "
            "estimates, and the ends of their intervals, cross 0 there; they are interpolated between two rates of the "
            "links on logarithmic scales.",
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
        """Return T_comm / T_calc: the seconds of an all-reduce's bytes on a rank's link, divided by the computing time.
        """
        allreduce, alone = self.steps(place)
        sent = sample.of(found["steps", allreduce], bytes_of_a_step).median()
        computing = sample.of(found["steps", alone], seconds_per_step).median()
        return sent / rate(place.link.rate) / computing


def bytes_of_a_step(run: Run) -> float:
    return bytes_sent(run) / float(run.ranks["steps"].sum())


def break_even(method: str, against: str, savings: Mapping[float, Case], here: Iterable[float] = ()) -> BreakEven:
    """Return the break-even: the ratio of communication to computing time from which on the savings stay above 0.

    savings: comparisons (cases) by ratio of communication to computing time. here: the ratios that the testbed's links
    give.
    """
    at, low, high = (
        crossing({ratio: speed_up(getattr(case, limit)) for ratio, case in savings.items()})
        # the interval's end ``high``, the greatest possible saving, crosses 0 at a lower ratio than ``low``
        for limit in ("estimate", "high", "low")
    )
    return BreakEven(method, against, at, low, high, min(savings), max(savings), sorted(here))


def speed_up(saving: float | None) -> float | None:
    """Return the logarithm of the ratio of two times, given the saving in per cent."""
    return None if saving is None else inf if saving >= 100 else -log1p(-saving / 100)


def crossing(curve: Mapping[float, float | None]) -> float | None:
    """Return the x from which on a curve stays above 0, interpolated between points over the logarithm of x.

    Returns the least x if all points of the curve are above 0, and None if the point with the greatest x is not above
    0.
    """
    points = sorted((x, y) for x, y in curve.items() if y is not None)
    if not points or points[-1][1] <= 0:
        return None
    below = [number for number, (_, y) in enumerate(points) if y <= 0]
    if not below:
        return points[0][0]
    (a, low), (b, high) = points[below[-1] : below[-1] + 2]
    return exp(log(a) + (log(b) - log(a)) * low / (low - high))
