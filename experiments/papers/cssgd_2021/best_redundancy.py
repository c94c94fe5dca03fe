"""Figures 14 and 15 of the CSSGD paper, and the scaling: CSSGD with the best redundancy per number of nodes."""

from collections.abc import Callable

from experiments import papers
from experiments.papers.cssgd_2021 import tasks
from experiments.papers.cssgd_2021.redundancy import communication_ratio
from experiments.papers.cssgd_2021.tasks import ALONE, ASGD, CNN, DNN, MULTICAST, RING, Method, Network, Task, coded
from experiments.runner import decide, sample
from experiments.runner.needs import Steps, Trainings, Trajectories, product, to_target
from experiments.runner.outcome import BY_CONSTRUCTION, CONTROL, EVIDENCE, Case
from experiments.runner.sample import Sample
from experiments.tables.claims import read_claims
from experiments.tables.draw import Panel
from experiments.tables.numbers import mean_staleness
from experiments.tables.section import Section
from experiments.tables.targets import Found
from grsgd.runs.measures import seconds_per_step

CSSGD, OURS, NOTHING_SENT = "CSSGD, best r", "grouped, best r (ours)", "r = n, nothing sent"
SCHEMES: dict[str, Callable[[int], list[Method]]] = {CSSGD: tasks.perhaps_fastest, OURS: tasks.all_grouped}
NAMES = CSSGD, MULTICAST.name, ASGD.name, OURS, RING.name, ALONE, NOTHING_SENT
CONTROLS = OURS, RING.name, ALONE, NOTHING_SENT
AGAINST_OTHER_STEPS = (CSSGD, ASGD.name), (OURS, ASGD.name), (CSSGD, ALONE)
"""Pairs of algorithms that take different training steps, so that trainings of both are compared."""


def methods(n: int, network: Network) -> list[Method]:
    return [MULTICAST, RING, *tasks.perhaps_fastest(n), coded(n), *tasks.all_grouped(n)]


def best(found: Found, task: Task, network: Network, scheme: str, n: int) -> Method:
    """Return the method of ``scheme`` whose redundancy has the shortest step."""
    return tasks.fastest(found, task, network, SCHEMES[scheme](n), n)


# ---- functions for figures 14 and 15 of the paper


def needs(task: Task, conditions) -> dict:
    seeds = task.runs(conditions)
    found = tasks.steps(conditions, task, tasks.IN_SIMULATION, methods, seeds)
    for variant in tasks.variants(conditions, task):
        found |= tasks.trainings(conditions, variant)
        found[variant, ALONE] = Trajectories(tasks.stopping(tasks.alone(conditions, variant)), tasks.FEWER_RUNS)
        for n in variant.nodes(conditions):
            asgd = tasks.setting(conditions, variant, ASGD, n)
            found[variant, ASGD, n] = Trainings(tasks.stopping(asgd), task.runs(conditions))
    return found | {ALONE: Steps(tasks.alone(conditions, task))}


def show(task: Task, found: Found, section: Section):
    panels, rows, cases, conditions = [], [], [], found.conditions
    for variant in tasks.variants(conditions, task):
        for network in tasks.IN_SIMULATION:
            title = f"{variant.name}, {network.name}"
            times = {n: times_to_target(found, task, variant, network, n) for n in variant.nodes(conditions)}
            lines = {name: {n: by[name] for n, by in times.items() if name in by} for name in NAMES}
            panels.append(Panel(title, "nodes n", "time to accuracy [s]", lines, controls=CONTROLS, logy=True))
            for n, by_name in times.items():
                texts = [by_name[name].text() if name in by_name else "—" for name in NAMES]
                rows.append([title, n, *texts, *(best(found, task, network, scheme, n).r for scheme in SCHEMES)])
            cases += mean_savings(task, variant, network, times)
    section.figure("Time to the target accuracy, logarithmic.", panels)
    headers = ["network", "n", *NAMES, "best r", "best r of grouped"]
    section.table("Seconds to the target accuracy, and the redundancies with the shortest steps.", headers, rows)
    nodes = ", ".join(map(str, task.nodes(conditions)))
    reason = (
        f"{tasks.SENDS_MORE} By the paper's own model, redundancy saves at most 46 % if r = 3 is the best, and at most "
        "29 % if r = 2 is the best; the paper's mean savings over SSGD are greater."
    )
    accounting = (
        f"geometric mean of the times for n = {nodes}, known only if each of these times is known; for every n, r is "
        "the best of 1 to n-1; an r that sends no less than r = 1 is not timed"
    )
    section.finding(task.claim, accounting, cases, reason)
    show_asgd(task, found, section)
    runs = task.runs(conditions) or conditions.scale.seeds
    section.note(
        f"ASGD: {runs} runs for each n, on the switch; the paper takes the mean of 10. "
        f"{NOTHING_SENT}: every node computes the whole batch. Savings over SSGD are the same for both outputs."
    )
    tasks.notes(section, conditions, task)


