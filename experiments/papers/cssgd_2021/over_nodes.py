"""Figures 8 to 11 of the CSSGD paper: time to the benchmark accuracy, and traffic, over the number of nodes.

The redundancy of each method is fixed.
"""

from experiments.papers.cssgd_2021 import tasks
from experiments.papers.cssgd_2021.tasks import (
    MULTICAST,
    RING,
    SHARED,
    TESTBED,
    UNICAST,
    Method,
    Network,
    Task,
    coded,
    grouped,
)
from experiments.runner import decide
from experiments.runner.outcome import CONTROL, EVIDENCE, Case
from experiments.tables.draw import Panel
from experiments.tables.section import Section
from experiments.tables.targets import Found
from grsgd.runs.run_file import Run

CODED = coded(2), coded(3)
COMPARED = (*CODED, grouped(2), UNICAST, MULTICAST, RING)
BLOCKS = tuple(Method(f"SSGD, blocks of r = {r}", "ssgd", r, ("algorithm.accounting='per-block'",)) for r in (2, 3))
"""SSGD by multicast that divides the batch into CSSGD's blocks, and sends the gradient of each block."""
OURS = " The grouped scheme, which is ours, and ring all-reduce are controls."


def methods(n: int, network: Network) -> list[Method]:
    """Return the methods of figures 8 and 10, and the controls.

    CSSGD with redundancy n is left out, because it sends nothing.
    """
    present = [method for method in COMPARED if method.r is None or method.r < n]
    return [method for method in present if method not in (UNICAST, RING) or network != TESTBED]


def pairs(n: int, network: Network, *baselines: Method) -> list[tuple[Method, Method, str]]:
    """Return the pairs of methods that are compared on n nodes, each with the word "evidence" or "control"."""
    present = methods(n, network)
    claimed = [(ours, theirs, EVIDENCE) for ours in CODED for theirs in baselines if theirs.r in (None, ours.r)]
    controls = [(ours, RING, CONTROL) for ours in CODED] + [(grouped(2), MULTICAST, CONTROL)]
    return [pair for pair in claimed + controls if pair[0] in present and (pair[1] in present or pair[1] in BLOCKS)]


# ---- functions for figures 8 and 10 of the paper


def time_needs(task: Task, conditions) -> dict:
    return tasks.steps(conditions, task, tasks.EVERYWHERE, methods) | tasks.trainings(conditions, task)


def show_time(task: Task, found: Found, section: Section):
    panels, rows, cases = [], [], []
    for network in tasks.EVERYWHERE:
        nodes = network.nodes(found.conditions)
        seconds = {
            n: {method: tasks.step_seconds(found, task, network, method, n) for method in methods(n, network)}
            for n in nodes
        }
        lines = {
            method.name: {
                n: tasks.steps_to_target(found, task, n).scaled(seconds[n][method].median())
                for n in nodes
                if method in seconds[n] and (task, n) in found
            }
            for method in COMPARED
        }
        panels.append(Panel(network.name, "nodes n", "time to accuracy [s]", lines, controls=[RING.name], logy=True))
        for n in nodes:
            texts = {method: sample.text() for method, sample in seconds[n].items()}
            rows.append([network.name, n, *(texts.get(method, "—") for method in COMPARED)])
        for n in tasks.case_nodes(nodes):
            for ours, theirs, kind in pairs(n, network, UNICAST, MULTICAST):
                where, both = f"{network.name}, {ours.name}, n = {n}", (seconds[n][ours], seconds[n][theirs])
                cases.append(decide.less(*both, where, theirs.name, source=network.source, kind=kind))
    section.figure("Time to the target accuracy, logarithmic.", panels)
    section.table("Seconds of a step.", ["network", "n", *(method.name for method in COMPARED)], rows)
    accounting = "time to accuracy, compared by the time of a step: all algorithms take the same number of steps"
    section.finding("cssgd-time-nodes", accounting, cases, tasks.SENDS_MORE + OURS)
    tasks.notes(section, found.conditions, task)


# ---- functions for figures 9 and 11 of the paper

