"""Figures on the effect of adaptive exchanges at equal traffic, and on choices that the paper leaves open."""

import numpy as np

from experiments.papers.adgossip_2018.runs import (
    ADAPTIVE,
    AUTOMATIC,
    CONSTANT,
    EVERY_STEP,
    FEWER_BYTES,
    GOSSIP,
    NO_COMMUNICATION,
    PERIODIC,
    RATE,
    SECONDS,
    SENT,
    accuracy_at_the_end,
    columns_until_target,
    each,
    exchanges,
    setting,
    show_columns,
    show_table,
    until_target,
    whole,
)
from experiments.runner import decide
from experiments.runner.needs import TimeToTarget
from experiments.runner.sample import Sample, algorithms_of
from experiments.tables.draw import Panel
from experiments.tables.link_rates import LinkRates
from experiments.tables.targets import register
from grsgd.runs.measures import bytes_sent, final_consensus

PERIODS = (8, 12, 24, 36)
FIXED = "fixed period"
BASELINE = PERIODIC[EVERY_STEP]
THRESHOLDS = (0.25, 0.6)
PUSH = 'algorithm.mode="push"'
OPTIONS = {
    CONSTANT: (GOSSIP[CONSTANT], BASELINE),
    AUTOMATIC: (GOSSIP[AUTOMATIC], BASELINE),
    "threshold on the change of the model's norm": ((*GOSSIP[AUTOMATIC], 'algorithm.metric="norm"'), BASELINE),
    "threshold for each layer": ((*GOSSIP[AUTOMATIC], 'algorithm.metric="layerwise"'), BASELINE),
    "pushes in place of exchanges": ((*GOSSIP[AUTOMATIC], PUSH), (*BASELINE, PUSH)),
}
"""Choices that are inferred, because the paper does not state them, each with the baseline with which it is compared.

The last three choices in ``OPTIONS`` are variants of the method `AUTOMATIC`.
"""


# ---- the comparison at equal traffic


def equal_traffic_needs(conditions):
    periods = {
        f"exchanges every {period} steps": ("adgossip/gossip_10", f"algorithm.period={period}") for period in PERIODS
    }
    return {name: until_target(conditions, *config) for name, config in (ADAPTIVE | periods).items()}


def show_equal_traffic(found, section):
    columns = columns_until_target(found)
    sent, seconds, *_ = columns.values()
    periodic = [name for name in found if name not in ADAPTIVE]
    lines = {
        label: {float(f"{sent[name].median():.3g}"): seconds[name] for name in names if sent[name].median() is not None}
        for label, names in ({name: [name] for name in ADAPTIVE} | {FIXED: periodic}).items()
    }
    panel = Panel("", SENT, SECONDS, lines=lines, controls=[FIXED])
    section.figure("Time over traffic, both until the target accuracy. Slow links, simulated.", [panel])
    show_table(section, "Until the target accuracy.", "exchanges", columns)
    section.finding(
        "adgossip-equal-traffic",
        "time to the target accuracy, compared with the time of a fixed period that sends the same number of bytes "
        f"until the target; the latter is interpolated between periods of {', '.join(map(str, PERIODS))} steps, for "
        "each seed, on logarithmic scales; simulated, slow links",
        [
            decide.less(seconds[ours], at_equal_bytes(sent, seconds, periodic, sent[ours]), ours, FIXED)
            for ours in ADAPTIVE
        ],
        "A threshold that keeps a rate makes exchanges nearly as regular as a fixed period does.",
    )


def at_equal_bytes(sent, seconds, periodic, megabytes):
    """Return, by seed, the seconds to the target that a fixed period of exchanges would take if it sent ``megabytes``.

    The value of a seed is None if ``megabytes`` is outside the range of the MB that the fixed periods send. sent,
    seconds: samples (values by seed) by name of the method. periodic: the names of the methods with fixed periods.
    """
    times = {}
    for seed, wanted in megabytes.values.items():
        reached = [name for name in periodic if sent[name].exact.get(seed, 0) > 0]
        points = sorted((sent[name].values[seed], seconds[name].values[seed]) for name in reached)
        within = points and points[0][0] <= wanted <= points[-1][0]
        times[seed] = float(np.exp(np.interp(np.log(wanted), *np.log(points).T))) if within else None
    return Sample(times, algorithms=algorithms_of(seconds.values()))


TITLE = "Time with exchanges by change, compared with a fixed period that sends the same number of bytes"
register("adgossip-equal-traffic", TITLE, equal_traffic_needs, show_equal_traffic)


# ---- the comparison at several rates of the links


