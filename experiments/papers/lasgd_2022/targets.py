"""The figures of LASGD (Avidor, Tal-Israel 2022), against synchronous SGD and gossip."""

import math
from collections.abc import Iterable

from experiments.tables.compare import rank_counts, time_to_accuracy
from experiments.tables.draw import Panel
from experiments.tables.numbers import best_accuracy, each, median_and_range, median_or_nan
from experiments.tables.requests import EQUAL, SLOW_LINKS, SOURCES, STRAGGLER, RunRequests, Scenario
from experiments.tables.run_spec import MEASURED, SIMULATED, Link
from experiments.tables.section import Section
from experiments.tables.targets import target
from grsgd.runs.measures import samples_to_target
from grsgd.runs.run_file import Run

LASGD, RING, ADPSGD, SGP = "LASGD", "SGD, ring all-reduce", "AD-PSGD", "SGP"
ALL = {LASGD: "lasgd/lasgd", RING: "lasgd/ring_allreduce", ADPSGD: "lasgd/adpsgd", SGP: "lasgd/sgp"}
SCENARIOS = {
    EQUAL: "With equal ranks and fast links there is little to wait for, and averages of models come later than "
    "those of gradients.",
    STRAGGLER: "The slow rank's processor delays all averages, and gossip does not wait for it either.",
    SLOW_LINKS: "An all-reduce of all models takes long where links are slow: the average is late, and models differ.",
}
SLOWDOWN = 4
"""How many times slower a slow rank is."""
TWO_STRAGGLERS = Scenario("two ranks 4 times slower", (*STRAGGLER.overrides, "stragglers.slowdown.2=4.0"))
SLOW_RANKS = {EQUAL: 0, STRAGGLER: 1, TWO_STRAGGLERS: 2}
SLOWEST_RATE = "50mbit"
"""A rate of links beside the two of the scale."""
MIN_EFFICIENCY = 0.9
"""Least share of the speed of ranks that compute alone that is called near it."""
SEEDS = range(2)
"""Seeds of trainings that only this paper's side questions need."""
ALONE = "lasgd/local_sgd", ("algorithm.H=1000000000",)
"""Ranks that compute as all others do, and never communicate."""
MERGES = {
    "delta": ("lasgd/lasgd", ()),
    "overwrite": ("lasgd/lasgd", ("algorithm.merge=overwrite",)),
    "anchor": ("lasgd/lasgd", ("algorithm.merge=anchor",)),
    "cocod, 4 steps": ("lasgd/lasgd", ("algorithm.merge=cocod", "algorithm.Hmin=4")),
    **{f"Local SGD, H = {H}": ("lasgd/local_sgd", (f"algorithm.H={H}",)) for H in (1, 4, 16)},
}
"""Configuration and overrides."""


def is_synchronous(requests: RunRequests, config: str) -> bool:
    return requests.load(config).traits.synchronous


def distance(run: Run) -> float:
    """Return the distance of the ranks' models from their average at the last snapshot."""
    return float(run.curve["consensus_distance"][-1])


# ---- time to accuracy


@target("lasgd-time-to-acc", "Time to a fixed accuracy: LASGD, synchronous SGD, gossip")
def time_to_acc(requests, section):
    time_to_accuracy(requests, section, "lasgd-time", ALL, SCENARIOS, "ring all-reduce, SGP")
    best = {
        name: {n: best_accuracies(requests, config, n, seeds=None) for n in rank_counts(requests, SIMULATED)}
        for name, config in ALL.items()
    }
    section.table(
        "Best test accuracy [%] within equally many samples, equal ranks and fast links, simulated: median (range) of "
        "the seeds.",
        ["ranks", *ALL],
        [
            [f"n = {n}", *(median_and_range(in_percent(best[name][n]), ".1f") for name in ALL)]
            for n in rank_counts(requests, SIMULATED)
        ],
    )
    cases, texts = {}, []
    for gossip in (ADPSGD, SGP):
        for n in rank_counts(requests, SIMULATED):
            cases[f"n = {n}, against {gossip}"] = at_least(best[LASGD][n], best[gossip][n])
        texts.append(f"{in_points(best, gossip)} {gossip}")
    section.finding(
        "lasgd-accuracy",
        f"best accuracy of LASGD: {'; '.join(texts)}; {in_points(best, RING)} synchronous SGD",
        "averaged models, after equally many samples, simulated, all n, equal ranks and fast links",
        cases,
        "LASGD's averages are of all models, but late: each is of the models of some steps ago. "
        "Few ranks mix well by gossip, too, and it is their average that is tested.",
    )


