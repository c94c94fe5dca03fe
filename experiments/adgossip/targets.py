"""The figures of adaptive gossip (Ho, Wu, Liu 2018): exchanges by the change of the model against fixed periods."""

import math
from collections.abc import Callable, Iterable

import numpy as np

from experiments.reproduce.cell import CLOCK, SIMULATED
from experiments.reproduce.compare import claim, extent, ns
from experiments.reproduce.draw import Panel
from experiments.reproduce.lab import (
    A_DIFFERENCE,
    EQUAL,
    SLOW_LINKS,
    SOURCES,
    Lab,
    all_at_least,
    best_accuracy,
    less,
    middle,
    points,
    rises,
    samples_to,
    saving,
    seconds_to,
    spread,
)
from experiments.reproduce.targets import target
from grsgd.results import Run

ADAPTIVE = "adaptive"
GOSSIP = {ADAPTIVE: "adgossip/adaptive", "period 1": "adgossip/gossip_1", "period 10": "adgossip/gossip_10"}
ELASTIC = {ADAPTIVE: "adgossip/easgd_adaptive", "period 1": "adgossip/easgd_1", "period 10": "adgossip/easgd_10"}
SINGLE_MODELS = ("train.evaluate_replicas=true",)
"""Test every rank's own model as well as their average."""
THETAS = (0.0, 0.02, 0.05, 0.1, 0.5)
THETA = 0.05
"""A constant threshold, one of those."""
SHARES = (1 / 4, 1 / 2, 3 / 4, 1)
"""Of a run, at the end of which exchanges are counted."""
SEEDS = range(2)
"""Of trainings at a single n."""
ABOUT = 1.0
"""Points of accuracy by which models may differ that are called about as accurate."""

SOME = A_DIFFERENCE[CLOCK]
"""Per cent saved everywhere that are told where they are not those of the paper."""

UNITS = {"[MB]": 1e6, "[%]": 0.01}

BY_CONSTRUCTION = (
    "The automatic threshold is set to about 0.08 exchanges a step: 92 % fewer than one a step, and a fifth fewer than "
    "one in ten steps, whatever the training does. A run of few steps keeps to that rate only roughly."
)


# ---- what a run sent, and what it cost


def bytes_sent(run: Run) -> float:
    return float(run.traffic["sent"].sum())


def bytes_to_target(run: Run) -> float:
    """Bytes a sample, of the whole run, times samples to the target accuracy; NaN if it was not reached."""
    return bytes_sent(run) / float(run.ranks["samples"].sum()) * samples_to(run)


def exchanges(run: Run) -> float:
    """Of pairs, begun by any rank: each sends two models."""
    return bytes_sent(run) / (2 * run.attributes["model_bytes"])


def steps(run: Run) -> float:
    """Of all ranks."""
    return float(run.ranks["steps"].sum())


def distance(run: Run) -> float:
    """Of the ranks' models from their average at the last snapshot."""
    return last(run.curve["consensus_distance"])


def last(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known[-1]) if known.size else math.nan


# ---- adaptive against fixed periods


def over_ranks(lab: Lab, numbers: Callable) -> dict[str, dict[tuple[str, int], list[float]]]:
    """On slow links, by name, source of time and n, what ``numbers(configuration, n, source)`` has for the seeds."""
    places = [(source, n) for source in (CLOCK, SIMULATED) for n in ns(lab, source, SLOW_LINKS)]
    return {name: {(source, n): numbers(config, n, source) for source, n in places} for name, config in GOSSIP.items()}


def lines(found: dict, unit: float = 1.0) -> dict[str, dict[float, list[float]]]:
    """For a panel over n."""
    return {
        f"{name}, {SOURCES[source]}": {
            n: [v / unit for v in values] for (s, n), values in places.items() if s == source
        }
        for name, places in found.items()
        for source in (CLOCK, SIMULATED)
    }