ONCE, PER_RECEIVER = "sent_once", "sent"
ACCOUNTINGS = {
    "packets counted once": (ONCE, ONCE),
    "packets counted per receiver": (PER_RECEIVER, PER_RECEIVER),
    "CSSGD's packets counted once, SSGD's per receiver": (ONCE, PER_RECEIVER),
}
"""Ways of counting packets to several nodes: one for schemes with redundancy, and one for all other schemes.

The last pair in ``ACCOUNTINGS`` is the paper's way of counting.
"""


def traffic_methods(n: int, network: Network) -> list[Method]:
    return [*methods(n, network), *(method for method in BLOCKS if method.r < n)]


def traffic_needs(task: Task, conditions) -> dict:
    # one seed, because bytes do not depend on the seed
    counted = tasks.steps(conditions, task, [SHARED], traffic_methods, seeds=1)
    return counted | tasks.trainings(conditions, task)


def show_traffic(task: Task, found: Found, section: Section):
    nodes = SHARED.nodes(found.conditions)
    sent = {n: {method: megabytes(found, task, method, n) for method in traffic_methods(n, SHARED)} for n in nodes}
    panels = []
    for name, accounting in ACCOUNTINGS.items():
        lines = {
            method.name: {
                n: tasks.steps_to_target(found, task, n).scaled(counted(by_method, method, accounting) / 1e3)
                for n, by_method in sent.items()
                if method in by_method and (task, n) in found
            }
            for method in (*COMPARED, *BLOCKS)
        }
        panels.append(Panel(name, "nodes n", "sent to the target [GB]", lines, controls=[RING.name], logy=True))
    section.figure("Sent by all nodes until the target accuracy, logarithmic.", panels, times=False)
    rows = []
    for n, by_method in sent.items():
        texts = {method: f"{each[ONCE]:.4g} / {each[PER_RECEIVER]:.4g}" for method, each in by_method.items()}
        rows.append([n, *(texts.get(method, "—") for method in (*COMPARED, *BLOCKS))])
    headers = ["n", *(method.name for method in (*COMPARED, *BLOCKS))]
    section.table("MB that all nodes together send in a step: counted once / per receiver.", headers, rows)
    cases = [
        fewer(sent[n], ours, theirs, kind, name, n)
        for name in ACCOUNTINGS
        for n in tasks.case_nodes(nodes)
        for ours, theirs, kind in pairs(n, SHARED, MULTICAST, *BLOCKS)
    ]
    reason = f"{tasks.SENDS_MORE} The paper counts a coded packet once, and each block of SSGD once per receiver."
    accounting = "bytes of payload in a step, counted by the communicator; the paper counts in the third way"
    section.finding("cssgd-traffic", accounting, cases, reason + OURS)
    tasks.notes(section, found.conditions, task)


def megabytes(found: Found, task: Task, method: Method, n: int) -> dict[str, float]:
    """Return the MB that all nodes together send in a step, by way of counting a packet to several nodes."""
    return megabytes_of(found[task, SHARED, method, n][0])


def megabytes_of(run: Run) -> dict[str, float]:
    """Return the MB that all ranks of one run send in a step, by way of counting a packet to several nodes."""
    steps = run.ranks["steps"]
    return {what: float(run.traffic[what].sum() / steps[steps > 0].mean()) / 1e6 for what in (ONCE, PER_RECEIVER)}


def counted(sent: dict[Method, dict[str, float]], method: Method, accounting: tuple[str, str]) -> float:
    return sent[method][accounting[method.config not in ("coded", "grouped")]]


def fewer(sent: dict, ours: Method, theirs: Method, kind: str, accounting: str, n: int) -> Case:
    """Return the case (comparison) of the bytes that all nodes together send in a step with ``ours`` and ``theirs``."""
    share = counted(sent, ours, ACCOUNTINGS[accounting]) / counted(sent, theirs, ACCOUNTINGS[accounting])
    baseline = "SSGD that sends each block" if theirs in BLOCKS else theirs.name
    condition = f"{accounting}, {ours.name}, n = {n}"
    return decide.fact(share < 1, condition, baseline, kind, 100 * (1 - share), "% fewer bytes")
