"""Figures 8 to 11, 14 and 15: time to the benchmark accuracy and traffic, over the number of nodes."""

import math

from coding.cost_table import ranges
from experiments.papers.cssgd_2021.tasks import (
    ASGD,
    COPIES,
    MULTICAST,
    NETWORKS,
    RING,
    SHARED,
    TESTBED,
    TRUE_MULTICAST,
    UNICAST,
    Method,
    Setup,
    Task,
    coded,
    grouped,
    grouped_direct,
    seconds,
    short_run,
    step,
    steps_to_target,
)
from experiments.tables.compare import MIN_DIFFERENCE_NOTE, SHARED_TRAJECTORY_NOTE, claim, savings_range
from experiments.tables.draw import Panel
from experiments.tables.numbers import is_less, median_and_range, saving
from experiments.tables.requests import MIN_DIFFERENCE_PERCENT

ALL = {
    "SSGD by unicast": UNICAST,
    "SSGD by multicast": MULTICAST,
    "CSSGD (r = 2)": coded(2),
    "CSSGD (r = 3)": coded(3),
    "grouped-rs (r = 2)": grouped(2),
    "grouped-direct (r = 2)": grouped_direct(2),
    "ring all-reduce": RING,
}
ON_TESTBED = ("SSGD by unicast", "SSGD by multicast", "CSSGD (r = 2)", "CSSGD (r = 3)", "grouped-rs (r = 2)")
"""The methods that run on the testbed."""
CODED = ("CSSGD (r = 2)", "CSSGD (r = 3)")
CODED_SENDS_MORE = (
    "Coded blocks cannot be added up before they are sent: all nodes together send n C(n-1, r) / r gradients, once, "
    "and SSGD by multicast n, by unicast n (n-1)."
)


def nodes_of(requests, task: Task, setup: Setup) -> list[int]:
    if setup is TESTBED:
        return [n for n in requests.scale.clock_ranks if 1 / n < task.target(requests)]
    return task.nodes(requests)


# ---- figures 8 and 10


def time_over_nodes(task: Task, requests, section):
    panels, rows, measured, found = [], [], [], {}
    for setup in (SHARED, COPIES, TESTBED):
        compared = {name: method for name, method in ALL.items() if setup is not TESTBED or name in ON_TESTBED}
        times = {
            name: {
                n: seconds(requests, task, method, n, setup)
                for n in nodes_of(requests, task, setup)
                if method.takes_part(n)
            }
            for name, method in compared.items()
        }
        panels.append(Panel(setup.name, "nodes n", "time to accuracy [s]", times, logy=True))
        rows += [
            [setup.name, n, *(median_and_range(times.get(name, {}).get(n, [math.nan])) for name in ALL)]
            for n in nodes_of(requests, task, setup)
        ]
        savings = []
        for ours in CODED:
            for theirs in ("SSGD by unicast", "SSGD by multicast"):
                by_n = [saving(times[ours][n], times[theirs][n]) for n in times[ours]]
                savings += [f"{ours} {savings_range(by_n)} than {theirs}"] if by_n else []
                saves = {
                    n: is_less(times[ours][n], times[theirs][n], MIN_DIFFERENCE_PERCENT[setup.source])
                    for n in times[ours]
                }
                found.setdefault(f"{setup.name}, against {theirs}", {})[ours] = saves
        measured.append(f"{setup.name}: " + ", ".join(savings))
    target = task.target(requests)
    section.figure("Time to the target accuracy; median and range of the seeds.", panels)
    caption = f"Seconds to a test accuracy of {target:.0%} on n classes: median (range) of the seeds."
    section.table(caption, ["network", "n", *ALL], rows)
    accounting = f"time to accuracy, from the least to the greatest saving over n; {MIN_DIFFERENCE_NOTE}"
    reason = f"{CODED_SENDS_MORE} {exceptions(found)}"
    section.finding("cssgd-time-nodes", "; ".join(measured), accounting, for_all_nodes(found), reason)
    section.note(NETWORKS)
    section.note(SHARED_TRAJECTORY_NOTE.format("all of these"))
    note_left_out(task, requests, section)


Found = dict[str, dict[str, dict[int, bool | None]]]
"""Whether a scheme needs less, by condition, scheme and n."""