def bars(found: dict) -> dict[str, dict[str, list[float]]]:
    """For a panel with a group of bars for each n."""
    return {
        f"{name}, {SOURCES[source]}": {str(n): values}
        for name, places in found.items()
        for (source, n), values in places.items()
    }


def savings(found: dict) -> dict[str, list[float]]:
    """Of the adaptive form against each of the others, in per cent, wherever both were run."""
    ours = found[ADAPTIVE]
    return {
        name: [saving(ours[where], values) for where, values in places.items()]
        for name, places in found.items()
        if name != ADAPTIVE
    }


def against(claimed: float, what: str, saved: dict[str, list[float]]) -> dict[str, bool | None]:
    """Whether so many per cent were saved against each of the others everywhere; where not, but some were, that too."""
    cases: dict[str, bool | None] = {}
    for name, values in saved.items():
        enough = cases[f"{what} against {name}"] = all_at_least(values, claimed)
        if not enough and all_at_least(values, SOME):
            cases[f"{what} against {name}, less but not {claimed:g} % everywhere"] = True
    return cases


def in_words(saved: dict[str, list[float]]) -> str:
    return ", ".join(f"{extent(values)} than {name}" for name, values in saved.items())


def about_as_accurate(ours: Iterable[float], theirs: Iterable[float]) -> bool | None:
    gain = points(ours, theirs)
    return None if math.isnan(gain) else gain >= -ABOUT


def rows_by_place(columns: dict[str, dict], form: Callable[[str, list[float]], str]) -> list[list[str]]:
    """A row for each number of ranks and configuration; ``columns``: by title, what `over_ranks` found."""
    first = next(iter(columns.values()))
    return [
        [f"{SOURCES[source]}, n = {n}", name, *(form(what, found[name][source, n]) for what, found in columns.items())]
        for source, n in next(iter(first.values()))
        for name in first
    ]


def number(what: str, values: list[float]) -> str:
    """As text, in the unit that ``what`` names."""
    unit = next((unit for unit in UNITS if unit in what), None)
    return spread([value / UNITS[unit] for value in values] if unit else values)


# ---- the targets


@target("adgossip-traffic", "Bytes until a fixed accuracy: exchanges by change against fixed periods")
def traffic(lab, page):
    counted = {"to the target [MB]": bytes_to_target, "whole run [MB]": bytes_sent, "consensus distance": distance}
    found = {
        what: over_ranks(lab, lambda config, n, source, value=value: lab.measure(value, config, n, source, SLOW_LINKS))
        for what, value in counted.items()
    }
    to_target, whole, apart = found.values()
    page.figure(
        "Bytes sent by all ranks until the target accuracy, on slow links, and what saving them costs: the distance of "
        "the ranks' models from their average at the end.",
        [
            Panel("until the target accuracy", "ranks n", "sent [MB]", lines(to_target, 1e6), logx=True, logy=True),
            Panel("at the end of training", "ranks n", "consensus distance", lines(apart), logx=True, logy=True),
        ],
        times=False,
    )
    page.table(
        "Payload that all ranks sent on slow links: median (range) of the seeds.",
        ["time and ranks", "exchanges", *counted],
        rows_by_place(found, number),
    )
    claimed = claim("adgossip-traffic")["low"]
    cases = against(claimed, "bytes to the target", savings(to_target))
    cases |= against(claimed, "bytes of the whole run", savings(whole))
    page.finding(
        "adgossip-traffic",
        f"to the target: {in_words(savings(to_target))}; in the whole run: {in_words(savings(whole))}; "
        f"consensus distance: {distances(apart)}",
        "payload of all ranks, measured and simulated, all n, slow links; to the target: bytes a sample times samples",
        cases,
        "The rate of exchanges is not that of the claim in so few steps, or against such a period; bytes to the "
        "target also depend on how many steps it takes to get there.",
    )
    page.note(BY_CONSTRUCTION)


def distances(found: dict) -> str:
    """The medians, from the least to the greatest of all n."""
    texts = []
    for name, places in found.items():
        middles = [middle(values) for values in places.values()]
        texts.append(f"{name} {min(middles):.2g} to {max(middles):.2g}")
    return ", ".join(texts)