ALLREDUCE = "ring all-reduce"
LINKS = LinkRates(
    claim="adgossip-links",
    configs={CONSTANT: "adgossip/adaptive", EVERY_STEP: "adgossip/gossip_1", ALLREDUCE: "adgossip/ring_allreduce"},
    allreduce=ALLREDUCE,
    alone=NO_COMMUNICATION,
    rates=("300mbit", "30mbit"),
)
register("adgossip-links", "The link rates at which exchanges by change save time", LINKS.needs, LINKS.show)


# ---- the comparison of options that the paper leaves open


def robustness_needs(conditions):
    return {
        (option, name): TimeToTarget(setting(conditions, *config))
        for option, configs in OPTIONS.items()
        for name, config in zip(("adaptive", EVERY_STEP), configs, strict=True)
    }


def show_robustness(found, section):
    columns = {name: {option: found[option, name] for option in OPTIONS} for name in ("adaptive", EVERY_STEP)}
    show_table(section, "Seconds to the target accuracy. Slow links, simulated.", "choice", columns)
    ours, theirs = columns.values()
    section.finding(
        "adgossip-robust",
        "time to the target accuracy; simulated, slow links; all rows have the learning rates of the first row",
        [decide.less(ours[option], theirs[option], option, EVERY_STEP) for option in OPTIONS],
    )


TITLE = "The verdict on time with other choices where the paper is silent"
register("adgossip-robustness", TITLE, robustness_needs, show_robustness)


# ---- the effect of the constant threshold


def threshold_needs(conditions):
    constant = {theta: whole(conditions, *GOSSIP[CONSTANT], f"algorithm.threshold={theta}") for theta in THRESHOLDS}
    return {0.0: whole(conditions, *BASELINE)} | constant


def show_threshold(found, section):
    measures = {
        "sent in the whole run [MB]": lambda run: bytes_sent(run) / 1e6,
        "consensus distance at the end": final_consensus,
        "test accuracy at the end [%]": accuracy_at_the_end,
    }
    columns = {what: each(measure, found) for what, measure in measures.items()}
    section.figure(
        "Bytes, distance of the models and accuracy over the constant threshold; a threshold of 0 stands for exchanges "
        "every step. Slow links, simulated.",
        [Panel("", "threshold", what, lines={CONSTANT: values}) for what, values in columns.items()],
        times=False,
    )
    show_table(section, "After the same number of samples.", "threshold", columns)
    sent, apart, accuracy = columns.values()
    least, *_, greatest = found
    section.finding(
        "adgossip-theta",
        f"after the same number of samples, a threshold of {greatest:g} compared with exchanges every step; simulated, "
        "slow links",
        [
            decide.less(sent[greatest], sent[least], "bytes sent", EVERY_STEP, FEWER_BYTES, source=""),
            decide.more(apart[greatest], apart[least], "distance of models", EVERY_STEP, "of their norm", source=""),
            decide.more(accuracy[least], accuracy[greatest], "loss of accuracy", EVERY_STEP, source=""),
        ],
        "Models that seldom exchange may have as accurate an average as models that often exchange.",
    )


register("adgossip-theta", "Accuracy and bytes over the threshold", threshold_needs, show_threshold)


# ---- the rate of exchanges in the course of a training


def exchange_rate_needs(conditions):
    half = conditions.load(*GOSSIP[CONSTANT]).train.epochs / 2
    configs = {"first half": (*GOSSIP[CONSTANT], f"train.epochs={half}"), "whole": GOSSIP[CONSTANT]}
    return {name: whole(conditions, *config) for name, config in configs.items()}


def show_exchange_rate(found, section):
    early, late = rates_of_halves(*found.values())
    caption = "Exchanges that a rank begins per step with a constant threshold. Slow links, simulated."
    show_columns(section, caption, {RATE: {"first half": early, "second half": late}}, times=False)
    section.finding(
        "adgossip-exchange-rate",
        "exchanges per step, found from two trainings that differ in length alone: half the length, and the whole; "
        "simulated, slow links",
        [decide.less(late, early, "second half of the training", "first half", "% fewer exchanges", source="")],
        "At first all gradients point in one direction, and momentum has to build up. With a constant learning rate, "
        "models need not move less per step towards the end.",
    )


def rates_of_halves(shorter, longer):
    """Return the exchanges per step in the first and in the second half of a training, as two samples by seed.

    shorter: runs of half the training's length. longer: runs of the training's whole length.
    """
    early, all_of_it = (
        {run.attributes["seed"]: np.array([exchanges(run), run.ranks["steps"].sum()]) for run in runs}
        for runs in (shorter, longer)
    )
    late = {seed: all_of_it[seed] - early[seed] for seed in early}
    return [
        Sample({seed: made / steps if steps else None for seed, (made, steps) in half.items()})
        for half in (early, late)
    ]


register("adgossip-exchange-rate", "Exchanges over the training", exchange_rate_needs, show_exchange_rate)