def best_accuracies(requests: RunRequests, config: str, n: int, scenario=EQUAL, extra=(), seeds=SEEDS) -> list[float]:
    """Return best accuracies by seed, of trainings in simulated time."""
    return numbers(requests, best_accuracy, config, n, scenario, extra, seeds)


def numbers(requests: RunRequests, value, config: str, n: int, scenario=EQUAL, extra=(), seeds=SEEDS) -> list[float]:
    """Return a number by seed, of trainings in simulated time; a synchronous one is the same in every scenario."""
    if is_synchronous(requests, config):
        return each(value, requests.curves(config, n, extra, seeds))
    return requests.measure(value, config, n, SIMULATED, scenario, extra, seeds)


def at_least(ours: Iterable[float], theirs: Iterable[float]) -> bool | None:
    """Return whether ours is at least theirs, by medians; None if one is not known."""
    a, b = median_or_nan(ours), median_or_nan(theirs)
    return None if math.isnan(a) or math.isnan(b) else a >= b


def in_percent(values: Iterable[float]) -> list[float]:
    return [100 * value for value in values]


def in_points(best: dict[str, dict[int, list[float]]], other: str) -> str:
    """Return how much more accurate LASGD is than the other, over all n, in words."""
    gains = [100 * (median_or_nan(values) - median_or_nan(best[other][n])) for n, values in best[LASGD].items()]
    return f"{min(gains):+.1f} to {max(gains):+.1f} points against"


# ---- throughput


@target("lasgd-throughput", "Samples per second over ranks and over bandwidth")
def throughput(requests, section):
    places = {SIMULATED: requests.scale.many_ranks, MEASURED: requests.scale.clock_ranks}
    over_ranks = {
        (name, source): {n: [fraction(requests, config, n, source)] for n in some}
        for name, config in ALL.items()
        for source, some in places.items()
    }
    n = requests.scale.tuning_ranks
    rates = (requests.scale.rate, requests.scale.slow_rate, SLOWEST_RATE)
    over_rates = {
        name: {rate: [fraction(requests, config, n, SIMULATED, Link(rate))] for rate in rates}
        for name, config in ALL.items()
    }
    slow = {
        name: {
            n: [fraction(requests, config, n, MEASURED, Link(requests.scale.slow_rate))]
            for n in rank_counts(requests, MEASURED, SLOW_LINKS)
        }
        for name, config in ALL.items()
    }
    bars = {f"{name}, {SOURCES[SIMULATED]}": shares for name, shares in over_rates.items()}
    lines = {f"{name}, {SOURCES[source]}": shares for (name, source), shares in over_ranks.items()}
    section.figure(
        "Samples per second, as a fraction of those of ranks that compute alone and never communicate: over the number "
        f"of ranks with links of {requests.scale.rate}, and over the rate of the links.",
        [
            Panel(f"links of {requests.scale.rate}", "ranks n", "fraction of computing alone", lines, logx=True),
            Panel(f"n = {n}, simulated", "link", "fraction of computing alone", bars=bars),
        ],
    )
    shown = {*requests.scale.clock_ranks, *requests.scale.ranks, *places[SIMULATED][-2:]}
    fast_links = [
        throughput_row(requests.scale.rate, source, m, [over_ranks[name, source][m] for name in ALL])
        for source, some in places.items()
        for m in some
        if m in shown
    ]
    slower = [throughput_row(rate, SIMULATED, n, [over_rates[name][rate] for name in ALL]) for rate in rates[1:]]
    slow_links = [
        throughput_row(requests.scale.slow_rate, MEASURED, m, [slow[name][m] for name in ALL])
        for m in rank_counts(requests, MEASURED, SLOW_LINKS)
    ]
    section.table(
        "Samples per second, as a fraction of those of ranks that compute alone.",
        ["links", "time and ranks", *ALL],
        fast_links + slower + slow_links,
    )
    find_throughput(requests, section, over_ranks, over_rates, slow)


def throughput_row(rate: str, source: str, n: int, values: list[list[float]]) -> list[str]:
    return [rate, f"{SOURCES[source]}, n = {n}", *(median_and_range(some, ".2f") for some in values)]