@target("adgossip-time", "Time to a fixed accuracy on slow and fast links: exchanges by change against fixed periods")
def time(lab, page):
    slow = over_ranks(lab, lambda config, n, source: lab.seconds(config, n, source, SLOW_LINKS))
    n = lab.scale.tuning_ranks
    fast = {
        name: {(SIMULATED, n): lab.seconds(config, n, SIMULATED, EQUAL, SINGLE_MODELS, SEEDS)}
        for name, config in GOSSIP.items()
    }
    page.figure(
        "Time to the target accuracy; median and range of the seeds.",
        [
            Panel(SLOW_LINKS.name, "ranks n", "time to accuracy [s]", lines(slow), logx=True),
            Panel(EQUAL.name, "ranks n", "time to accuracy [s]", bars=bars(fast)),
        ],
    )
    page.table(
        "Seconds to the target accuracy: median (range) of the seeds.",
        ["links", "time and ranks", "exchanges", "seconds"],
        [["slow", *row] for row in rows_by_place({"seconds": slow}, number)]
        + [["fast", *row] for row in rows_by_place({"seconds": fast}, number)],
    )
    claimed = claim("adgossip-time")["low"]
    cases = against(claimed, "slow links", savings(slow)) | against(claimed, "fast links", savings(fast))
    page.finding(
        "adgossip-time",
        f"slow links: {in_words(savings(slow))}; fast links: {in_words(savings(fast))}",
        f"time to accuracy; slow links: measured and simulated, all n; fast links: simulated, n = {n}",
        cases,
        "Time falls only as far as exchanges took time: the link and the period of the baseline decide whether so "
        "much can be saved. Fewer exchanges may also need more steps to the same accuracy.",
    )
    page.note(
        "A time is that of the first snapshot at or above the target, so it is known to the distance of two snapshots."
    )


@target("adgossip-accuracy", "Accuracy: exchanges by change against fixed periods")
def accuracy(lab, page):
    n = lab.scale.tuning_ranks
    runs = {name: lab.runs(config, n, SIMULATED, EQUAL, SINGLE_MODELS, SEEDS) for name, config in GOSSIP.items()}
    measures = {
        "best, average": best_accuracy,
        "last, average": lambda run: last(run.curve["test_accuracy"]),
        "last, worst single": lambda run: last(run.curve["test_accuracy_min"]),
        "last, best single": lambda run: last(run.curve["test_accuracy_max"]),
    }
    found = {
        name: {what: [100 * value(run) for run in some] or [math.nan] for what, value in measures.items()}
        for name, some in runs.items()
    }
    panels = [
        Panel(
            title,
            "epochs",
            "test accuracy [%]",
            curves={name: [(epochs(run), 100 * run.curve[column]) for run in some] for name, some in runs.items()},
        )
        for title, column in (("averaged model", "test_accuracy"), ("worst of the ranks' models", "test_accuracy_min"))
    ]
    page.figure(f"Test accuracy of n = {n} ranks, every seed.", panels, times=False)
    page.table(
        f"Test accuracy [%] of the averaged model and of the ranks' own ones, n = {n}: median (range) of the seeds.",
        ["exchanges", *measures, "consensus distance"],
        [
            [
                name,
                *(spread(values, ".1f") for values in found[name].values()),
                spread([distance(run) for run in runs[name]]),
            ]
            for name in GOSSIP
        ],
    )
    cases, texts = {}, []
    for what in ("best, average", "last, worst single"):
        for name in [name for name in GOSSIP if name != ADAPTIVE]:
            ours, theirs = found[ADAPTIVE][what], found[name][what]
            cases[f"{what} model, against {name}"] = about_as_accurate(
                [value / 100 for value in ours], [value / 100 for value in theirs]
            )
            texts.append(f"{what} model: {middle(ours):.1f} % against {middle(theirs):.1f} % with {name}")
    page.finding(
        "adgossip-accuracy",
        "; ".join(texts),
        f"simulated, n = {n}, after equally many samples; the same means: at most one point less",
        cases,
        "With rare exchanges a rank's model knows little of what the others have learnt meanwhile.",
    )