def for_all_nodes(found: Found) -> dict[str, bool | None]:
    """Cases of a finding: conditions under which all schemes need less for all n."""
    known = {
        condition: [value for by_n in schemes.values() for value in by_n.values() if value is not None]
        for condition, schemes in found.items()
    }
    return {condition: all(values) if values else None for condition, values in known.items()}


def exceptions(found: Found) -> str:
    """Return where they need less although they do not for all n."""
    texts = []
    for condition, holds in for_all_nodes(found).items():
        some = {name: [n for n, value in by_n.items() if value] for name, by_n in found[condition].items()}
        if holds is False and any(some.values()):
            schemes = ", ".join(f"{name} for n = {ranges(ns)}" for name, ns in some.items() if ns)
            texts.append(f"{condition}: {schemes}")
    return f"Only for some n it holds on: {'; '.join(texts)}." if texts else ""


def note_left_out(task: Task, requests, section):
    section.note(
        f"n nodes train on the first n classes; n of which a guess is right as often as the target "
        f"({task.target(requests):.0%}) are left out, as is r = n, with which nothing is sent. The paper's "
        f"benchmark is {task.benchmark:.0%}."
    )


# ---- figures 9 and 11

ACCOUNTINGS = {
    "once": ("sent_once", "sent_once"),
    "per receiver": ("sent", "sent"),
    "the paper's, CSSGD once, others per receiver": ("sent_once", "sent"),
}
"""The counts of bytes that CSSGD and the grouped schemes send, and those that the others send."""
REDUNDANT = [name for name, method in ALL.items() if method.r]


def traffic_over_nodes(task: Task, requests, section):
    nodes = task.nodes(requests)
    sent = {
        name: {n: bytes_of_a_step(requests, task, method, n) for n in nodes if method.takes_part(n)}
        for name, method in ALL.items()
    }
    for r in (2, 3):  # the paper's own comparison: SSGD that does not add up
        blocks = ("algorithm.accounting='per-block'", f"algorithm.r={r}")
        sent[f"blocks of r = {r}, not added up"] = {
            n: bytes_of_a_step(requests, task, MULTICAST, n, blocks) for n in nodes if coded(r).takes_part(n)
        }
    steps = {n: steps_to_target(requests, task, n) for n in nodes}
    panels, rows, measured, found = [], [], [], {}
    for accounting, (of_coded, of_others) in ACCOUNTINGS.items():
        gigabytes = {
            name: {
                n: [count * counted[of_coded if name in REDUNDANT else of_others] / 1e9 for count in steps[n]]
                for n, counted in by_n.items()
            }
            for name, by_n in sent.items()
        }
        panels.append(Panel(accounting, "nodes n", "sent, all nodes, to the target [GB]", gigabytes, logy=True))
        rows += [
            [accounting, n, *(median_and_range(gigabytes[name].get(n, [math.nan])) for name in gigabytes)]
            for n in nodes
        ]
        savings = []
        for r, ours in zip((2, 3), CODED, strict=True):
            for theirs in ("SSGD by multicast", f"blocks of r = {r}, not added up"):
                against = theirs if theirs == "SSGD by multicast" else "SSGD that does not add up its blocks"
                by_n = [saving(gigabytes[ours][n], gigabytes[theirs][n]) for n in gigabytes[ours]]
                savings += [f"{ours} {savings_range(by_n)} than {against}"] if by_n else []
                saves = {n: is_less(gigabytes[ours][n], gigabytes[theirs][n]) for n in gigabytes[ours]}
                found.setdefault(f"{accounting}, against {against}", {})[ours] = saves
        measured.append(f"{accounting}: " + ", ".join(savings))
    section.figure("Sent by all nodes until the target accuracy; median and range of the seeds.", panels, times=False)
    section.table(
        "GB that all nodes together send until the target accuracy: median (range) of the seeds.",
        ["a packet to several nodes counts", "n", *sent],
        rows,
    )
    section.table(
        "MB that all nodes together send in a step: once / per receiver.",
        ["n", *sent],
        [
            [n, *(f"{megabytes(by_n, n, 'sent_once')} / {megabytes(by_n, n, 'sent')}" for by_n in sent.values())]
            for n in nodes
        ],
    )
    section.finding(
        "cssgd-traffic",
        "; ".join(measured),
        "payload counted by the communicator, to the target accuracy, by three accountings",
        for_all_nodes(found),
        f"{CODED_SENDS_MORE} The paper counts coded packets once, against blocks that are not added up. "
        f"{exceptions(found)}",
    )
    section.note("Bytes of a step are counted in a short simulated run, and multiplied by the steps to the target.")
    note_left_out(task, requests, section)