def find_throughput(requests: RunRequests, section: Section, over_ranks: dict, over_rates: dict, slow: dict):
    """Write the finding on the throughput of LASGD."""
    shares = {
        f"simulated, up to {max(requests.scale.many_ranks)} ranks": over_ranks[LASGD, SIMULATED],
        "simulated, any rate": over_rates[LASGD],
        f"measured, links of {requests.scale.rate}": over_ranks[LASGD, MEASURED],
        **({f"measured, links of {requests.scale.slow_rate}": slow[LASGD]} if requests.emulated else {}),
    }
    least = {where: min(value for values in found.values() for value in values) for where, found in shares.items()}
    cases = {where: None if math.isnan(share) else share >= MIN_EFFICIENCY for where, share in least.items()}
    section.finding(
        "lasgd-throughput",
        "at least " + ", ".join(f"{share:.2f} ({where})" for where, share in least.items()),
        f"samples per second as a fraction of those of as many ranks that never communicate; near them: at least "
        f"{MIN_EFFICIENCY:g}",
        cases,
        "Where it is less, the all-reduce takes the processor's time from the training that "
        "goes on beside it; simulated time does not have this effect.",
    )
    section.note(
        "LASGD and AD-PSGD never wait in their training, so samples per second say what their background costs the "
        "processor, and not how well models are mixed: with slow links or many ranks averages are late or rare instead."
    )


def fraction(requests: RunRequests, config: str, n: int, source: str, link: Link | None = None) -> float:
    """Return samples per second, as a fraction of those of n ranks that compute alone."""
    return computing_alone(requests, n, source, link=link) / requests.seconds_per_step(config, n, source, link=link)


def computing_alone(requests: RunRequests, n: int, source: str, scenario=EQUAL, link: Link | None = None) -> float:
    """Return seconds a step of ranks that never communicate."""
    config, extra = ALONE
    return requests.seconds_per_step(config, n, source, scenario, extra, link=link)


# ---- stragglers


@target("lasgd-straggler", "One and two slow ranks: LASGD, synchronous SGD, AD-PSGD")
def straggler(requests, section):
    configs = {name: ALL[name] for name in (LASGD, RING, ADPSGD)}
    some = requests.scale.ranks[-2:]
    times = {
        (scenario, n): {
            name: requests.seconds(config, n, SIMULATED, scenario, seeds=SEEDS) for name, config in configs.items()
        }
        for scenario, slow in SLOW_RANKS.items()
        for n in some
        if n > slow
    }
    steps = straggler_steps(requests, configs, some)
    section.figure(
        f"Time to the target accuracy, simulated, with ranks that are {SLOWDOWN} times slower; median and range of the "
        "seeds.",
        [
            Panel(
                f"n = {n}",
                "slow ranks",
                "time to accuracy [s]",
                bars={
                    name: {str(SLOW_RANKS[scenario]): values[name] for (scenario, m), values in times.items() if m == n}
                    for name in configs
                },
            )
            for n in some
        ],
    )
    section.table(
        "Seconds to the target accuracy, simulated: median (range) of the seeds.",
        ["ranks", "n", *configs],
        [[scenario.name, n, *map(median_and_range, values.values())] for (scenario, n), values in times.items()],
    )
    section.table(
        "Milliseconds in which n ranks take n steps. Alone: they never communicate, and a slow rank merely does less.",
        ["ranks", "time and ranks", "alone", *configs],
        [
            [scenario.name, f"{SOURCES[source]}, n = {n}", *(f"{1000 * seconds:.1f}" for seconds in values.values())]
            for (scenario, source, n), values in steps.items()
        ],
    )
    find_straggler(section, steps)


def straggler_steps(requests: RunRequests, configs: dict[str, str], simulated: tuple[int, ...]) -> dict:
    """Return the seconds of a step by scenario, source and n, then by name; ``simulated``: n in simulated time."""
    return {
        (scenario, source, n): {
            "alone": computing_alone(requests, n, source, scenario),
            **{name: requests.seconds_per_step(config, n, source, scenario) for name, config in configs.items()},
        }
        for scenario, slow in SLOW_RANKS.items()
        for source, several in ((MEASURED, requests.scale.clock_ranks), (SIMULATED, simulated))
        for n in several
        if n > slow and (source == SIMULATED or scenario is not TWO_STRAGGLERS)
    }