def epochs(run: Run) -> np.ndarray:
    return run.curve["samples"] / run.attributes["train_samples"]


@target("adgossip-theta", "Accuracy and bytes over the threshold")
def theta(lab, page):
    n, config = lab.scale.tuning_ranks, GOSSIP[ADAPTIVE]
    measures = {"best accuracy [%]": best_accuracy, "sent [MB]": bytes_sent, "consensus distance": distance}
    found = {
        what: {
            theta: lab.measure(value, config, n, SIMULATED, EQUAL, (f"algorithm.theta={theta}",), SEEDS)
            for theta in THETAS
        }
        for what, value in measures.items()
    }
    best, sent, apart = found.values()
    errors = {theta: [100 * (1 - value) for value in values] for theta, values in best.items()}
    megabytes = {theta: [value / 1e6 for value in values] for theta, values in sent.items()}
    page.figure(
        f"What a constant threshold does, n = {n}; a threshold of 0 is an exchange every step.",
        [
            Panel("accuracy", "threshold", "least test error [%]", {"averaged model": errors}),
            Panel("traffic", "threshold", "sent in the whole run [MB]", {"averaged model": megabytes}),
            Panel("disagreement", "threshold", "consensus distance at the end", {"averaged model": apart}),
        ],
        times=False,
    )
    page.table(
        f"A constant threshold, n = {n}, simulated: median (range) of the seeds.",
        ["threshold", *measures],
        [[f"{theta:g}", *(number(what, values[theta]) for what, values in found.items())] for theta in THETAS],
    )
    bytes_, apart_, best_ = ([middle(values[theta]) for theta in THETAS] for values in (sent, apart, best))
    loss = best_[0] - best_[-1]
    cases = {
        "bytes, which never rise with the threshold": rises(bytes_[::-1]),
        "the distance of the models, which never falls": rises(apart_),
        "accuracy, less with the largest threshold than with none": None if math.isnan(loss) else loss > 0,
    }
    page.finding(
        "adgossip-theta",
        f"from a threshold of {THETAS[0]:g} to one of {THETAS[-1]:g}: bytes from {bytes_[0] / 1e6:.3g} to "
        f"{bytes_[-1] / 1e6:.3g} MB, consensus distance from {apart_[0]:.2g} to {apart_[-1]:.2g}, best accuracy from "
        f"{100 * best_[0]:.1f} to {100 * best_[-1]:.1f} %",
        f"simulated, n = {n}, after equally many samples, with the learning rate tuned for the automatic threshold",
        cases,
        "The average of models that seldom meet may be as good as of those that often do, and seeds differ too.",
    )


@target("adgossip-exchange-rate", "Exchanges over the epochs")
def exchange_rate(lab, page):
    n = lab.scale.tuning_ranks
    settings = {f"threshold {THETA:g}": (f"algorithm.theta={THETA}",), "automatic threshold": ()}
    rates = {name: exchanges_a_step(lab, n, extra) for name, extra in settings.items()}
    page.figure(
        f"Exchanges that a rank begins, by the part of the training, n = {n}.",
        [Panel("", "epochs", "exchanges a step", rates)],
        times=False,
    )
    page.table(
        f"Exchanges a step of a rank, n = {n}, simulated: median (range) of the seeds.",
        ["around epoch", *settings],
        [[f"{epoch:g}", *(spread(rates[name][epoch]) for name in settings)] for epoch in next(iter(rates.values()))],
    )
    ends = {
        name: (middle(list(values.values())[0]), middle(list(values.values())[-1])) for name, values in rates.items()
    }
    quarters = [middle(values) for values in next(iter(rates.values())).values()]
    half = len(quarters) // 2
    cases = {
        "the second half against the first": less([sum(quarters[half:])], [sum(quarters[:half])]),
        "from each quarter to the next": rises(quarters[::-1]),
    }
    page.finding(
        "adgossip-exchange-rate",
        "; ".join(f"{name}: from {early:.2g} to {late:.2g} exchanges a step" for name, (early, late) in ends.items()),
        f"exchanges between two ends of trainings that differ in length alone; simulated, n = {n}",
        cases,
        "At first all gradients point one way and momentum has to build up; with a constant learning rate, models need "
        "not move less a step towards the end either.",
    )


