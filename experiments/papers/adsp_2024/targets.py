"""The figures of adsp (Wang, Zhu 2024): strategies of a parameter server under constant and random delays."""

from experiments.papers.adsp_2024.presentation import (
    MIN_SAVING_PERCENT,
    TOLERANCE,
    all_true,
    bars,
    note,
    separated,
    staleness_row,
    within_ends,
    wrapped,
)
from experiments.papers.adsp_2024.runs import (
    ALL,
    BOTH,
    BOUNDED,
    BUCKETS,
    CONSTANT,
    DELAYS,
    NONE,
    OTHERS,
    OURS,
    RANDOM,
    RATIO,
    THRESHOLDS,
    bounds,
    curve,
    first,
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
from experiments.tables.compare import claim, savings_range
from experiments.tables.draw import Panel
from experiments.tables.numbers import (
    all_at_least,
    best_accuracy,
    each,
    is_less,
    median_and_range,
    median_or_nan,
    percent,
    rises,
    saving,
)
from experiments.tables.requests import SOURCES, RunRequests
from experiments.tables.run_spec import MEASURED, SIMULATED
from experiments.tables.section import Section
from experiments.tables.targets import target
from grsgd.runs.measures import time_to_target

ALIKE_SHARDS_REASON = (
    "Workers have alike shards: late gradients cost little accuracy, and ASP, which never waits, gains."
)
PACE_REASON = "Once the others lead by all they may, they step at the pace of the slow worker, as with BSP."
REASONS_BY_DELAY = {
    NONE: "Equal workers leave nothing to adapt to.",
    CONSTANT: f"With one slow worker: {PACE_REASON[0].lower()}{PACE_REASON[1:]} A strategy without a bound goes on.",
    RANDOM: ALIKE_SHARDS_REASON,
    BOTH: ALIKE_SHARDS_REASON,
}
"""Why adsp is not faster than each of the others."""


@target("adsp-convergence-time", "Time to a fixed accuracy: adsp, BSP, ASP, SSP, DSSP")
def convergence_time(requests, section):
    """Simulated: all delays on ``tuning_ranks`` workers; random ones, and those that are measured, on other numbers of
    workers with a single seed. Measured: on the fewest workers of the clock."""
    times = {
        (kind, source, n): {
            name: requests.seconds(config, n, source, scenario(requests, kind, n), seeds=seeds)
            for name, config in ALL.items()
        }
        for kind, source, n, seeds in settings(requests)
    }
    decisive = {key: values for key, values in times.items() if key[1] == MEASURED or key[2] == workers(requests)}
    section.figure("Time to the target accuracy; median and range of the seeds.", time_panels(requests, times))
    section.table(
        "Seconds to the target accuracy: median (range) of the seeds.",
        ["delays", "time", *ALL],
        [
            [kind, f"{SOURCES[source]}, n = {n}", *map(median_and_range, t.values())]
            for (kind, source, n), t in times.items()
        ],
    )
    section.table(
        "How much less or more time adsp takes than each other strategy, by medians.",
        ["delays", "time", *OTHERS],
        [
            [kind, f"{SOURCES[source]}, n = {n}", *(percent(saving(t[OURS], t[other])) for other in OTHERS)]
            for (kind, source, n), t in times.items()
        ],
    )
    find_time(requests, section, decisive)
    note(requests, section)
    section.note("Numbers of workers other than those of the finding have a single seed, and show a tendency only.")


def time_panels(requests: RunRequests, times: dict) -> list[Panel]:
    """Return the panels of ``convergence_time``."""
    n, measured = workers(requests), measured_on(requests)
    simulated_bars = {
        name: {wrapped(kind): times[kind, SIMULATED, n][name] for kind in (NONE, *DELAYS)} for name in ALL
    }
    measured_bars = {
        name: {wrapped(kind): times[kind, MEASURED, measured][name] for kind in (CONSTANT, RANDOM)} for name in ALL
    }
    lines = {name: {m: times[RANDOM, SIMULATED, m][name] for m in numbers(requests)} for name in ALL}
    return [
        Panel(f"simulated, n = {n}", "delays", "time to accuracy [s]", bars=simulated_bars),
        Panel(f"measured, n = {measured}", "delays", "time to accuracy [s]", bars=measured_bars),
        Panel("simulated, random delays", "workers n", "time to accuracy [s]", lines=lines, logx=True),
    ]


def find_time(requests: RunRequests, section: Section, decisive: dict):
    """Write the finding on times, from those that decide about it."""
    savings = {
        (kind, other): [saving(t[OURS], t[other]) for (k, _, _), t in decisive.items() if k == kind]
        for kind in (NONE, *DELAYS)
        for other in OTHERS
    }
    least = claim("adsp-time")["low"]
    cases = {f"{kind}, against {other}": all_at_least(values, least) for (kind, other), values in savings.items()}
    why = [
        reason for kind, reason in REASONS_BY_DELAY.items() if not all(cases[f"{kind}, against {o}"] for o in OTHERS)
    ]
    section.finding(
        "adsp-time",
        "; ".join(
            f"{kind}: " + ", ".join(f"{savings_range(savings[kind, other])} than {other}" for other in OTHERS)
            for kind in (NONE, *DELAYS)
        ),
        f"time to accuracy, simulated with n = {workers(requests)}; {CONSTANT} and {RANDOM} also measured with "
        f"n = {measured_on(requests)}; a condition counts if all of its savings are at least {least:g} %",
        cases,
        " ".join(dict.fromkeys(why)),
    )


@target("adsp-accuracy", "Best accuracy after equally many samples: adsp, BSP, ASP, SSP, DSSP")
def accuracy(requests, section):
    n = workers(requests)
    best = {kind: simulated(requests, best_accuracy, kind) for kind in (NONE, *DELAYS)}
    points = {
        (kind, other): [100 * (a - b) for a, b in zip(best[kind][OURS], best[kind][other], strict=True)]
        for kind in best
        for other in OTHERS
    }
    section.figure(
        "Test accuracy by samples, of the first seed.",
        [
            Panel(
                kind,
                "samples of all workers [thousands]",
                "test accuracy",
                curves={name: [curve(run) for run in first(requests, config, kind)] for name, config in ALL.items()},
            )
            for kind in DELAYS
        ],
        times=False,
    )
    section.table(
        f"Highest test accuracy [%] of any snapshot: median (range) of the seeds; simulated, n = {n}.",
        ["delays", *ALL],
        [
            [kind, *(median_and_range((100 * a for a in values), ".1f") for values in best[kind].values())]
            for kind in best
        ],
    )
    section.table(
        "Points of accuracy that adsp has more than each other, seed by seed: median (range).",
        ["delays", *OTHERS],
        [[kind, *(median_and_range(points[kind, other], "+.2f") for other in OTHERS)] for kind in best],
    )
    medians = [median_or_nan(values) for values in points.values()]
    section.finding(
        "adsp-accuracy",
        f"from {min(medians):+.2f} to {max(medians):+.2f} points, medians of the seeds",
        f"best snapshot after as many samples, simulated, n = {n}; a condition counts if every seed of adsp is "
        "above all of the other",
        {f"{kind}, against {other}": separated(best[kind][OURS], best[kind][other]) for kind, other in points},
        f"The paper has up to {claim('adsp-accuracy')['high']:g} points. Shards are alike here and all strategies take "
        "the same step a sample, so there is little accuracy to lose by late gradients.",
    )
    note(requests, section)


@target("adsp-staleness", "How late gradients are, and whose they are")
def staleness(requests, section):
    n = workers(requests)
    found = {
        (kind, source, number, name): requests.runs(config, number, source, scenario(requests, kind, number))
        for source, number, kinds in (
            (SIMULATED, n, (NONE, *DELAYS)),
            (MEASURED, measured_on(requests), (CONSTANT, RANDOM)),
        )
        for kind in kinds
        for name, config in ALL.items()
    }
    ages = {kind: {name: each(mean_staleness, found[kind, SIMULATED, n, name]) for name in ALL} for kind in DELAYS}
    section.figure(
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
    section.table(
        "Staleness of gradients in updates of the model, the mean and shares by staleness; shares of each worker in "
        "the gradients; pushes of all workers per second. Medians of the seeds.",
        ["delays", "time", "strategy", "mean", *(f"{b} [%]" for b in BUCKETS), "of each worker [%]", "pushes/s"],
        [
            [kind, f"{SOURCES[source]}, n = {number}", name, *staleness_row(trainings, number)]
            for (kind, source, number, name), trainings in found.items()
        ],
    )
    section.finding(
        "adsp-staleness",
        "; ".join(
            f"{kind}: mean {median_or_nan(ages[kind][OURS]):.2f} updates, ASP {median_or_nan(ages[kind]['ASP']):.2f}, "
            f"BSP {median_or_nan(ages[kind]['BSP']):.2f}"
            for kind in DELAYS
        ),
        f"updates of the model between a gradient's pull and its push, simulated, n = {n}",
        {
            kind: is_less(ages[kind][OURS], ages[kind]["ASP"]) and median_or_nan(ages[kind]["BSP"]) == 0
            for kind in DELAYS
        },
        "A bound that is seldom reached changes little: ASP's staleness is n - 1 on average, whatever the delays.",
    )
    note(requests, section)
    section.note("BSP takes the n gradients of a round in one update; the others take one gradient or a few in each.")


@target("adsp-threshold", "The threshold s of adsp, with random delays")
def threshold(requests, section):
    n, seeds = workers(requests), range(2)
    swept = {"BSP": ("BSP", ())}
    swept |= {f"s = {s}, smax = {RATIO * s}": (OURS, bounds(requests, s)) for s in THRESHOLDS}
    swept |= {"ASP": ("ASP", ())}
    trainings = {
        label: requests.runs(ALL[name], n, SIMULATED, scenario(requests, RANDOM, n), extra, seeds)
        for label, (name, extra) in swept.items()
    }
    measures = (pushes_per_second, mean_staleness, time_to_target, best_accuracy)
    found = {label: {value: each(value, runs) for value in measures} for label, runs in trainings.items()}
    section.figure(
        "BSP, adsp with growing thresholds, and ASP, simulated; median and range of the seeds.",
        [
            Panel("speed", "s of adsp", "pushes per second", bars=bars(found, pushes_per_second)),
            Panel("staleness", "s of adsp", "mean staleness [updates]", bars=bars(found, mean_staleness)),
            Panel("both together", "s of adsp", "time to accuracy [s]", bars=bars(found, time_to_target)),
        ],
    )
    section.table(
        f"Random delays, simulated, n = {n}: median (range) of the seeds.",
        ["strategy", "pushes/s", "mean staleness", "to accuracy [s]", "best accuracy [%]"],
        [
            [
                label,
                *(median_and_range(values[value]) for value in (pushes_per_second, mean_staleness, time_to_target)),
                median_and_range((100 * a for a in values[best_accuracy]), ".1f"),
            ]
            for label, values in found.items()
        ],
    )
    speeds = [median_or_nan(values[pushes_per_second]) for values in found.values()]
    ages = [median_or_nan(values[mean_staleness]) for values in found.values()]
    section.finding(
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
    note(requests, section)


@target("adsp-heterogeneity", "A worker that is slow all the time, random delays, and both")
def heterogeneity(requests, section):
    n = workers(requests)
    times = {kind: simulated(requests, time_to_target, kind) for kind in DELAYS}
    ends = {kind: simulated(requests, pushes_per_second_at_the_end, kind) for kind in (NONE, *DELAYS)}
    relative = {
        name: {kind: [seconds / median_or_nan(times[kind]["BSP"]) for seconds in times[kind][name]] for kind in DELAYS}
        for name in ALL
    }
    section.figure(
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
    section.table(
        f"Time to the target accuracy in that of BSP: median (range) of the seeds; simulated, n = {n}.",
        ["delays", *ALL, "adsp loses to"],
        [
            [
                kind,
                *(median_and_range(relative[name][kind]) for name in ALL),
                ", ".join(other for other in OTHERS if is_less(times[kind][other], times[kind][OURS])) or "none",
            ]
            for kind in DELAYS
        ],
    )
    section.table(
        "Pushes of all workers per second, in the second half of the training: median (range) of the seeds.",
        ["delays", *ALL],
        [[kind, *map(median_and_range, ends[kind].values())] for kind in ends],
    )
    slow = ends[CONSTANT]
    section.finding(
        "adsp-heterogeneity",
        "; ".join(f"{kind}: {percent(saving(times[kind][OURS], times[kind]['BSP']))} time than BSP" for kind in DELAYS)
        + f"; {CONSTANT}, pushes/s at the end: "
        + ", ".join(f"{name} {median_or_nan(slow[name]):.3g}" for name in ALL),
        f"time to accuracy and pushes per second of the second half, simulated, n = {n}",
        {
            "random delays: adsp against BSP": is_less(times[RANDOM][OURS], times[RANDOM]["BSP"], MIN_SAVING_PERCENT),
            "both: adsp against BSP": is_less(times[BOTH][OURS], times[BOTH]["BSP"], MIN_SAVING_PERCENT),
            "one slow worker: bounded strategies against ASP in the end": all_true(
                is_less(slow[name], slow["ASP"], MIN_SAVING_PERCENT) for name in BOUNDED
            ),
        },
        PACE_REASON,
    )
    note(requests, section)
