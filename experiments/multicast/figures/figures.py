"""The content of figures 8 to 15 of the CSSGD paper for runs over IP multicast, with verdicts on the paper's claims.

A figure is made in several views. A view is either the measured numbers of the runs, or one way to count the packets
of the runs.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from experiments.multicast.figures import plan
from experiments.multicast.figures.views import VIEWS, megabytes_sent, title
from experiments.papers.cssgd_2021 import best_redundancy, over_nodes, redundancy, tasks
from experiments.papers.cssgd_2021.best_redundancy import CSSGD, NOTHING_SENT, OURS
from experiments.papers.cssgd_2021.over_nodes import BLOCKS
from experiments.papers.cssgd_2021.tasks import ASGD, CNN, DNN, MULTICAST, RING, UNICAST, Method, Network, Task, coded
from experiments.runner import decide, sample
from experiments.runner.outcome import Case, Finding
from experiments.runner.sample import Sample
from experiments.tables.targets import Found
from grsgd.runs.measures import seconds_per_step

SECONDS, MEGABYTES = "time of a step [s]", "sent in a step [MB]"
NODES, REDUNDANCY = "nodes n", "redundancy r"
AS_MANY = "ASGD, after as many samples"

Lines = Mapping[str, Mapping[float, Sample]]
"""The lines of a figure: samples by label of the method, and by value on the horizontal axis."""
Factors = Mapping[int, float]
"""Samples that ASGD needs for one accuracy, divided by a synchronous algorithm's samples, by number of nodes."""


class Shown(NamedTuple):
    """The content of a figure: its lines, the verdicts on claims of the paper, and a note.

    lines: samples (values by seed) of all methods, by view. reference: samples of SSGD by multicast, by view.
    controls: labels of methods that are not in the paper. findings: for each claim, one `Finding` per view. note:
    further information.
    """

    xlabel: str
    ylabel: str
    lines: dict[Network, Lines]
    reference: dict[Network, Mapping[float, Sample]]
    controls: tuple[str, ...]
    findings: dict[str, dict[Network, Finding]]
    note: str = ""


def over(found: Found, task: Task, methods: Callable[[int], list[Method]], nodes: Iterable[int], value) -> dict:
    """Return the lines of a figure over the numbers of nodes, by view.

    ``value``: function from a run to the plotted value.
    """
    names = dict.fromkeys(method for n in nodes for method in methods(n))
    return {
        view: {
            method.name: {n: sample.of(found[task, view, method, n], value) for n in nodes if method in methods(n)}
            for method in names
        }
        for view in VIEWS
    }


def finding(claim: str, cases: Callable[[Network], list[Case]]) -> dict[str, dict[Network, Finding]]:
    """Return the `Finding` on a claim in each view.

    ``cases``: function from a view to the comparisons (cases) that decide the claim.
    """
    return {claim: {view: Finding(claim, view.name, decide.corrected(cases(view))) for view in VIEWS}}


# ---- functions for figures 8 to 11 of the paper


def show_time(task: Task, found: Found, nodes: list[int], factors: Factors) -> Shown:
    lines = over(found, task, plan.of_time, nodes, seconds_per_step)
    compared = partial(comparisons, lines, nodes, (UNICAST, MULTICAST), decide.less)
    return of_nodes(SECONDS, lines, finding("cssgd-time-nodes", compared))


def show_traffic(task: Task, found: Found, nodes: list[int], factors: Factors) -> Shown:
    lines = over(found, task, plan.of_traffic, nodes, megabytes_sent)
    fewer = partial(decide.less, unit="% fewer bytes", zone=0.0)
    compared = partial(comparisons, lines, nodes, (MULTICAST, *BLOCKS), fewer)
    return of_nodes(MEGABYTES, lines, finding("cssgd-traffic", compared))


def comparisons(
    lines: Mapping[Network, Lines],
    nodes: list[int],
    baselines: tuple[Method, ...],
    compare: Callable[..., Case],
    view: Network,
) -> list[Case]:
    """Return, for each number of nodes, the comparisons of fixed redundancies with ``baselines`` and with controls.

    compare: function that compares two samples and returns a `Case` with the verdict.
    """
    cases = []
    for n in nodes:
        for ours, theirs, kind in over_nodes.pairs(n, view, *baselines):
            both = [lines[view][method.name][n] for method in (ours, theirs)]
            cases.append(compare(*both, f"{ours.name}, n = {n}", theirs.name, source=view.source, kind=kind))
    return cases


def of_nodes(ylabel: str, lines: dict[Network, Lines], findings: dict[str, dict[Network, Finding]]) -> Shown:
    reference = {view: lines[view][MULTICAST.name] for view in VIEWS}
    return Shown(NODES, ylabel, lines, reference, (RING.name,), findings)


# ---- functions for figures 12 and 13 of the paper