def find_straggler(section: Section, steps: dict):
    """Write the finding on slow ranks, from the seconds of steps."""
    with_slow = {where: values for where, values in steps.items() if where[0] is not EQUAL}
    shares = {where: values["alone"] / values[LASGD] for where, values in with_slow.items()}
    paces = {
        (scenario, source, n): values[RING] / (SLOWDOWN * steps[EQUAL, source, n]["alone"])
        for (scenario, source, n), values in with_slow.items()
    }
    cases = {}
    for source, word in ((MEASURED, "measured"), (SIMULATED, "simulated")):
        cases[f"LASGD, {word}"] = all_near(shares, source)
        cases[f"all-reduce, {word}"] = all_near(paces, source)
    section.finding(
        "lasgd-straggler",
        f"steps per second of LASGD: {of_range(shares)} of those of ranks that never communicate; a step with an "
        f"all-reduce takes {of_range(paces)} times as long as one of a slow rank alone",
        f"one rank, and in simulated time also two, {SLOWDOWN} times slower. It holds for LASGD with at least "
        f"{MIN_EFFICIENCY:g} of those steps, for the all-reduce if a step takes at least {MIN_EFFICIENCY:g} times that "
        "long",
        cases,
        "What LASGD lacks is the processor's time for the all-reduce beside its steps, which simulated time does "
        "not count; steps of a short run differ by chance, too.",
    )


def all_near(shares: dict, source: str) -> bool | None:
    known = [share for where, share in shares.items() if where[1] == source and not math.isnan(share)]
    return min(known) >= MIN_EFFICIENCY if known else None


def of_range(shares: dict) -> str:
    return f"{min(shares.values()):.2f} to {max(shares.values()):.2f}"


# ---- merge rules


@target("lasgd-merge-ablation", "Merge rules side by side, and local SGD")
def merge_ablation(requests, section):
    n = requests.scale.tuning_ranks
    best, apart, samples, times = {}, {}, {}, {}
    for scenario in (EQUAL, SLOW_LINKS):
        for name, (config, extra) in MERGES.items():
            where = scenario.name, name
            best[where] = in_percent(numbers(requests, best_accuracy, config, n, scenario, extra))
            apart[where] = numbers(requests, distance, config, n, scenario, extra)
            samples[where] = numbers(requests, samples_to_target, config, n, scenario, extra)
            times[where] = requests.seconds(config, n, SIMULATED, scenario, extra, SEEDS)
    section.figure(
        f"Merge rules of LASGD, and local SGD, n = {n}, simulated; median and range of the seeds.",
        [
            Panel(
                scenario.name,
                "",
                "time to accuracy [s]",
                bars={name: {"": times[scenario.name, name]} for name in MERGES},
            )
            for scenario in (EQUAL, SLOW_LINKS)
        ],
    )
    section.table(
        f"Merge rules, and local SGD, n = {n}, simulated: median (range) of the seeds.",
        ["links", "rule", "best accuracy [%]", "consensus distance", "thousand samples to the target", "seconds to it"],
        [
            [
                *where,
                median_and_range(best[where], ".1f"),
                median_and_range(apart[where]),
                median_and_range(v / 1000 for v in samples[where]),
            ]
            + [median_and_range(times[where])]
            for where in best
        ],
    )
    cases = {
        scenario.name: at_least(best[scenario.name, "delta"], best[scenario.name, "overwrite"])
        for scenario in (EQUAL, SLOW_LINKS)
    }
    section.finding(
        "lasgd-merge",
        "; ".join(
            f"{scenario.name}: delta {median_and_range(best[scenario.name, 'delta'], '.1f')} %, "
            f"overwrite {median_and_range(best[scenario.name, 'overwrite'], '.1f')} %"
            for scenario in (EQUAL, SLOW_LINKS)
        ),
        f"best accuracy of the averaged model after equally many samples, simulated, n = {n}, delta's learning rate",
        cases,
        "Where few steps are taken during an all-reduce, few are dropped; overwriting makes "
        "all models equal instead, and the rest is within the seeds' range.",
    )
    section.note(
        "The distance of Local SGD's models depends on how many steps after an average the last snapshot lies; right "
        "after one there is none."
    )