def show_asgd(task: Task, found: Found, section: Section):
    """Write into the section what stale gradients cost ASGD, and how stale they are on many nodes compared with few."""
    computing, apart, nodes = [], [], task.nodes(found.conditions)
    few, many = min(nodes), max(nodes)
    for variant in tasks.variants(found.conditions, task):
        for n in variant.nodes(found.conditions):
            both = (to_target(found[key], "samples") for key in ((variant, n), (variant, ASGD, n)))
            computing.append(decide.less(*both, f"{variant.name}, n = {n}", ASGD.name, "% fewer samples", source=""))
        if few < many:
            ages = [sample.of(found[variant, ASGD, n], mean_staleness) for n in (many, few)]
            apart.append(decide.more(*ages, f"{variant.name}, n = {many}", f"n = {few}", "updates more", source=""))
    section.finding(
        "cssgd-asgd-computing",
        "samples to the target accuracy: of SSGD and CSSGD, which need equally many, compared with ASGD",
        computing,
        "On few nodes, gradients are hardly stale, and ASGD applies each gradient by itself.",
    )
    if apart:
        accounting = "updates of the model between the pull of a gradient and its push, mean over a training of ASGD"
        section.finding("cssgd-states", accounting, apart)


def times_to_target(found: Found, task: Task, variant: Task, network: Network, n: int) -> dict[str, Sample]:
    """Return the seconds to the target accuracy by algorithm, each as a sample (values by seed).

    task: the model whose steps were timed. variant: the variant of the model that was trained.
    """
    chosen = {name: best(found, task, network, name, n) for name in SCHEMES}
    chosen |= {MULTICAST.name: MULTICAST, RING.name: RING, NOTHING_SENT: coded(n)}
    count = tasks.steps_to_target(found, variant, n)
    times = {
        name: product(count, tasks.step_seconds(found, task, network, method, n)) for name, method in chosen.items()
    }
    if network is tasks.SWITCH:
        times[ASGD.name] = to_target(found[variant, ASGD, n], "time")
    if n == found.conditions.scale.tuning_ranks:
        a_sample = sample.of(found[ALONE], seconds_per_step).median() / task.batch(found.conditions)
        times[ALONE] = to_target(found[variant, ALONE], "samples").scaled(a_sample)
    return times


def mean_savings(task: Task, variant: Task, network: Network, times: dict[int, dict[str, Sample]]) -> list[Case]:
    """Return comparisons (cases) of CSSGD and the grouped scheme with the paper's baselines and with controls.

    Two algorithms with equal training steps are compared once, not once for each kind of output of the DNN.
    """
    claim = read_claims([papers.folder("cssgd")])[task.claim]
    numbers = {MULTICAST.name: claim["ssgd_multicast"], ASGD.name: claim["asgd"]}
    pairs = [(CSSGD, name) for name in (MULTICAST.name, RING.name, NOTHING_SENT)] + [(OURS, MULTICAST.name)]
    pairs = pairs if variant is task else []
    if any(ASGD.name in by_name for by_name in times.values()):
        pairs += [(ours, theirs) for ours, theirs in AGAINST_OTHER_STEPS if any(theirs in by for by in times.values())]
    cases = []
    for ours, theirs in pairs:
        there = [by_name for by_name in times.values() if theirs in by_name]
        means = [sample.geometric_mean([by_name[side] for by_name in there]) for side in (ours, theirs)]
        number, kind = (numbers[theirs], EVIDENCE) if ours == CSSGD and theirs in numbers else (None, CONTROL)
        where = ", ".join([variant.name, network.name, *[ours] * (ours == OURS)])
        same_trainings = theirs not in (ASGD.name, ALONE)
        options = {"number": number, "source": network.source, "kind": kind, "pairs": same_trainings}
        cases.append(decide.less(*means, where, theirs, **options))
    return cases


# ---- functions for the scaling over the number of nodes


def scaling_needs(conditions) -> dict:
    of_few = tasks.perhaps_fastest(min(tasks.SWITCH.nodes(conditions)))

    def with_more(n: int, network: Network) -> list[Method]:
        """Return the methods, ASGD on a switch, and every r that may be the fastest on the fewest nodes."""
        return list(dict.fromkeys([*methods(n, network), *of_few, *[ASGD] * (network is tasks.SWITCH)]))

    parts = [tasks.steps(conditions, task, tasks.IN_SIMULATION, with_more) for task in (DNN, CNN)]
    return parts[0] | parts[1]


