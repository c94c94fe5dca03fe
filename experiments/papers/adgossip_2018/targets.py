"""The figures of adaptive gossip (Ho, Wu, Liu 2018): exchanges by the change of the model against fixed periods."""

import math
from collections.abc import Callable

import numpy as np

from experiments.papers.adgossip_2018.runs import (
    ADAPTIVE,
    AUTOMATIC_RATE_NOTE,
    ELASTIC,
    GOSSIP,
    SEEDS,
    SHARES,
    SINGLE_MODELS,
    THETA,
    THETAS,
    about_as_accurate,
    against,
    bars,
    bytes_sent,
    bytes_to_target,
    distance,
    exchanges,
    in_words,
    last,
    lines,
    number,
    over_ranks,
    rows_by_place,
    savings,
    steps,
)
from experiments.tables.compare import claim
from experiments.tables.draw import Panel
from experiments.tables.numbers import (
    all_at_least,
    best_accuracy,
    is_less,
    median_and_range,
    median_or_nan,
    rises,
)
from experiments.tables.requests import EQUAL, SLOW_LINKS, RunRequests
from experiments.tables.run_spec import SIMULATED
from experiments.tables.targets import target
from grsgd.runs.measures import time_to_target
from grsgd.runs.run_file import Run


@target("adgossip-traffic", "Bytes until a fixed accuracy: exchanges by change against fixed periods")
def traffic(requests, section):
    counted = {"to the target [MB]": bytes_to_target, "whole run [MB]": bytes_sent, "consensus distance": distance}
    found = {
        what: over_ranks(
            requests, lambda config, n, source, value=value: requests.measure(value, config, n, source, SLOW_LINKS)
        )
        for what, value in counted.items()
    }
    to_target, whole, apart = found.values()
    section.figure(
        "Bytes sent by all ranks until the target accuracy, on slow links, and what saving them costs: the distance of "
        "the ranks' models from their average at the end.",
        [
            Panel("until the target accuracy", "ranks n", "sent [MB]", lines(to_target, 1e6), logx=True, logy=True),
            Panel("at the end of training", "ranks n", "consensus distance", lines(apart), logx=True, logy=True),
        ],
        times=False,
    )
    section.table(
        "Payload that all ranks sent on slow links: median (range) of the seeds.",
        ["time and ranks", "exchanges", *counted],
        rows_by_place(found, number),
    )
    claimed = claim("adgossip-traffic")["low"]
    cases = against(claimed, "bytes to the target", savings(to_target))
    cases |= against(claimed, "bytes of the whole run", savings(whole))
    section.finding(
        "adgossip-traffic",
        f"to the target: {in_words(savings(to_target))}; in the whole run: {in_words(savings(whole))}; "
        f"consensus distance: {distances(apart)}",
        "payload of all ranks, measured and simulated, all n, slow links; to the target: bytes a sample times samples",
        cases,
        "The rate of exchanges is not that of the claim in so few steps, or against such a period; bytes to the "
        "target also depend on how many steps it takes to get there.",
    )
    section.note(AUTOMATIC_RATE_NOTE)


def distances(found: dict) -> str:
    """Return the medians, from the least to the greatest of all n."""
    texts = []
    for name, places in found.items():
        middles = [median_or_nan(values) for values in places.values()]
        texts.append(f"{name} {min(middles):.2g} to {max(middles):.2g}")
    return ", ".join(texts)


@target("adgossip-time", "Time to a fixed accuracy on slow and fast links: exchanges by change against fixed periods")
def time(requests, section):
    slow = over_ranks(requests, lambda config, n, source: requests.seconds(config, n, source, SLOW_LINKS))
    n = requests.scale.tuning_ranks
    fast = {
        name: {(SIMULATED, n): requests.seconds(config, n, SIMULATED, EQUAL, SINGLE_MODELS, SEEDS)}
        for name, config in GOSSIP.items()
    }
    section.figure(
        "Time to the target accuracy; median and range of the seeds.",
        [
            Panel(SLOW_LINKS.name, "ranks n", "time to accuracy [s]", lines(slow), logx=True),
            Panel(EQUAL.name, "ranks n", "time to accuracy [s]", bars=bars(fast)),
        ],
    )
    section.table(
        "Seconds to the target accuracy: median (range) of the seeds.",
        ["links", "time and ranks", "exchanges", "seconds"],
        [["slow", *row] for row in rows_by_place({"seconds": slow}, number)]
        + [["fast", *row] for row in rows_by_place({"seconds": fast}, number)],
    )
    claimed = claim("adgossip-time")["low"]
    cases = against(claimed, "slow links", savings(slow)) | against(claimed, "fast links", savings(fast))
    section.finding(
        "adgossip-time",
        f"slow links: {in_words(savings(slow))}; fast links: {in_words(savings(fast))}",
        f"time to accuracy; slow links: measured and simulated, all n; fast links: simulated, n = {n}",
        cases,
        "Time falls only as far as exchanges took time: the link and the period of the baseline decide whether so "
        "much can be saved. Fewer exchanges may also need more steps to the same accuracy.",
    )
    section.note(
        "A time is that of the first snapshot at or above the target, so it is known to the distance of two snapshots."
    )


