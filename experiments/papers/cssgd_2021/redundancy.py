"""Figures 12 and 13 of the CSSGD paper: a step's time by redundancy r, and the model T = r Tcalc + Tcomm / r."""

from dataclasses import replace

from coding.time_model import paper_step_seconds
from experiments.papers.cssgd_2021 import tasks
from experiments.papers.cssgd_2021.tasks import MULTICAST, TESTBED, Method, Network, Task, coded, combined, grouped
from experiments.runner import decide, sample
from experiments.runner.outcome import BY_CONSTRUCTION, CONTROL, EVIDENCE, SUPPORTED, Case
from experiments.runner.sample import Sample
from experiments.tables.draw import Panel
from experiments.tables.numbers import gradient_seconds
from experiments.tables.section import Section
from experiments.tables.targets import Found

FIT = 1.1
"""Greatest ratio between the time of a step and the time by the model that counts as a fit.

The ratio 1.1 is inferred, because the paper states no limit.
"""
MODEL, ITSELF, OURS = "model", "CSSGD", "grouped (ours)"
SCHEMES = {ITSELF: EVIDENCE, OURS: CONTROL}
NOTE = (
    "r = 1 sends what SSGD by unicast does; with r = n nothing is sent, and every node computes the whole batch. The "
    "grouped scheme with redundancy r has n/r groups, rounded up. Simulated time has encoding and decoding as far as "
    "the calibrated work of a step has them."
)
WINDOWS = (
    "By the model r is best if r (r-1) <= Tcomm / Tcalc <= r (r+1): from 6 to 12 for r = 3, from 2 to 6 for r = 2. The "
    "ratio depends on links and processors, which differ here from the paper's."
)


def needs(task: Task, conditions) -> dict:
    found = tasks.steps(conditions, task, tasks.EVERYWHERE, methods)
    return {key: need for key, need in found.items() if key[-1] == conditions.scale.tuning_ranks}


def methods(n: int, network: Network) -> list[Method]:
    """Return the methods with all redundancies that are compared on a network.

    On the testbed's switch, the methods have only the redundancies 1, 2 and 3, around the paper's best redundancy, and
    n-1, which sends least.
    """
    if network != TESTBED:
        return [MULTICAST, *tasks.all_coded(n), coded(n), *tasks.all_grouped(n)]
    return [MULTICAST, *map(coded, sorted({1, 2, 3, n - 1} - {n})), grouped(2)]


def show(task: Task, found: Found, section: Section):
    n = found.conditions.scale.tuning_ranks
    networks = [network for network in tasks.EVERYWHERE if (task, network, MULTICAST, n) in found]
    times = {network: times_by_redundancy(found, task, network, n) for network in networks}
    section.figure(
        f"Time of a step of {n} nodes over the redundancy, logarithmic.",
        [Panel(network.name, "redundancy r", "time of a step [s]", times[network], logy=True) for network in networks],
    )
    rows = []
    for network, by_scheme in times.items():
        ratio = communication_ratio(found, task, network, n).text()
        for name, by_r in by_scheme.items():
            texts = {r: seconds.text() + " *" * (r in best(by_r)) for r, seconds in by_r.items()}
            rows.append([network.name, name, *(texts.get(r, "—") for r in range(1, n + 1)), ratio])
    caption = f"Seconds of a step on {n} nodes, and Tcomm / Tcalc of SSGD by multicast; * is the best r of some seed."
    section.table(caption, ["network", "", *(f"r = {r}" for r in range(1, n + 1)), "Tcomm / Tcalc"], rows)
    at = (
        f"seconds of a step on {n} nodes; Tcalc is the time of the gradients in a step of SSGD by multicast, and Tcomm "
        "the rest of this step"
    )
    fits = [fit(by_scheme, name, network) for network, by_scheme in times.items() for name in SCHEMES]
    accounting = f"{at}; the greatest ratio, over all r, of a step's time and the model's, which may be {FIT:g} at most"
    section.finding("cssgd-model", accounting, fits, tasks.SENDS_MORE)
    given = [
        model_optimum(times[network], communication_ratio(found, task, network, n), task, network)
        for network in networks
    ]
    section.finding(
        "cssgd-model-optimum", f"{at}; the model's best r for the Tcomm / Tcalc here", given, WINDOWS
    )
    optima = [
        optimum(times[network], name, kind, task, network)
        for network in networks
        for name, kind in SCHEMES.items()
        if len(times[network][name]) > 1
    ]
    accounting = f"{at}; the best r with every seed; measured runs have r = 1, 2, 3 and n-1 only"
    section.finding("cssgd-optimum", accounting, optima, tasks.SENDS_MORE)
    section.note(f"{tasks.NETWORKS_NOTE} {NOTE}")