def show_scaling(found: Found, section: Section):
    panels, rows, not_linear, rechosen = [], [], [], []
    nodes = tasks.SWITCH.nodes(found.conditions)
    few, many = min(nodes), max(nodes)
    for network in tasks.IN_SIMULATION:
        for task in (DNN, CNN):
            title = f"{task.name}, {network.name}"
            names = (CSSGD, *[ASGD.name] * (network is tasks.SWITCH), OURS)
            rates = {name: rates_of_a_node(found, task, network, name, nodes) for name in names}
            panels.append(Panel(title, "nodes n", "samples per second and node", rates, controls=[OURS]))
            chosen = {n: best(found, task, network, CSSGD, n) for n in nodes}
            ratios = {n: communication_ratio(found, task, network, n).text() for n in nodes}
            for n in nodes:
                texts = [rates[name][n].text() if name in rates else "—" for name in (CSSGD, ASGD.name, OURS)]
                rows.append([title, n, *texts, chosen[n].r, ratios[n]])
            for name, by_n in rates.items():
                kind, unit = CONTROL if name == OURS else EVIDENCE, "% fewer samples per second and node"
                not_linear.append(decide.less(by_n[many], by_n[few], title, name, unit, kind=kind))
            kept = f"the best r for n = {few}"
            times = [
                tasks.step_seconds(found, task, network, method, many)
                for method in (chosen[many], coded(chosen[few].r))
            ]
            is_other, r = chosen[few].r != chosen[many].r, float(chosen[many].r)
            rechosen.append(decide.fact(is_other, title, kept, EVIDENCE, r, "is the best r", network.source, times[0]))
            rechosen.append(decide.less(*times, f"{title}, step time", kept, zone=0.0, kind=BY_CONSTRUCTION))
    section.figure("Samples per second and node: a level line is linear scaling.", panels)
    headers = ["model, network", "n", CSSGD, ASGD.name, OURS, "best r", "Tcomm / Tcalc"]
    section.table(
        "Samples per second and node; the best r of CSSGD; Tcomm / Tcalc of SSGD by multicast.", headers, rows
    )
    accounting = (
        f"samples per second and node, n = {many} compared with n = {few}; for ASGD, in proportion to a node's updates"
    )
    section.finding("cssgd-not-linear", accounting, not_linear)
    reason = "The best r of CSSGD is n-1 or close to n-1: nodes compute nearly the whole batch to avoid sending."
    section.finding("cssgd-rechoose", f"the best r of 1 to n-1, n = {many} compared with n = {few}", rechosen, reason)
    n = found.conditions.scale.tuning_ranks
    section.finding(
        "cssgd-bound",
        "Tcomm / Tcalc of SSGD by multicast, and the time that CSSGD with its best r saves over SSGD by multicast; the "
        f"DNN compared with the CNN, n = {n}",
        [case for network in tasks.IN_SIMULATION for case in bound_by_communication(found, network, n)],
    )
    section.note(tasks.NETWORKS_NOTE)


def rates_of_a_node(found: Found, task: Task, network: Network, name: str, nodes: list[int]) -> dict[int, Sample]:
    """Return the samples per second that a node trains on, by number of nodes.

    Schemes with redundancy are shown with their best redundancy.
    """
    batch = task.batch(found.conditions)
    chosen = {n: ASGD if name == ASGD.name else best(found, task, network, name, n) for n in nodes}
    seconds = {n: tasks.step_seconds(found, task, network, method, n) for n, method in chosen.items()}
    return {n: tasks.combined(lambda step: batch / step, steps) for n, steps in seconds.items()}


def bound_by_communication(found: Found, network: Network, n: int) -> list[Case]:
    """Return comparisons (cases) of the DNN with the CNN in two numbers: Tcomm / Tcalc, and the time that CSSGD saves.

    Tcomm / Tcalc is the ratio of communication to computing time.
    """
    ratios = [communication_ratio(found, task, network, n) for task in (DNN, CNN)]
    cases = [decide.more(*ratios, f"DNN, Tcomm / Tcalc, {network.name}", "the CNN", "Tcomm / Tcalc more")]
    for scheme, kind in ((CSSGD, EVIDENCE), (OURS, CONTROL)):
        saved = [
            tasks.combined(
                lambda ours, theirs: 100 * (1 - ours / theirs),
                tasks.step_seconds(found, task, network, best(found, task, network, scheme, n), n),
                tasks.step_seconds(found, task, network, MULTICAST, n),
            )
            for task in (DNN, CNN)
        ]
        where = f"DNN, {scheme}, {network.name}"
        cases.append(decide.more(*saved, where, "the CNN", "points of the time saved", kind=kind))
    return cases
