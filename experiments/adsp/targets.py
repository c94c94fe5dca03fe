"""The figures of adsp (Wang, Zhu 2024): strategies of a parameter server under constant and random delays."""

import math

from experiments.adsp.runs import (
    ALL,
    BOTH,
    BOUNDED,
    BUCKETS,
    CONSTANT,
    DELAYS,
    FACTOR,
    NONE,
    OTHERS,
    OURS,
    PROBABILITY,
    RANDOM,
    RATIO,
    SLOW,
    THRESHOLDS,
    bounds,
    curve,
    delay,
    first,
    gradients_of,
    mean_staleness,
    measured_on,
    numbers,
    pushes_per_second,
    pushes_per_second_at_the_end,
    scenario,
    settings,
    share_of,
    simulated,
    workers,
)
from experiments.reproduce.cell import CLOCK, SIMULATED
from experiments.reproduce.compare import claim, extent
from experiments.reproduce.draw import Panel
from experiments.reproduce.lab import (
    A_DIFFERENCE,
    SOURCES,
    Lab,
    Page,
    all_at_least,
    best_accuracy,
    each,
    less,
    middle,
    percent,
    rises,
    saving,
    seconds_to,
    spread,
)
from experiments.reproduce.targets import target
from grsgd.results import Run

LEAST = A_DIFFERENCE[SIMULATED]
TOLERANCE = LEAST / 100
"""By which a number may fall and still counts as one that does not."""

WORDS = (
    f"One slow worker: worker {SLOW} computes {FACTOR:g} times longer. Random delays: every step of every worker takes "
    f"longer with probability {PROBABILITY:g}, by {{:g}} s on average, exponentially distributed. n is the number of "
    "workers; the server is one rank more. All strategies take the same step a sample, and train on alike shards."
)
ALIKE = "Workers have alike shards: late gradients cost little accuracy, and ASP, which never waits, gains."
BEHIND = "Once the others lead by all they may, they step at the pace of the slow worker, as with BSP."
REASONS = {
    NONE: "Equal workers leave nothing to adapt to.",
    CONSTANT: f"With one slow worker: {BEHIND[0].lower()}{BEHIND[1:]} A strategy without a bound goes on.",
    RANDOM: ALIKE,
    BOTH: ALIKE,
}
"""Why adsp is not faster than each of the others."""


@target("adsp-convergence-time", "Time to a fixed accuracy: adsp, BSP, ASP, SSP, DSSP")
def convergence_time(lab, page):
    """Simulated: all delays on `tuning_ranks` workers; random ones, and those that are measured, on other numbers of
    workers with a single seed. Measured: on the fewest workers of the clock."""
    times = {
        (kind, source, n): {
            name: lab.seconds(config, n, source, scenario(lab, kind, n), seeds=seeds) for name, config in ALL.items()
        }
        for kind, source, n, seeds in settings(lab)
    }
    decisive = {key: values for key, values in times.items() if key[1] == CLOCK or key[2] == workers(lab)}
    page.figure(
        "Time to the target accuracy; median and range of the seeds.",
        [
            Panel(
                f"simulated, n = {workers(lab)}",
                "delays",
                "time to accuracy [s]",
                bars={
                    name: {wrapped(kind): times[kind, SIMULATED, workers(lab)][name] for kind in (NONE, *DELAYS)}
                    for name in ALL
                },
            ),
            Panel(
                f"measured, n = {measured_on(lab)}",
                "delays",
                "time to accuracy [s]",
                bars={
                    name: {wrapped(kind): times[kind, CLOCK, measured_on(lab)][name] for kind in (CONSTANT, RANDOM)}
                    for name in ALL
                },
            ),
            Panel(
                "simulated, random delays",
                "workers n",
                "time to accuracy [s]",
                lines={name: {n: times[RANDOM, SIMULATED, n][name] for n in numbers(lab)} for name in ALL},
                logx=True,
            ),
        ],
    )
    page.table(
        "Seconds to the target accuracy: median (range) of the seeds.",
        ["delays", "time", *ALL],
        [[kind, f"{SOURCES[source]}, n = {n}", *map(spread, t.values())] for (kind, source, n), t in times.items()],
    )
    page.table(
        "How much less or more time adsp takes than each other strategy, by medians.",
        ["delays", "time", *OTHERS],
        [
            [kind, f"{SOURCES[source]}, n = {n}", *(percent(saving(t[OURS], t[other])) for other in OTHERS)]
            for (kind, source, n), t in times.items()
        ],
    )
    savings = {
        (kind, other): [saving(t[OURS], t[other]) for (k, _, _), t in decisive.items() if k == kind]
        for kind in (NONE, *DELAYS)
        for other in OTHERS
    }
    least = claim("adsp-time")["low"]
    cases = {f"{kind}, against {other}": all_at_least(values, least) for (kind, other), values in savings.items()}
    why = [reason for kind, reason in REASONS.items() if not all(cases[f"{kind}, against {o}"] for o in OTHERS)]
    page.finding(
        "adsp-time",
        "; ".join(
            f"{kind}: " + ", ".join(f"{extent(savings[kind, other])} than {other}" for other in OTHERS)
            for kind in (NONE, *DELAYS)
        ),
        f"time to accuracy, simulated with n = {workers(lab)}; {CONSTANT} and {RANDOM} also measured with "
        f"n = {measured_on(lab)}; a condition counts if all of its savings are at least {least:g} %",
        cases,
        " ".join(dict.fromkeys(why)),
    )
    note(lab, page)
    page.note("Numbers of workers other than those of the finding have a single seed, and show a tendency only.")