def exchanges_a_step(lab: Lab, n: int, extra: tuple[str, ...]) -> dict[float, list[float]]:
    """By the middle of each part of a training, in epochs."""
    config = GOSSIP[ADAPTIVE]
    length = lab.load(config).train.epochs
    rates, begin, before = {}, 0.0, (np.zeros(len(SEEDS)), np.zeros(len(SEEDS)))
    for end in (length * share for share in SHARES):
        shorter = (f"train.epochs={end}",) if end < length else ()
        words = (config, n, SIMULATED, EQUAL, (*extra, *shorter), SEEDS)
        now = [np.array(lab.measure(value, *words)) for value in (exchanges, steps)]
        rates[(begin + end) / 2] = list((now[0] - before[0]) / (now[1] - before[1]))
        begin, before = end, now
    return rates


@target("adgossip-easgd", "The same trigger on elastic averaging")
def easgd(lab, page):
    n = lab.scale.tuning_ranks
    measures = {
        "to the target [MB]": bytes_to_target,
        "whole run [MB]": bytes_sent,
        "seconds to the target": seconds_to,
        "best accuracy [%]": best_accuracy,
        "consensus distance": distance,
    }
    found = {
        what: {
            name: {(SIMULATED, n): lab.measure(value, config, n, SIMULATED, SLOW_LINKS, (), SEEDS)}
            for name, config in ELASTIC.items()
        }
        for what, value in measures.items()
    }
    to_target, whole, seconds, best, _ = found.values()
    page.figure(
        f"Elastic averaging of n = {n} ranks on slow links, simulated; median and range of the seeds.",
        [
            Panel("traffic", "", "sent in the whole run [MB]", bars=by_name(whole, lambda sent: sent / 1e6)),
            Panel("time", "", "time to accuracy [s]", bars=by_name(seconds, float)),
            Panel("accuracy", "", "least test error [%]", bars=by_name(best, lambda accuracy: 100 * (1 - accuracy))),
        ],
    )
    page.table(
        "Elastic averaging on slow links, simulated: median (range) of the seeds.",
        ["time and ranks", "exchanges", *measures],
        rows_by_place(found, number),
    )
    cases, ours = {}, best[ADAPTIVE][SIMULATED, n]
    for name, saved in savings(whole).items():
        theirs = best[name][SIMULATED, n]
        cases[f"fewer bytes than {name}"] = all_at_least(saved, 0)
        cases[f"about the accuracy of {name}"] = about_as_accurate(ours, theirs)
    page.finding(
        "adgossip-easgd",
        f"to the target: {in_words(savings(to_target))}; in the whole run: {in_words(savings(whole))}; time: "
        f"{in_words(savings(seconds))}; best accuracy: "
        + ", ".join(f"{name} {100 * middle(best[name][SIMULATED, n]):.1f} %" for name in ELASTIC),
        f"simulated, n = {n}, slow links; about the same accuracy: at most one point less",
        cases,
        "The result is the centre, which moves only with exchanges: with few of them it lags behind the "
        "ranks' models, and a period of 10 has few, too.",
    )
    page.note(BY_CONSTRUCTION)


def by_name(found: dict, shown: Callable[[float], float]) -> dict[str, dict[str, list[float]]]:
    """For a panel of bars, one a name."""
    return {"": {name: [shown(v) for values in places.values() for v in values] for name, places in found.items()}}
