"""The tables and figures of CSSGD (Li, Xie, Mao, Xu, Zhu, Zhang 2021), with the grouped schemes, which are ours."""

from functools import partial

from experiments.papers.cssgd_2021.load import FORMULAS, OURS, count
from experiments.papers.cssgd_2021.over_nodes import best_over_nodes, time_over_nodes, traffic_over_nodes
from experiments.papers.cssgd_2021.over_redundancy import time_over_redundancy
from experiments.papers.cssgd_2021.over_time import accuracy_over_time
from experiments.papers.cssgd_2021.tasks import CNN, DNN
from experiments.tables.numbers import best_accuracy, median_and_range, median_or_nan
from experiments.tables.targets import target


@target("cssgd-table2", "Accuracy of a single machine: DNN and CNN")
def single(requests, section):
    rows, measured, cases, reasons = [], [], {}, []
    n = max(requests.scale.coding_ranks)
    for task in (DNN, CNN):
        ring = f"{task.folder}/ring_allreduce"
        runs = requests.curves(ring, 1, (f"data.only_classes={n}",), task.seeds(requests))
        best = [best_accuracy(run) for run in runs] or [float("nan")]
        final = [run.curve["test_accuracy"][-1] for run in runs]
        train = requests.load(ring).train
        rows.append(
            [
                task.name,
                median_and_range(best, ".1%"),
                median_and_range(final, ".1%"),
                f"{task.benchmark:.0%}",
                f"{train.epochs:g}",
            ]
        )
        measured.append(f"{task.name} {median_and_range(best, '.1%')}")
        cases[task.name] = median_or_nan(best) >= task.benchmark
        if train.target_accuracy < task.benchmark and not cases[task.name]:
            cases[task.name] = None
            reasons.append(f"At this scale the {task.name} is trained for {train.epochs:g} epochs only.")
    headers = ["model", "best test accuracy", "last", "benchmark of the paper", "epochs"]
    section.table(
        "Test accuracy of one rank: median (range) of the seeds. The paper's numbers could not be had.", headers, rows
    )
    section.finding(
        "cssgd-single", "; ".join(measured), f"best snapshot, {n} classes, one rank", cases, " ".join(reasons)
    )


for figure, task, zoom in ((4, DNN, False), (5, CNN, False), (6, DNN, True), (7, CNN, True)):
    what = "about the benchmark accuracy" if zoom else "over time"
    target(f"cssgd-fig{figure}", f"{task.name}: test accuracy {what}; CSSGD, SSGD, ASGD, grouped")(
        partial(accuracy_over_time, task, zoom)
    )
OVER_NODES = "time to the benchmark accuracy over nodes; SSGD, CSSGD r = 2, 3"
TRAFFIC = "traffic over nodes; SSGD, CSSGD r = 2, 3"
REDUNDANCY = "time of a batch over the redundancy r"
BEST = "time over nodes; CSSGD with the best r, SSGD by multicast, ASGD"
for of_dnn, of_cnn, what, make in (
    (8, 10, OVER_NODES, time_over_nodes),
    (9, 11, TRAFFIC, traffic_over_nodes),
    (12, 13, REDUNDANCY, time_over_redundancy),
    (14, 15, BEST, best_over_nodes),
):
    for figure, task in ((of_dnn, DNN), (of_cnn, CNN)):
        target(f"cssgd-fig{figure}", f"{task.name}: {what}")(partial(make, task))


@target("cssgd-load", "Counted bytes against formulas (19) to (30)")
def load(requests, section):
    cases = [(n, r) for n in requests.scale.coding_ranks for r in range(1, n + 1)]
    equal = {formula: formula.equal(cases) for formula in FORMULAS}
    n = requests.scale.tuning_ranks
    section.table(
        f"All nodes together, in units of M, the size of a gradient; q: groups, n/r rounded up. An example, n = {n} "
        f"and r = 2, and all n = {min(requests.scale.coding_ranks)} to {max(requests.scale.coding_ranks)} with all r.",
        ["number", "what", "counted", "formula", "its value", "equal", "cases"],
        [
            [
                formula.number,
                formula.what,
                formula.counted(n, 2),
                formula.text,
                formula.formula(n, 2),
                equal[formula],
                len(cases),
            ]
            for formula in FORMULAS
        ],
    )
    names = ("SSGD", "per block", "uncoded", "coded", "grouped-direct", "grouped-rs")
    section.table(
        f"Counted for n = {n}, in units of M: once / per receiver.",
        ["r", *names],
        [
            [r, *(f"{gradients(counted.once)} / {gradients(counted.per_receiver)}" for counted in counts)]
            for r in range(1, n + 1)
            for counts in [[count(name, n, r) for name in names]]
        ],
    )
    wrong = [f"{formula.number} {formula.text}" for formula in FORMULAS if equal[formula] < len(cases)]
    by_number: dict[str, bool] = {}
    for formula in FORMULAS:
        if formula.number != OURS:
            by_number[formula.number] = by_number.get(formula.number, True) and equal[formula] == len(cases)
    section.finding(
        "cssgd-load",
        f"{sum(equal.values())} of {len(cases) * len(FORMULAS)} comparisons are equal",
        "packets of all nodes, counted one by one, once and per receiver",
        by_number,
        f"Not equal: {', '.join(wrong)}." if wrong else "",
    )
    section.note(
        "Lengths that r and n divide; else packets are padded by less than a number each. Packets have no headers."
    )
    section.note(
        "1/r is against the same blocks by unicast, (29). Against SSGD, which adds up its blocks before it sends, "
        "coding sends more unless r = n-1; see figures 9 and 11."
    )


def gradients(amount) -> str:
    return f"{float(amount):.4g}"