@target("adgossip-accuracy", "Accuracy: exchanges by change against fixed periods")
def accuracy(requests, section):
    n = requests.scale.tuning_ranks
    runs = {name: requests.runs(config, n, SIMULATED, EQUAL, SINGLE_MODELS, SEEDS) for name, config in GOSSIP.items()}
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
    section.figure(f"Test accuracy of n = {n} ranks, every seed.", panels, times=False)
    section.table(
        f"Test accuracy [%] of the averaged model and of the ranks' own ones, n = {n}: median (range) of the seeds.",
        ["exchanges", *measures, "consensus distance"],
        [
            [
                name,
                *(median_and_range(values, ".1f") for values in found[name].values()),
                median_and_range([distance(run) for run in runs[name]]),
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
            texts.append(f"{what} model: {median_or_nan(ours):.1f} % against {median_or_nan(theirs):.1f} % with {name}")
    section.finding(
        "adgossip-accuracy",
        "; ".join(texts),
        f"simulated, n = {n}, after equally many samples; the same means: at most one point less",
        cases,
        "With rare exchanges a rank's model knows little of what the others have learnt meanwhile.",
    )


def epochs(run: Run) -> np.ndarray:
    return run.curve["samples"] / run.attributes["train_samples"]


@target("adgossip-theta", "Accuracy and bytes over the threshold")
def theta(requests, section):
    n, config = requests.scale.tuning_ranks, GOSSIP[ADAPTIVE]
    measures = {"best accuracy [%]": best_accuracy, "sent [MB]": bytes_sent, "consensus distance": distance}
    found = {
        what: {
            theta: requests.measure(value, config, n, SIMULATED, EQUAL, (f"algorithm.threshold={theta}",), SEEDS)
            for theta in THETAS
        }
        for what, value in measures.items()
    }
    best, sent, apart = found.values()
    errors = {theta: [100 * (1 - value) for value in values] for theta, values in best.items()}
    megabytes = {theta: [value / 1e6 for value in values] for theta, values in sent.items()}
    section.figure(
        f"What a constant threshold does, n = {n}; a threshold of 0 is an exchange every step.",
        [
            Panel("accuracy", "threshold", "least test error [%]", {"averaged model": errors}),
            Panel("traffic", "threshold", "sent in the whole run [MB]", {"averaged model": megabytes}),
            Panel("disagreement", "threshold", "consensus distance at the end", {"averaged model": apart}),
        ],
        times=False,
    )
    section.table(
        f"A constant threshold, n = {n}, simulated: median (range) of the seeds.",
        ["threshold", *measures],
        [[f"{theta:g}", *(number(what, values[theta]) for what, values in found.items())] for theta in THETAS],
    )
    bytes_, apart_, best_ = ([median_or_nan(values[theta]) for theta in THETAS] for values in (sent, apart, best))
    loss = best_[0] - best_[-1]
    cases = {
        "bytes, which never rise with the threshold": rises(bytes_[::-1]),
        "the distance of the models, which never falls": rises(apart_),
        "accuracy, less with the largest threshold than with none": None if math.isnan(loss) else loss > 0,
    }
    section.finding(
        "adgossip-theta",
        f"from a threshold of {THETAS[0]:g} to one of {THETAS[-1]:g}: bytes from {bytes_[0] / 1e6:.3g} to "
        f"{bytes_[-1] / 1e6:.3g} MB, consensus distance from {apart_[0]:.2g} to {apart_[-1]:.2g}, best accuracy from "
        f"{100 * best_[0]:.1f} to {100 * best_[-1]:.1f} %",
        f"simulated, n = {n}, after equally many samples, with the learning rate tuned for the automatic threshold",
        cases,
        "The average of models that seldom meet may be as good as of those that often do, and seeds differ too.",
    )


@target("adgossip-exchange-rate", "Exchanges over the epochs")
def exchange_rate(requests, section):
    n = requests.scale.tuning_ranks
    settings = {f"threshold {THETA:g}": (f"algorithm.threshold={THETA}",), "automatic threshold": ()}
    rates = {name: exchanges_a_step(requests, n, extra) for name, extra in settings.items()}
    section.figure(
        f"Exchanges that a rank begins, by the part of the training, n = {n}.",
        [Panel("", "epochs", "exchanges a step", rates)],
        times=False,
    )
    section.table(
        f"Exchanges a step of a rank, n = {n}, simulated: median (range) of the seeds.",
        ["around epoch", *settings],
        [
            [f"{epoch:g}", *(median_and_range(rates[name][epoch]) for name in settings)]
            for epoch in next(iter(rates.values()))
        ],
    )
    ends = {
        name: (median_or_nan(list(values.values())[0]), median_or_nan(list(values.values())[-1]))
        for name, values in rates.items()
    }
    quarters = [median_or_nan(values) for values in next(iter(rates.values())).values()]
    half = len(quarters) // 2
    cases = {
        "the second half against the first": is_less([sum(quarters[half:])], [sum(quarters[:half])]),
        "from each quarter to the next": rises(quarters[::-1]),
    }
    section.finding(
        "adgossip-exchange-rate",
        "; ".join(f"{name}: from {early:.2g} to {late:.2g} exchanges a step" for name, (early, late) in ends.items()),
        f"exchanges between two ends of trainings that differ in length alone; simulated, n = {n}",
        cases,
        "At first all gradients point one way and momentum has to build up; with a constant learning rate, models need "
        "not move less a step towards the end either.",
    )


def exchanges_a_step(requests: RunRequests, n: int, extra: tuple[str, ...]) -> dict[float, list[float]]:
    """Return exchanges per step by the middle of each part of a training, in epochs."""
    config = GOSSIP[ADAPTIVE]
    length = requests.load(config).train.epochs
    rates, begin, before = {}, 0.0, (np.zeros(len(SEEDS)), np.zeros(len(SEEDS)))
    for end in (length * share for share in SHARES):
        shorter = (f"train.epochs={end}",) if end < length else ()
        words = (config, n, SIMULATED, EQUAL, (*extra, *shorter), SEEDS)
        now = [np.array(requests.measure(value, *words)) for value in (exchanges, steps)]
        rates[(begin + end) / 2] = list((now[0] - before[0]) / (now[1] - before[1]))
        begin, before = end, now
    return rates


@target("adgossip-easgd", "The same trigger on elastic averaging")
def easgd(requests, section):
    n = requests.scale.tuning_ranks
    measures = {
        "to the target [MB]": bytes_to_target,
        "whole run [MB]": bytes_sent,
        "seconds to the target": time_to_target,
        "best accuracy [%]": best_accuracy,
        "consensus distance": distance,
    }
    found = {
        what: {
            name: {(SIMULATED, n): requests.measure(value, config, n, SIMULATED, SLOW_LINKS, (), SEEDS)}
            for name, config in ELASTIC.items()
        }
        for what, value in measures.items()
    }
    to_target, whole, seconds, best, _ = found.values()
    section.figure(
        f"Elastic averaging of n = {n} ranks on slow links, simulated; median and range of the seeds.",
        [
            Panel("traffic", "", "sent in the whole run [MB]", bars=by_name(whole, lambda sent: sent / 1e6)),
            Panel("time", "", "time to accuracy [s]", bars=by_name(seconds, float)),
            Panel("accuracy", "", "least test error [%]", bars=by_name(best, lambda accuracy: 100 * (1 - accuracy))),
        ],
    )
    section.table(
        "Elastic averaging on slow links, simulated: median (range) of the seeds.",
        ["time and ranks", "exchanges", *measures],
        rows_by_place(found, number),
    )
    cases, ours = {}, best[ADAPTIVE][SIMULATED, n]
    for name, saved in savings(whole).items():
        theirs = best[name][SIMULATED, n]
        cases[f"fewer bytes than {name}"] = all_at_least(saved, 0)
        cases[f"about the accuracy of {name}"] = about_as_accurate(ours, theirs)
    section.finding(
        "adgossip-easgd",
        f"to the target: {in_words(savings(to_target))}; in the whole run: {in_words(savings(whole))}; time: "
        f"{in_words(savings(seconds))}; best accuracy: "
        + ", ".join(f"{name} {100 * median_or_nan(best[name][SIMULATED, n]):.1f} %" for name in ELASTIC),
        f"simulated, n = {n}, slow links; about the same accuracy: at most one point less",
        cases,
        "The result, and so every accuracy here, is the centre's, which moves only with exchanges: with few of "
        "them it lags behind the ranks' models, and a period of 10 has few, too.",
    )
    section.note(AUTOMATIC_RATE_NOTE)


def by_name(found: dict, shown: Callable[[float], float]) -> dict[str, dict[str, list[float]]]:
    """Return the bars of a panel, one per name."""
    return {"": {name: [shown(v) for values in places.values() for v in values] for name, places in found.items()}}