def times_by_redundancy(found: Found, task: Task, network: Network, n: int) -> dict[str, dict[int, Sample]]:
    """Return the seconds of a step as samples (values by seed), by scheme and redundancy."""
    times = {ITSELF: {}, MODEL: {}, OURS: {}}
    for method in methods(n, network)[1:]:
        scheme = ITSELF if method.config == "coded" else OURS
        times[scheme][method.r] = tasks.step_seconds(found, task, network, method, n)
    for r in range(1, n + 1):
        modelled = combined(lambda *parts, r=r: paper_step_seconds(r, *parts), *parts(found, task, network, n))
        times[MODEL][r] = modelled
    return times


def parts(found: Found, task: Task, network: Network, n: int) -> tuple[Sample, Sample]:
    """Return Tcalc and Tcomm (section 3.2.4 of the paper) by seed.

    Tcalc is the time of the gradients in a step of SSGD by multicast, and Tcomm is the remaining time of the step.
    """
    key = task, network, MULTICAST, n
    computing = sample.of(found[key], gradient_seconds)
    return computing, combined(lambda whole, calc: whole - calc, tasks.step_seconds(found, *key), computing)


def communication_ratio(found: Found, task: Task, network: Network, n: int) -> Sample:
    """Return the ratio of communication to computing time (Tcomm / Tcalc) of SSGD by multicast, by seed."""
    return combined(lambda calc, comm: comm / calc, *parts(found, task, network, n))


def best(by_r: dict[int, Sample]) -> set[int]:
    """Return the redundancies whose step is the shortest with at least one seed."""
    return {min(by_r, key=lambda r: by_r[r].values[seed]) for seed in next(iter(by_r.values())).values}


def optimum(times: dict, name: str, kind: str, task: Task, network: Network) -> Case:
    """Return the case (comparison) on the redundancy that the paper finds best.

    The case is supported if the paper's redundancy is the best with every seed, and refuted if with none.
    """
    found = best(times[name])
    holds = found == {task.best_r} if len(found) == 1 or task.best_r not in found else None
    estimate = float(min(found)) if len(found) == 1 else None
    steps = next(iter(times[name].values()))
    return decide.fact(holds, network.name, name, kind, estimate, "is the best r", network.source, steps)


def model_optimum(times: dict, ratio: Sample, task: Task, network: Network) -> Case:
    """Return the case (comparison) on the best redundancy according to the model, which follows from Tcomm / Tcalc.

    Whether the model's best redundancy is also the paper's depends on the testbed's Tcomm / Tcalc, and not on the
    method.
    """
    own = optimum(times, MODEL, BY_CONSTRUCTION, task, network)
    where = f"{network.name}, Tcomm / Tcalc = {ratio.text()}; the paper's r = {task.best_r} needs {needed(task.best_r)}"
    return replace(own, condition=where, verdict=SUPPORTED)


def needed(r: int) -> str:
    """Return, as text, the range of Tcomm / Tcalc in which ``r`` is the best redundancy according to the model."""
    return f"{r * (r - 1)} to {r * (r + 1)}"


def fit(times: dict[str, dict[int, Sample]], name: str, network: Network) -> Case:
    """Return the case (comparison) on the model's greatest error, over all redundancies at which ranks send.

    The model's error is the ratio of the model's time to the step's time, or the inverse if that is greater.
    """
    errors = [
        combined(lambda model, true: max(model / true, true / model), times[MODEL][r], seconds)
        for r, seconds in times[name].items()
        if r < max(times[MODEL])
    ]
    greatest = combined(lambda *each: max(each), *errors)
    return decide.at_most(greatest, FIT, network.name, "times as long at most", name, network.source, SCHEMES[name])