@target("adsp-accuracy", "Best accuracy after equally many samples: adsp, BSP, ASP, SSP, DSSP")
def accuracy(lab, page):
    n = workers(lab)
    best = {kind: simulated(lab, best_accuracy, kind) for kind in (NONE, *DELAYS)}
    points = {
        (kind, other): [100 * (a - b) for a, b in zip(best[kind][OURS], best[kind][other], strict=True)]
        for kind in best
        for other in OTHERS
    }
    page.figure(
        "Test accuracy by samples, of the first seed.",
        [
            Panel(
                kind,
                "samples of all workers [thousands]",
                "test accuracy",
                curves={name: [curve(run) for run in first(lab, config, kind)] for name, config in ALL.items()},
            )
            for kind in DELAYS
        ],
        times=False,
    )
    page.table(
        f"Highest test accuracy [%] of any snapshot: median (range) of the seeds; simulated, n = {n}.",
        ["delays", *ALL],
        [[kind, *(spread((100 * a for a in values), ".1f") for values in best[kind].values())] for kind in best],
    )
    page.table(
        "Points of accuracy that adsp has more than each other, seed by seed: median (range).",
        ["delays", *OTHERS],
        [[kind, *(spread(points[kind, other], "+.2f") for other in OTHERS)] for kind in best],
    )
    medians = [middle(values) for values in points.values()]
    page.finding(
        "adsp-accuracy",
        f"from {min(medians):+.2f} to {max(medians):+.2f} points, medians of the seeds",
        f"best snapshot after as many samples, simulated, n = {n}; a condition counts if every seed of adsp is "
        "above all of the other",
        {f"{kind}, against {other}": separated(best[kind][OURS], best[kind][other]) for kind, other in points},
        f"The paper has up to {claim('adsp-accuracy')['high']:g} points. Shards are alike here and all strategies take "
        "the same step a sample, so there is little accuracy to lose by late gradients.",
    )
    note(lab, page)