def bytes_of_a_step(requests, task: Task, method: Method, n: int, more=()) -> dict[str, float]:
    """Return the bytes that all nodes together send in a step, by data set of the run file."""
    runs = short_run(requests, task, method, n, SHARED, more)
    return {
        what: float(runs[0].traffic[what].sum() / runs[0].ranks["steps"].max()) if runs else math.nan
        for what in ("sent_once", "sent")
    }


def megabytes(by_n: dict[int, dict[str, float]], n: int, what: str) -> str:
    return f"{by_n[n][what] / 1e6:.4g}" if n in by_n else "—"


# ---- figures 14 and 15


def redundancies(n: int) -> list[int]:
    """Return those of which the best is taken: the paper's, and the one with which coding sends the least."""
    return sorted({r for r in (2, 3, n - 1) if 1 < r < n})


def best_of(seconds_by_r: dict[int, float]) -> tuple[int | None, float]:
    """Return the redundancy of the shortest step, and its seconds."""
    known = {r: value for r, value in seconds_by_r.items() if not math.isnan(value)}
    return min(known.items(), key=lambda pair: pair[1], default=(None, math.nan))


def best_over_nodes(task: Task, requests, section):
    nodes = [n for n in task.nodes(requests) if redundancies(n)]
    claimed = {"SSGD by multicast": claim(task.claim)["ssgd_multicast"], "ASGD": claim(task.claim)["asgd"]}
    panels, rows, measured, cases = [], [], [], {}
    for setup in (TRUE_MULTICAST, COPIES):
        times = {
            "SSGD by multicast": {n: seconds(requests, task, MULTICAST, n, setup) for n in nodes},
            "ASGD": {n: seconds(requests, task, ASGD, n, setup) for n in nodes},
        }
        best_r = {}
        for name, scheme in (("CSSGD (best r)", coded), ("grouped-rs (best r)", grouped)):
            steps = {n: best_of({r: step(requests, task, scheme(r), n, setup) for r in redundancies(n)}) for n in nodes}
            times[name] = {n: [count * steps[n][1] for count in steps_to_target(requests, task, n)] for n in nodes}
            best_r[name] = {n: f" (r = {steps[n][0]})" for n in nodes}
            for theirs, least in claimed.items():
                savings = [saving(times[name][n], times[theirs][n]) for n in nodes]
                known = [value for value in savings if not math.isnan(value)]
                mean = sum(known) / len(known) if known else math.nan
                measured.append(
                    f"{setup.name}: {name} {savings_range([mean])} than {theirs} ({savings_range(savings)})"
                )
                if scheme is coded:
                    cases[f"{setup.name}, against {theirs}"] = mean >= least if known else None
        panels.append(Panel(setup.name, "nodes n", "time to accuracy [s]", times, logy=True))
        rows += [
            [
                setup.name,
                n,
                *(median_and_range(values[n]) + best_r.get(name, {}).get(n, "") for name, values in times.items()),
            ]
            for n in nodes
        ]
    section.figure("Time to the target accuracy; median and range of the seeds.", panels)
    caption = f"Seconds to a test accuracy of {task.target(requests):.0%} on n classes: median (range) of the seeds."
    section.table(caption, ["network", "n", "SSGD by multicast", "ASGD", "CSSGD (best r)", "grouped-rs (best r)"], rows)
    section.finding(
        task.claim,
        "; ".join(measured),
        "mean over n of the time saved, and its range over n; simulated, r from 2, 3 and n-1; a condition counts if "
        "CSSGD's mean is at least the paper's",
        cases,
        CODED_SENDS_MORE + " A node computes r times as much as without redundancy.",
    )
    section.note(SHARED_TRAJECTORY_NOTE.format("CSSGD, SSGD and the grouped schemes"))
    section.note(NETWORKS)
    section.note("ASGD sends nothing to several nodes, so its time is the same on both switches.")
    note_left_out(task, requests, section)
