"""The figures of GRSGD (Zhou, Tu, Ren 2023), against ring all-reduce and D-PSGD."""

import numpy as np

from experiments.tables.compare import rank_counts, time_to_accuracy
from experiments.tables.draw import Panel
from experiments.tables.numbers import (
    accuracy_gain,
    best_accuracy,
    each,
    median_and_range,
    median_or_nan,
    part_of_a_step,
)
from experiments.tables.requests import EQUAL, SLOW_LINKS, SOURCES, STRAGGLER
from experiments.tables.run_spec import MEASURED, SIMULATED
from experiments.tables.targets import target
from grsgd.runs.numbers import human_bytes

OURS, RING = "GRSGD", "ring all-reduce"
ALL = {OURS: "grsgd/grsgd", RING: "grsgd/ring_allreduce", "D-PSGD": "grsgd/dpsgd"}
SCENARIOS = {
    EQUAL: "With equal ranks and fast links there is little to wait for, and a step of an all-reduce is worth more.",
    STRAGGLER: "Few ranks wait for the slow one only a little longer than its own steps take.",
    SLOW_LINKS: "Models that arrive late are worth less.",
}
MAX_ACCURACY_LOSS_POINTS = 1.0
"""Points of accuracy that may be lost at most."""
MAX_WAIT_RATIO = 0.01
MAX_PACE_INCREASE = 0.25
"""A share by which a step may take longer and still counts as not waiting for a rank that takes 4 times as long."""
ALPHA = 0.5
"""Parameter of the shards in ``redundancy``: with shards that are alike every rank has enough in its own."""


@target("grsgd-time-to-acc", "Time to a fixed accuracy")
def time_to_acc(requests, section):
    time_to_accuracy(requests, section, "grsgd-time", ALL, SCENARIOS, "ring all-reduce, D-PSGD")


@target("grsgd-epoch-acc", "Accuracy after equally many samples: the price of gossip")
def epoch_acc(requests, section):
    panels, rows, lost = [], [], {}
    for n in requests.scale.ranks:
        runs = {
            name: requests.runs(config, n, SIMULATED) if name == OURS else requests.curves(config, n)
            for name, config in ALL.items()
        }
        best = {name: [best_accuracy(run) for run in found] for name, found in runs.items()}
        rows.append([n, *(median_and_range((100 * value for value in values), ".1f") for values in best.values())])
        lost[f"n = {n}"] = accuracy_gain(best[RING], best[OURS])
        curves = {name: [epochs_and_accuracy(run) for run in found] for name, found in runs.items()}
        panels.append(Panel(f"n = {n}", "epochs", "test accuracy [%]", curves=curves))
    shown = [panel for panel in panels if panel.title in ("n = 4", "n = 8", "n = 16")] or panels
    section.figure("Accuracy of the averaged model over epochs; a line a seed.", shown, times=False)
    section.table("Best test accuracy in per cent: median (range) of the seeds.", ["n", *ALL], rows)
    section.finding(
        "grsgd-accuracy",
        "GRSGD minus ring all-reduce: " + ", ".join(f"{-value:+.2f} points ({n})" for n, value in lost.items()),
        f"best accuracy of equally many epochs, simulated; holds with at most {MAX_ACCURACY_LOSS_POINTS:g} point less",
        {n: value <= MAX_ACCURACY_LOSS_POINTS for n, value in lost.items()},
        "A ring brings models together slowly, and the more slowly the more ranks it has.",
    )


def epochs_and_accuracy(run):
    return run.curve["samples"] / run.attributes["train_samples"], 100 * run.curve["test_accuracy"]


@target("grsgd-wait", "Time spent waiting in a step")
def wait(requests, section):
    rows, panels, splits = [], [], {}
    for scenario in SCENARIOS:
        bars = {}
        for source in (MEASURED, SIMULATED):
            for n in rank_counts(requests, source, scenario):
                split = {name: requests.step_split(config, n, source, scenario) for name, config in ALL.items()}
                for name, parts in split.items():
                    bars.setdefault(name, {})[f"{SOURCES[source][:4]}.\nn = {n}"] = [1e3 * parts["wait"]]
                    rows.append(
                        [scenario.name, f"{SOURCES[source]}, n = {n}", name]
                        + [f"{1e3 * parts[part]:.1f}" for part in ("compute", "communicate", "wait")]
                    )
                splits[scenario, source, n] = split
        panels.append(Panel(scenario.name, "", "waiting a step [ms]", bars=bars))
    section.figure("Time that a rank waits for others in a step, mean over the ranks.", panels)
    section.table(
        "Milliseconds a step, means over the ranks.",
        ["ranks and links", "time", "algorithm", "compute", "communicate", "wait"],
        rows,
    )
    waits, cases = {}, {}
    for (scenario, _, _), split in splits.items():
        ours, ring = (split[name]["wait"] for name in (OURS, RING))
        waits.setdefault(scenario.name, []).append((ours, ring))
        cases[scenario.name] = cases.get(scenario.name, True) and ours < MAX_WAIT_RATIO * ring
    pace = {OURS: [], RING: []}
    for source in (MEASURED, SIMULATED):
        for n in rank_counts(requests, source):
            for name, ratios in pace.items():
                equal, slowed = (others_step(requests, ALL[name], n, source, where) for where in (EQUAL, STRAGGLER))
                ratios.append(slowed / equal)
    cases["the pace of the others beside a slow rank"] = max(pace[OURS]) <= 1 + MAX_PACE_INCREASE
    section.finding(
        "grsgd-wait",
        "; ".join(
            f"{name}: at most {1e3 * max(ours for ours, _ in pairs):.2f} ms a step, ring all-reduce up to "
            f"{1e3 * max(ring for _, ring in pairs):.0f} ms"
            for name, pairs in waits.items()
        )
        + "; beside a slow rank a step of the others takes "
        + ", ".join(f"{min(ratios):.2f} to {max(ratios):.2f} times as long ({name})" for name, ratios in pace.items()),
        f"measured and simulated, all n; it holds where GRSGD waits less than {MAX_WAIT_RATIO:.0%} of what ring "
        f"all-reduce does, and for the pace if it falls by {MAX_PACE_INCREASE:.0%} at most",
        cases,
        "What the counter of waiting cannot see, such as a processor or a link that is busy, shows in the pace.",
    )