@target("adsp-staleness", "How late gradients are, and whose they are")
def staleness(lab, page):
    n = workers(lab)
    found = {
        (kind, source, number, name): lab.runs(config, number, source, scenario(lab, kind, number))
        for source, number, kinds in (
            (SIMULATED, n, (NONE, *DELAYS)),
            (CLOCK, measured_on(lab), (CONSTANT, RANDOM)),
        )
        for kind in kinds
        for name, config in ALL.items()
    }
    ages = {kind: {name: each(mean_staleness, found[kind, SIMULATED, n, name]) for name in ALL} for kind in DELAYS}
    page.figure(
        "Shares of gradients by their staleness, in updates of the model; median and range of the seeds.",
        [
            Panel(
                kind,
                "staleness [updates]",
                "share of gradients [%]",
                bars={
                    name: {bucket: each(share_of(bucket), found[kind, SIMULATED, n, name]) for bucket in BUCKETS}
                    for name in ALL
                },
            )
            for kind in DELAYS
        ],
        times=False,
    )
    page.table(
        "Staleness of gradients in updates of the model, the mean and shares by staleness; shares of each worker in "
        "the gradients; pushes of all workers per second. Medians of the seeds.",
        ["delays", "time", "strategy", "mean", *(f"{b} [%]" for b in BUCKETS), "of each worker [%]", "pushes/s"],
        [
            [kind, f"{SOURCES[source]}, n = {number}", name, *staleness_row(trainings, number)]
            for (kind, source, number, name), trainings in found.items()
        ],
    )
    page.finding(
        "adsp-staleness",
        "; ".join(
            f"{kind}: mean {middle(ages[kind][OURS]):.2f} updates, ASP {middle(ages[kind]['ASP']):.2f}, "
            f"BSP {middle(ages[kind]['BSP']):.2f}"
            for kind in DELAYS
        ),
        f"updates of the model between a gradient's pull and its push, simulated, n = {n}",
        {kind: less(ages[kind][OURS], ages[kind]["ASP"]) and middle(ages[kind]["BSP"]) == 0 for kind in DELAYS},
        "A bound that is seldom reached changes little: ASP's staleness is n - 1 on average, whatever the delays.",
    )
    note(lab, page)
    page.note("BSP takes the n gradients of a round in one update; the others take one gradient or a few in each.")


@target("adsp-threshold", "The threshold s of adsp, with random delays")
def threshold(lab, page):
    n, seeds = workers(lab), range(2)
    swept = {"BSP": ("BSP", ())}
    swept |= {f"s = {s}, smax = {RATIO * s}": (OURS, bounds(lab, s)) for s in THRESHOLDS}
    swept |= {"ASP": ("ASP", ())}
    trainings = {
        label: lab.runs(ALL[name], n, SIMULATED, scenario(lab, RANDOM, n), extra, seeds)
        for label, (name, extra) in swept.items()
    }
    measures = (pushes_per_second, mean_staleness, seconds_to, best_accuracy)
    found = {label: {value: each(value, runs) for value in measures} for label, runs in trainings.items()}
    page.figure(
        "BSP, adsp with growing thresholds, and ASP, simulated; median and range of the seeds.",
        [
            Panel("speed", "s of adsp", "pushes per second", bars=bars(found, pushes_per_second)),
            Panel("staleness", "s of adsp", "mean staleness [updates]", bars=bars(found, mean_staleness)),
            Panel("both together", "s of adsp", "time to accuracy [s]", bars=bars(found, seconds_to)),
        ],
    )
    page.table(
        f"Random delays, simulated, n = {n}: median (range) of the seeds.",
        ["strategy", "pushes/s", "mean staleness", "to accuracy [s]", "best accuracy [%]"],
        [
            [
                label,
                *(spread(values[value]) for value in (pushes_per_second, mean_staleness, seconds_to)),
                spread((100 * a for a in values[best_accuracy]), ".1f"),
            ]
            for label, values in found.items()
        ],
    )
    speeds = [middle(values[pushes_per_second]) for values in found.values()]
    ages = [middle(values[mean_staleness]) for values in found.values()]
    page.finding(
        "adsp-threshold",
        f"from s = {THRESHOLDS[0]} to {THRESHOLDS[-1]}: {speeds[1]:.3g} to {speeds[-2]:.3g} pushes/s, staleness "
        f"{ages[1]:.2f} to {ages[-2]:.2f}; BSP {speeds[0]:.3g} and {ages[0]:.2f}, "
        f"ASP {speeds[-1]:.3g} and {ages[-1]:.2f}",
        f"random delays, simulated, n = {n}; what falls by less than {TOLERANCE:.0%} counts as not falling",
        {
            "speed, from each s to the next": rises(speeds[1:-1], TOLERANCE),
            "staleness, from each s to the next": rises(ages[1:-1], TOLERANCE),
            "speed, between BSP and ASP": within_ends(speeds),
            "staleness, between BSP and ASP": within_ends(ages),
        },
        "Gradients that wait in the buffer grow stale there, and leave it together, in one update.",
    )
    note(lab, page)