def show_redundancies(task: Task, found: Found, nodes: list[int], factors: Factors) -> Shown:
    n = max(nodes)
    times = {view: redundancy.times_by_redundancy(found, task, view, n) for view in VIEWS}
    ratio = redundancy.communication_ratio(found, task, plan.IP, n).text()

    def optimum(name: str, kind: str, view: Network) -> Case:
        return redundancy.optimum(times[view], name, kind, task, view)

    def fits(view: Network) -> list[Case]:
        return [redundancy.fit(times[view], name, view) for name in redundancy.SCHEMES]

    findings = finding("cssgd-model", fits)
    findings |= finding(
        "cssgd-model-optimum",
        lambda view: [
            redundancy.model_optimum(times[view], redundancy.communication_ratio(found, task, view, n), task, view)
        ],
    )
    findings |= finding(
        "cssgd-optimum", lambda view: [optimum(name, kind, view) for name, kind in redundancy.SCHEMES.items()]
    )
    reference = {
        view: dict.fromkeys(range(1, n + 1), tasks.step_seconds(found, task, view, MULTICAST, n)) for view in VIEWS
    }
    note = f"{n} nodes. Tcomm / Tcalc of SSGD by multicast: {ratio}. {redundancy.WINDOWS}"
    return Shown(REDUNDANCY, SECONDS, times, reference, (redundancy.OURS,), findings, note)


# ---- functions for figures 14 and 15 of the paper


def show_best(task: Task, found: Found, nodes: list[int], factors: Factors) -> Shown:
    times = {view: {n: times_of_best(found, task, view, n, factors) for n in nodes} for view in VIEWS}
    names = dict.fromkeys(name for by_name in times[plan.IP].values() for name in by_name)
    lines = {
        view: {name: {n: by_name[name] for n, by_name in by_nodes.items() if name in by_name} for name in names}
        for view, by_nodes in times.items()
    }
    claimed = [CSSGD, MULTICAST.name, ASGD.name]
    findings = finding(task.claim, lambda view: best_redundancy.mean_savings(task, task, view, times[view]))
    chosen = {view: [best_redundancy.best(found, task, view, CSSGD, n).r for n in nodes] for view in VIEWS}
    words = "; ".join(f"{title(view)}: {', '.join(map(str, best))}" for view, best in chosen.items())
    note = f"The best r of CSSGD on {', '.join(map(str, nodes))} nodes. {words}. {asgd_in_words(factors)}"
    reference = {view: lines[view][MULTICAST.name] for view in VIEWS}
    return Shown(NODES, SECONDS, lines, reference, tuple(name for name in names if name not in claimed), findings, note)


def times_of_best(found: Found, task: Task, view: Network, n: int, factors: Factors) -> dict[str, Sample]:
    """Return the seconds of a step, by name of the method.

    For ASGD, these are the seconds in which the training progresses as far as in a step of the other methods.
    """
    chosen = {name: best_redundancy.best(found, task, view, name, n) for name in (CSSGD, OURS)}
    chosen |= {MULTICAST.name: MULTICAST, AS_MANY: ASGD, RING.name: RING, NOTHING_SENT: coded(n)}
    times = {name: tasks.step_seconds(found, task, view, method, n) for name, method in chosen.items()}
    return times | ({ASGD.name: times[AS_MANY].scaled(factors[n])} if n in factors else {})


def asgd_in_words(factors: Factors) -> str:
    if not factors:
        return "How many samples ASGD needs to the same accuracy is not known for these."
    words = ", ".join(f"{factor:.2f} ({n} nodes)" for n, factor in factors.items())
    return f"To the benchmark accuracy ASGD needs {words} times the samples of the others, in recorded trainings."


class Figure(NamedTuple):
    """A figure of the paper, with the functions that choose its runs and make its content.

    methods: function from the number of nodes to the methods that the figure shows. is_of_most: True if the figure
    shows only the greatest number of nodes. show: function from task, runs, numbers of nodes and ASGD's `Factors` to
    the content.
    """

    task: Task
    title: str
    methods: Callable[[int], list[Method]]
    is_of_most: bool
    show: Callable[[Task, Found, list[int], Factors], Shown]


KINDS = {
    (8, 10): ("time over nodes", plan.of_time, False, show_time),
    (9, 11): ("traffic over nodes", plan.of_traffic, False, show_traffic),
    (12, 13): ("time over the redundancy", plan.of_redundancies, True, show_redundancies),
    (14, 15): ("time over nodes with the best redundancy", plan.of_best, False, show_best),
}
"""Kinds of figures, by the numbers of the kind's two figures in the paper: for the DNN, and for the CNN."""
FIGURES = {
    number: Figure(DNN if number == of_dnn else CNN, *kind)
    for (of_dnn, of_cnn), kind in KINDS.items()
    for number in (of_dnn, of_cnn)
}


def wanted(numbers: Iterable[int], nodes: list[int]) -> dict[Task, dict[int, list[Method]]]:
    """Return the methods that the figures ``numbers`` show, by task and number of nodes."""
    needed: dict[Task, dict[int, list[Method]]] = {}
    for number in numbers:
        figure = FIGURES[number]
        for n in [max(nodes)] if figure.is_of_most else nodes:
            needed.setdefault(figure.task, {}).setdefault(n, []).extend(figure.methods(n))
    return needed
