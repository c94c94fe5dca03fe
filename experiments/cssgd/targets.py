"""The tables and figures of CSSGD (Li, Xie, Mao, Xu, Zhu, Zhang 2021), with the grouped schemes, which are ours."""

from functools import partial

from experiments.cssgd.family import CNN, DNN
from experiments.cssgd.load import FORMULAS, OURS, count
from experiments.cssgd.over_nodes import best_over_nodes, time_over_nodes, traffic_over_nodes
from experiments.cssgd.over_redundancy import time_over_redundancy
from experiments.cssgd.over_time import accuracy_over_time
from experiments.reproduce.lab import best_accuracy, middle, spread
from experiments.reproduce.targets import target


@target("cssgd-table2", "Accuracy of a single machine: DNN and CNN")
def single(lab, page):
    rows, measured, cases, reasons = [], [], {}, []
    n = max(lab.scale.coding_ranks)
    for family in (DNN, CNN):
        ring = f"{family.folder}/ring_allreduce"
        runs = lab.curves(ring, 1, (f"data.only_classes={n}",), family.seeds(lab))
        best = [best_accuracy(run) for run in runs] or [float("nan")]
        final = [run.curve["test_accuracy"][-1] for run in runs]
        train = lab.load(ring).train
        rows.append(
            [family.name, spread(best, ".1%"), spread(final, ".1%"), f"{family.benchmark:.0%}", f"{train.epochs:g}"]
        )
        measured.append(f"{family.name} {spread(best, '.1%')}")
        cases[family.name] = middle(best) >= family.benchmark
        if train.target_accuracy < family.benchmark and not cases[family.name]:
            cases[family.name] = None
            reasons.append(f"At this scale the {family.name} is trained for {train.epochs:g} epochs only.")
    headers = ["model", "best test accuracy", "last", "benchmark of the paper", "epochs"]
    page.table(
        "Test accuracy of one rank: median (range) of the seeds. The paper's numbers could not be had.", headers, rows
    )
    page.finding("cssgd-single", "; ".join(measured), f"best snapshot, {n} classes, one rank", cases, " ".join(reasons))


for figure, family, zoom in ((4, DNN, False), (5, CNN, False), (6, DNN, True), (7, CNN, True)):
    what = "about the benchmark accuracy" if zoom else "over time"
    target(f"cssgd-fig{figure}", f"{family.name}: test accuracy {what}; CSSGD, SSGD, ASGD, grouped")(
        partial(accuracy_over_time, family, zoom)
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
    for figure, family in ((of_dnn, DNN), (of_cnn, CNN)):
        target(f"cssgd-fig{figure}", f"{family.name}: {what}")(partial(make, family))


@target("cssgd-load", "Counted bytes against formulas (19) to (30)")
def load(lab, page):
    cases = [(n, r) for n in lab.scale.coding_ranks for r in range(1, n + 1)]
    equal = {formula: formula.equal(cases) for formula in FORMULAS}
    n = lab.scale.tuning_ranks
    page.table(
        f"All nodes together, in units of M, the size of a gradient; q: groups, n/r rounded up. An example, n = {n} "
        f"and r = 2, and all n = {min(lab.scale.coding_ranks)} to {max(lab.scale.coding_ranks)} with all r.",
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
    page.table(
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
    page.finding(
        "cssgd-load",
        f"{sum(equal.values())} of {len(cases) * len(FORMULAS)} comparisons are equal",
        "packets of all nodes, counted one by one, once and per receiver",
        by_number,
        f"Not equal: {', '.join(wrong)}." if wrong else "",
    )
    page.note(
        "Lengths that r and n divide; else packets are padded by less than a number each. Packets have no headers."
    )
    page.note(
        "1/r is against the same blocks by unicast, (29). Against SSGD, which adds up its blocks before it sends, "
        "coding sends more unless r = n-1; see figures 9 and 11."
    )


def gradients(amount) -> str:
    return f"{float(amount):.4g}"