@target("adsp-heterogeneity", "A worker that is slow all the time, random delays, and both")
def heterogeneity(lab, page):
    n = workers(lab)
    times = {kind: simulated(lab, seconds_to, kind) for kind in DELAYS}
    ends = {kind: simulated(lab, pushes_per_second_at_the_end, kind) for kind in (NONE, *DELAYS)}
    relative = {
        name: {kind: [seconds / middle(times[kind]["BSP"]) for seconds in times[kind][name]] for kind in DELAYS}
        for name in ALL
    }
    page.figure(
        "Left: time to the target accuracy, in that of BSP. Right: speed in the second half of the training.",
        [
            Panel(
                f"simulated, n = {n}",
                "delays",
                "time relative to BSP",
                bars={name: {wrapped(kind): v for kind, v in r.items()} for name, r in relative.items()},
                mark=(1.0, ""),
            ),
            Panel(
                f"simulated, n = {n}",
                "delays",
                "pushes per second at the end",
                bars={name: {wrapped(kind): ends[kind][name] for kind in ends} for name in ALL},
            ),
        ],
    )
    page.table(
        f"Time to the target accuracy in that of BSP: median (range) of the seeds; simulated, n = {n}.",
        ["delays", *ALL, "adsp loses to"],
        [
            [
                kind,
                *(spread(relative[name][kind]) for name in ALL),
                ", ".join(other for other in OTHERS if less(times[kind][other], times[kind][OURS])) or "none",
            ]
            for kind in DELAYS
        ],
    )
    page.table(
        "Pushes of all workers per second, in the second half of the training: median (range) of the seeds.",
        ["delays", *ALL],
        [[kind, *map(spread, ends[kind].values())] for kind in ends],
    )
    slow = ends[CONSTANT]
    page.finding(
        "adsp-heterogeneity",
        "; ".join(f"{kind}: {percent(saving(times[kind][OURS], times[kind]['BSP']))} time than BSP" for kind in DELAYS)
        + f"; {CONSTANT}, pushes/s at the end: "
        + ", ".join(f"{name} {middle(slow[name]):.3g}" for name in ALL),
        f"time to accuracy and pushes per second of the second half, simulated, n = {n}",
        {
            "random delays: adsp against BSP": less(times[RANDOM][OURS], times[RANDOM]["BSP"], LEAST),
            "both: adsp against BSP": less(times[BOTH][OURS], times[BOTH]["BSP"], LEAST),
            "one slow worker: bounded strategies against ASP in the end": all_true(
                less(slow[name], slow["ASP"], LEAST) for name in BOUNDED
            ),
        },
        BEHIND,
    )
    note(lab, page)


# ---- what is shown


def staleness_row(found: list[Run], n: int) -> list[str]:
    return [
        f"{middle(each(mean_staleness, found)):.2f}",
        *(f"{middle(each(share_of(bucket), found)):.0f}" for bucket in BUCKETS),
        shares([middle(each(gradients_of(worker), found)) for worker in range(n)]),
        f"{middle(each(pushes_per_second, found)):.3g}",
    ]


def shares(values: list[float]) -> str:
    """The slow worker's, and the range of the others'."""
    others = [value for worker, value in enumerate(values) if worker != SLOW]
    return f"worker {SLOW}: {values[SLOW]:.1f}; others: {min(others):.1f} to {max(others):.1f}"


def wrapped(kind: str) -> str:
    """For narrow places."""
    return "\n".join(kind.rsplit(maxsplit=1))


def bars(found: dict, value) -> dict[str, dict[str, list[float]]]:
    """Of a sweep: one label, groups by s alone."""
    return {"adsp": {label.partition(",")[0].removeprefix("s = "): values[value] for label, values in found.items()}}


def note(lab: Lab, page: Page):
    page.note(WORDS.format(delay(lab)))


# ---- what is decided


def separated(ours: list[float], theirs: list[float]) -> bool | None:
    """Whether each of ours is above all of theirs; None if one is not known."""
    return None if any(map(math.isnan, (*ours, *theirs))) else min(ours) > max(theirs)


def within_ends(values: list[float]) -> bool | None:
    """Whether all are between the first and the last, but for the tolerance."""
    first, *inner, last = values
    cases = [rises([first, value, last], TOLERANCE) for value in inner]
    return all_true(cases)


def all_true(cases) -> bool | None:
    """None if one is not known."""
    known = list(cases)
    return None if None in known else all(known)