def others_step(requests, config: str, n: int, source: str, scenario) -> float:
    """Return seconds of a step of the ranks that are not slow, mean over them."""
    runs = requests.short(config, n, source, scenario)
    return median_or_nan(
        each(
            lambda run: sum(
                np.delete(part_of_a_step(run, part), 1).mean() for part in ("compute", "communicate", "wait")
            ),
            runs,
        )
    )


@target("grsgd-redundancy", "Redundancy of the data and distance of the pushes: bytes and accuracy")
def redundancy(requests, section):
    n = requests.scale.tuning_ranks
    kinds = {
        f"rho = {rho}, H = {h}": (f"data.alpha={ALPHA}", f"data.replication={rho}", f"algorithm.H={h}")
        for rho, h in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 3))
    }
    rows, accuracy, sent = [], {}, {}
    for name, extra in kinds.items():
        runs = requests.runs(ALL[OURS], n, SIMULATED, extra=extra, tuned_with=extra[:1])
        accuracy[name] = each(best_accuracy, runs)
        sent[name] = each(lambda run: run.traffic["sent"].sum(), runs)
        distance = each(lambda run: run.curve["consensus_distance"][-1], runs)
        rows.append(
            [
                name,
                median_and_range((100 * value for value in accuracy[name]), ".1f"),
                median_and_range(sent[name], ".3g"),
                median_and_range(distance),
            ]
        )
    section.figure(
        f"n = {n}, shards by label (Dirichlet, alpha = {ALPHA:g}).",
        [
            Panel(
                "", "", "best accuracy [%]", bars={"": {wrapped(k): [100 * v for v in a] for k, a in accuracy.items()}}
            ),
            Panel(
                "", "", "sent by all ranks [MB]", bars={"": {wrapped(k): [v / 1e6 for v in a] for k, a in sent.items()}}
            ),
        ],
        times=False,
    )
    section.table(
        "Best test accuracy [%], bytes sent by all ranks, and consensus distance at the end; median (range).",
        ["redundancy, steps between pushes", "accuracy", "sent [bytes]", "consensus distance"],
        rows,
    )
    pairs = {rho: (f"rho = {rho}, H = {rho}", "rho = 1, H = 1", f"rho = 1, H = {rho}") for rho in (2, 3)}
    section.finding(
        "grsgd-redundancy",
        "; ".join(
            f"{ours}: {human_bytes(median_of(sent[ours]))} instead of {human_bytes(median_of(sent[base]))}, accuracy "
            f"{accuracy_gain(accuracy[ours], accuracy[base]):+.1f} points; without redundancy, {other}: "
            f"{accuracy_gain(accuracy[other], accuracy[base]):+.1f} points"
            for ours, base, other in pairs.values()
        ),
        f"simulated, n = {n}, shards by label; holds if bytes are saved, at most "
        f"{MAX_ACCURACY_LOSS_POINTS:g} point of accuracy is lost, and more would be lost without the redundancy",
        {
            f"communication, rho = {rho}": median_or_nan(sent[ours]) < median_or_nan(sent[base])
            and accuracy_gain(accuracy[ours], accuracy[base]) >= -MAX_ACCURACY_LOSS_POINTS
            and accuracy_gain(accuracy[ours], accuracy[other]) > 0
            for rho, (ours, base, other) in pairs.items()
        }
        | {"tolerance of faults": None},
        "What saves bytes is pushing less often; shards that overlap are to make up for it. Tolerance of faults is not "
        "tested: a run does not survive the loss of a rank.",
    )
    section.note("The learning rate is tuned on such shards with rho = 1 and H = 1, and used with all.")


def wrapped(name: str) -> str:
    return name.replace(", ", "\n")


def median_of(values) -> float:
    """Return the median for texts: 0 where nothing is known yet."""
    value = median_or_nan(values)
    return value if value == value else 0.0
